"""`gst fit` by padded steps, which an accelerator records once and replays; and why a training cannot have them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor

from gst.cost.losses import LOSSES
from gst.data.loader import Reader, Step, StepLoader
from gst.devices.execute.lanes import is_here
from gst.graphs.segments import SegmentedGraph
from gst.method.fixed_step import FixedStep, PaddedStep, Sizes
from gst.training.placing import PlacedSteps
from gst.training.recorded_step import RecordedStep

if TYPE_CHECKING:
    from gst.training.module import SegmentTrainingModule

WORTH_PADDING = 2.0  # times the nodes of a mean step, where nobody asks for padded steps


class PaddedSteps:
    """Padded steps of a module up to the gradients; its trainer goes on as with any other step, so that gradients are
    clipped, optimizers and schedules step, and checkpoints are written as always.

    Args:
        step: without an optimizer.
    """

    def __init__(self, step: RecordedStep) -> None:
        self.step = step
        self._last_reason = ""

    @staticmethod
    def of(module: SegmentTrainingModule, loader: StepLoader) -> PaddedSteps | None:
        """Those of a module in training, or None where it shall have none or cannot; then the reason is logged."""
        device = module.device
        if module.record_step is False or (module.record_step is None and not is_here(device)):
            return None
        reason = _refusal(module, loader)
        if reason is None:
            try:
                return PaddedSteps(RecordedStep(_fixed(module, loader)))
            except ValueError as error:  # of a model whose shapes change
                reason = str(error)
        rank_zero_info(f"steps are neither padded nor recorded: {reason}")
        return None

    def run(self, step: Step) -> Tensor:
        """The loss of a step that was read by `reader`. The gradients of the parameters are there."""
        loss = self.step.run(step.prefetched, step.targets)
        if self.step.reason != self._last_reason:
            self._last_reason = self.step.reason
            rank_zero_info(f"steps are padded, and not recorded: {self.step.reason}")
        return loss


def reader(module: SegmentTrainingModule, padded: PaddedSteps | None) -> Reader[Step, Any, Any]:
    """Reads the steps of a training ahead: padded ones, if there are any, until the encoder is frozen."""
    estimator = module.estimator

    def draw(step: Step, ahead: int) -> Any:
        if padded is None or estimator.encoder_frozen:
            return estimator.draw(step.graphs, step.configs, ahead, step.peers)
        return padded.step.step.draw(step.graphs, step.configs, ahead)

    def load(drawn: Any) -> Any:
        return estimator.load(drawn) if padded is None or estimator.encoder_frozen else padded.step.step.load(drawn)

    return Reader(draw, load)


def is_padded(step: Step) -> bool:
    """Whether a step was read as a padded one."""
    return isinstance(step.prefetched, PaddedStep)


def _fixed(module: SegmentTrainingModule, loader: StepLoader) -> FixedStep:
    """Raises:
    ValueError: shapes change from step to step; or padding would cost much, and nobody asked for it.
    """

    def loss(scores: Tensor, targets: Tensor) -> Tensor:
        return LOSSES[module.loss](scores + module.offset.float(), targets)

    estimator, graphs = module.estimator, [graph for graph, _ in loader.selections]
    encoder = estimator.encoder if estimator._call.whole == "batch" else None
    num_configs = min(loader.configs_per_graph, max(len(configs) for _, configs in loader.selections))
    sizes = Sizes.of(graphs, loader.graphs_together, estimator.num_fresh, num_configs, encoder)
    mean = loader.graphs_together * _mean_nodes(graphs, estimator.num_fresh)
    if module.record_step is None and sizes.nodes > WORTH_PADDING * mean:
        raise ValueError(
            f"a padded step has {sizes.nodes} nodes, and a mean one {mean:.0f}; with --model.record_step true they are "
            "padded all the same"
        )
    return FixedStep(estimator, loss, None, sizes)


def _mean_nodes(graphs: Sequence[SegmentedGraph], num_fresh: int) -> float:
    """Of the fresh segments of a graph."""
    return fmean(len(graph.node_ids) * min(1.0, num_fresh / graph.num_segments) for graph in graphs)


def _refusal(module: SegmentTrainingModule, loader: StepLoader) -> str | None:
    """Why the trainer of a module cannot go on from gradients of padded steps."""
    trainer = module.trainer
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    if loader.world_size > 1 or not isinstance(trainer.strategy, SingleDeviceStrategy):
        return f"one process trains by them, on one device, and not strategy {type(trainer.strategy).__name__}"
    if trainer.precision != "32-true":
        return f"they compute in float32, and --trainer.precision is {trainer.precision}"
    if trainer.accumulate_grad_batches != 1 or any(
        isinstance(each, GradientAccumulationScheduler) for each in callbacks
    ):
        return "each begins with new gradients, and the trainer accumulates them"
    if any(isinstance(each, PlacedSteps) for each in callbacks):
        return "PlacedSteps runs the steps in its own way"
    return None
