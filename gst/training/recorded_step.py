"""Training steps padded to one size, and on an accelerator recorded once as a graph that every step launches again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor
from torch.nn.functional import pad

from embedding_cache import EmbeddingTable
from gst.data.loader import Step, StepLoader
from gst.method.batch import SegmentBatch, assemble
from gst.method.draws import Draw
from gst.method.estimator import GraphSegmentTraining
from gst.method.fixed_batch import DoesNotFit, NoFixedShapes, PaddedStep, Sizes
from gst.method.fixed_step import FixedStep, refusal
from gst.method.recorded import Recorded
from gst.method.rows import PrefetchedStep
from gst.training.callbacks import PlacedSteps
from gst.util.untrusted import first_line

Loss = Callable[[Tensor, Tensor], Tensor]


class PaddedSteps:
    """The padded steps of a training, each up to its gradients. The trainer does the rest, as after any other step: it
    clips gradients, steps optimizers and schedules, and writes checkpoints.

    Args:
        estimator: the model in training.
        step: its steps, without an optimizer.

    Attributes:
        step: None once steps are no longer padded.
        num_too_large: steps so far that were not padded because they did not fit.
        has_gradients: True if the latest step was padded, and so has computed its gradients.
    """

    def __init__(self, trainer: L.Trainer, estimator: GraphSegmentTraining, step: Recorded[FixedStep]) -> None:
        self.step: Recorded[FixedStep] | None = step
        self._trainer, self._estimator, self._reason = trainer, estimator, step.reason
        self.num_too_large, self.has_gradients = 0, False

    @staticmethod
    def of(
        trainer: L.Trainer, estimator: GraphSegmentTraining, loss: Loss, loader: StepLoader, overridden: list[str],
        is_asked: bool = True,
    ) -> PaddedSteps | None:  # fmt: skip
        """Return the padded steps of a training, or log why there are none and return None.

        Args:
            loss: predictions and targets -> a number.
            overridden: methods of the module's training step that padded steps would leave out.
            is_asked: else they must not be more than `MOST_PADDING` times as large as without padding.
        """
        reason = _refusal_of_training(trainer, loader, overridden) or refusal(estimator)
        if reason is None:
            try:
                step = Recorded(_fixed(estimator, loss, loader, is_asked))
            except NoFixedShapes as error:
                reason = str(error)
            else:
                if step.reason:
                    rank_zero_info(f"steps are padded, and not recorded: {step.reason}")
                return PaddedSteps(trainer, estimator, step)
        rank_zero_info(f"steps are neither padded nor recorded: {reason}")
        return None

    def reading(self, step: Step, ahead: int) -> Callable[[], PaddedStep | PrefetchedStep] | None:
        """Draw a step; the result reads it, unpadded if it is too large. None once steps are no longer padded."""
        fixed = self._fixed()
        return None if fixed is None else partial(self._read, fixed, fixed.draw(step.graphs, step.configs, ahead))

    def run(self, step: Step) -> tuple[Tensor | None, Step]:
        """Train a step that was read as a padded one; the parameters have its gradients then.

        Returns:
            Its loss and the step; no loss, and the same draw unpadded, if the step has to be trained unpadded.
        """
        self.has_gradients = False
        if step.prefetched is None:
            return None, step
        if not isinstance(step.prefetched, PaddedStep) or self.step is None or self._fixed() is None:
            return None, self._unpadded(step)
        try:
            loss = self.step.run(step.prefetched, step.targets)
        except (NoFixedShapes, torch.OutOfMemoryError) as error:
            self._stop(first_line(error) if isinstance(error, torch.OutOfMemoryError) else str(error))
            return None, self._unpadded(step)
        if self.step.reason != self._reason:  # it could not be recorded: padding gains nothing
            self._stop(self.step.reason)
        self.has_gradients = True
        return loss, step

    def _fixed(self) -> FixedStep | None:
        """Return the object that draws and loads the next step, if that is to be padded."""
        if self.step is not None and self._trainer.accumulate_grad_batches != 1:  # by a callback, meanwhile
            self._stop(ACCUMULATES)
        if self.step is not None and self._estimator.encoder_frozen:
            self._stop("the encoder is frozen")
        return None if self.step is None else self.step.step

    def _read(self, fixed: FixedStep, draw: Draw) -> PaddedStep | PrefetchedStep:
        try:
            return fixed.load(draw)
        except DoesNotFit:
            self.num_too_large += 1
            if self.num_too_large == 1:
                rank_zero_info("a step is too large for the size of the padded ones; such steps are not padded")
            return self._estimator.load(draw)

    def _unpadded(self, step: Step) -> Step:
        was = step.prefetched
        read = self._estimator.load(was.draw) if isinstance(was, PaddedStep) else was
        configs = read.draw.configs
        targets = pad(step.targets, (0, configs.shape[1] - step.targets.shape[1]), value=torch.nan)
        return replace(step, configs=configs, targets=targets, prefetched=read)

    def end(self) -> None:
        """Pad no more steps, and forget the recording."""
        if self.step is not None:
            self.step.step.warn()
        self.step = None

    def _stop(self, reason: str) -> None:
        self.end()
        rank_zero_info(f"steps are no longer padded: {reason}")


PRECISIONS = ("32-true", "bf16-mixed")  # 16-mixed scales losses by numbers that change from step to step
MOST_PADDING = 2.0
MOST_ROWS = 1 << 18  # of the table in a step, since all segments of its graphs are read
MOST_OF_MEMORY = 0.25  # of the device, for the rows of a table
ACCUMULATES = "each padded step begins with new gradients, and the trainer accumulates them"


def _fixed(estimator: GraphSegmentTraining, loss: Loss, loader: StepLoader, is_asked: bool) -> FixedStep:
    """Make the steps of fixed shapes of a training.

    Raises:
        NoFixedShapes: shapes change, the rows of the table need too much memory, or nobody asked for steps that read
            many of these or are more than `MOST_PADDING` times as large as without padding.
    """
    graphs = [graph for graph, _ in loader.selections]
    if any(graph.targets.ndim > 1 for graph in graphs):
        raise NoFixedShapes("graphs have several targets")
    num_configs = min(loader.configs_per_graph, max(len(configs) for _, configs in loader.selections))
    sizes = Sizes.of(graphs, loader.graphs_together, estimator.num_fresh, num_configs, estimator.encoder, likely=True)
    if not is_asked and (times := sizes.padding(_sample(loader, estimator.num_fresh, num_configs))) > MOST_PADDING:
        raise NoFixedShapes(f"they would be {times:.1f} times as large; --model.record_step true records all the same")
    if estimator.table is not None and not is_asked and sizes.all_segments * num_configs > MOST_ROWS:
        raise NoFixedShapes(f"each would read {sizes.all_segments * num_configs:,} rows of the table")
    estimator.register(graphs)
    if isinstance(table := estimator.table, EmbeddingTable) and (device := estimator.like().device).type != "cpu":
        takes = table.num_keys * (table.channels * table.dtype.itemsize + 8)  # with the step of each row
        if takes > MOST_OF_MEMORY * torch.accelerator.get_memory_info(device)[1]:
            raise NoFixedShapes(f"all rows of the table take {takes / 2**30:.1f} GiB, too much of the device's memory")
    return FixedStep(estimator, loss, None, sizes)


def _sample(loader: StepLoader, num_fresh: int, num_configs: int) -> SegmentBatch:
    """Return the batch of a step with the first segments and configurations of each graph."""
    few = [loader.selections[each % len(loader.selections)] for each in range(loader.graphs_together)]
    picks = [(g, j) for g, (graph, _) in enumerate(few) for j in range(min(num_fresh, graph.num_segments))]
    configs = torch.stack([chosen[torch.arange(num_configs) % len(chosen)] for _, chosen in few])
    return assemble([graph for graph, _ in few], picks, configs)


def _refusal_of_training(trainer: L.Trainer, loader: StepLoader, overridden: list[str]) -> str | None:
    """Return the reason why a trainer cannot go on from gradients of padded steps."""
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    if loader.world_size > 1 or not isinstance(trainer.strategy, SingleDeviceStrategy):
        return f"they are for one process on one device, not for strategy {type(trainer.strategy).__name__}"
    if trainer.precision not in PRECISIONS:
        return f"they compute in {' or '.join(PRECISIONS)}, and --trainer.precision is {trainer.precision}"
    accumulates = any(isinstance(each, GradientAccumulationScheduler) for each in callbacks)
    if trainer.accumulate_grad_batches != 1 or accumulates:
        return ACCUMULATES
    if any(isinstance(each, PlacedSteps) for each in callbacks):
        return "PlacedSteps runs the steps in its own way"
    if overridden:
        module = type(trainer.lightning_module).__name__
        return f"{module} has its own {', '.join(overridden)}, which they would leave out"
    return None
