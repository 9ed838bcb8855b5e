"""Steps of `gst fit` that are padded to one size, and on an accelerator recorded once and replayed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor
from torch.nn.functional import pad

from gst.cost.losses import LOSSES
from gst.data.loader import Reader, Step, StepLoader
from gst.method.estimator import GraphSegmentTraining
from gst.method.fixed_step import FixedStep, PaddedStep, refusal
from gst.method.sizes import NoFixedShapes, Sizes
from gst.training.placing import PlacedSteps
from gst.training.recorded_step import RecordedStep

if TYPE_CHECKING:
    from gst.training.module import SegmentTrainingModule


class PaddedSteps:
    """The padded steps of a module, each up to its gradients. The trainer does the rest, as after any other step: it
    clips gradients, steps optimizers and schedules, and writes checkpoints.

    Args:
        module: in training.
        step: of its estimator, without an optimizer.

    Attributes:
        step: None once steps are no longer padded.
    """

    def __init__(self, module: SegmentTrainingModule, step: RecordedStep) -> None:
        self.step: RecordedStep | None = step
        self._module, self._reason = module, step.reason

    @staticmethod
    def of(module: SegmentTrainingModule, loader: StepLoader) -> PaddedSteps | None:
        """The padded steps of a module with `record_step`; None without it. None, too, if the module cannot have them;
        then the reason is logged."""
        if not module.record_step:
            return None
        reason = _refusal_of_training(module, loader) or refusal(module.estimator)
        if reason is None:
            try:
                step = RecordedStep(_fixed(module, loader))
            except NoFixedShapes as error:
                reason = str(error)
            else:
                if step.reason:
                    rank_zero_info(f"steps are padded, and not recorded: {step.reason}")
                return PaddedSteps(module, step)
        rank_zero_info(f"steps are neither padded nor recorded: {reason}")
        return None

    def fixed(self) -> FixedStep | None:
        """What draws and loads the next step, if that is to be padded."""
        if self.step is not None and (reason := self._refusal_now()):
            self._stop(reason)
        return None if self.step is None else self.step.step

    def run(self, step: Step) -> Tensor | None:
        """The loss of a step that was read as a padded one; the parameters have its gradients then. None if this step
        and all later ones have to be trained unpadded (`unpadded`)."""
        if self.step is None or self.fixed() is None:
            return None
        try:
            loss = self.step.run(step.prefetched, step.targets)
        except NoFixedShapes as error:
            self._stop(str(error))
            return None
        if self.step.reason != self._reason:  # it could not be recorded: padding gains nothing
            self._stop(self.step.reason)
        return loss

    def _refusal_now(self) -> str | None:
        """Why steps are not to be padded from now on, which callbacks may change while the training goes on."""
        if self._module.trainer.accumulate_grad_batches != 1:
            return ACCUMULATES
        return "the encoder is frozen" if self._module.estimator.encoder_frozen else None

    def _stop(self, reason: str) -> None:
        self.step = None
        rank_zero_info(f"steps are no longer padded: {reason}")


ACCUMULATES = "each padded step begins with new gradients, and the trainer accumulates them"


def reader(estimator: GraphSegmentTraining, padded: PaddedSteps | None) -> Reader[Step, Any, Any]:
    """Reads the steps of a training ahead, padded ones as long as there are any."""

    def draw(step: Step, ahead: int) -> Any:
        fixed = None if padded is None else padded.fixed()
        if fixed is not None:
            return partial(fixed.load, fixed.draw(step.graphs, step.configs, ahead))
        drawn = estimator.draw(step.graphs, step.configs, ahead, step.peers)
        return None if drawn is None else partial(estimator.load, drawn)

    return Reader(draw, lambda load: load())


def is_padded(step: Step) -> bool:
    """Whether a step was read as a padded one."""
    return isinstance(step.prefetched, PaddedStep)


def unpadded(step: Step, estimator: GraphSegmentTraining) -> Step:
    """The same step with the same draw, as `estimator` takes it."""
    if not is_padded(step):
        return step
    draw = step.prefetched.draw
    targets = pad(step.targets, (0, draw.configs.shape[1] - step.targets.shape[1]), value=torch.nan)
    return replace(step, configs=draw.configs, targets=targets, prefetched=estimator.load(draw))


def _fixed(module: SegmentTrainingModule, loader: StepLoader) -> FixedStep:
    """Raises:
    NoFixedShapes: shapes change from step to step.
    """

    def loss(scores: Tensor, targets: Tensor) -> Tensor:
        return LOSSES[module.loss](scores + module.offset.float(), targets)

    estimator, graphs = module.estimator, [graph for graph, _ in loader.selections]
    encoder = estimator.encoder if estimator._call.whole == "batch" else None
    num_configs = min(loader.configs_per_graph, max(len(configs) for _, configs in loader.selections))
    sizes = Sizes.of(graphs, loader.graphs_together, estimator.num_fresh, num_configs, encoder)
    return FixedStep(estimator, loss, None, sizes)


def _refusal_of_training(module: SegmentTrainingModule, loader: StepLoader) -> str | None:
    """Why the trainer of a module cannot go on from gradients of padded steps."""
    trainer = module.trainer
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    if loader.world_size > 1 or not isinstance(trainer.strategy, SingleDeviceStrategy):
        return f"they are for one process on one device, not for strategy {type(trainer.strategy).__name__}"
    if trainer.precision != "32-true":
        return f"they compute in float32, and --trainer.precision is {trainer.precision}"
    if trainer.accumulate_grad_batches != 1 or any(
        isinstance(each, GradientAccumulationScheduler) for each in callbacks
    ):
        return ACCUMULATES
    if any(isinstance(each, PlacedSteps) for each in callbacks):
        return "PlacedSteps runs the steps in its own way"
    if names := module.overridden():
        return f"{type(module).__name__} has its own {', '.join(names)}, which they would leave out"
    return None
