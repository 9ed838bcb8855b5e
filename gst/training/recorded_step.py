"""Training steps padded to one size, and on an accelerator recorded once as a graph that every step launches again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

import lightning as L
import numpy as np
import torch
from jaxtyping import Float, Int64
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor, nn
from torch.nn.functional import pad

from gst.data.loader import Step, StepLoader
from gst.execution.lanes import is_here
from gst.execution.recording import WARM_RUNS, Graph, new_graph, no_garbage, recorded
from gst.graphs.segments import SegmentedGraph
from gst.method.estimator import GraphSegmentTraining
from gst.method.fixed_step import FixedStep, NoFixedShapes, PaddedStep, Sizes, refusal
from gst.training.placing import PlacedSteps
from gst.util.untrusted import first_line

TOLERANCE = 0.02  # of sums in another order, also of short numbers


class RecordedStep:
    """Trains step by step: the first `WARM_RUNS` steps run eagerly, the last one is then recorded, and the recording is
    replayed for all later ones.

    The first replay is compared with the same step computed eagerly, unless the step holds an optimizer. If results or
    gradients differ by more than `TOLERANCE`, the recording holds something that changes from step to step, and all
    steps run eagerly from then on.

    A recording holds numbers of the optimizer (a learning rate, unless it is a tensor as with `capturable=True`), the
    dtype of autocast, addresses of parameters and buffers, and which of them and of the modules are trained. When one
    of these changes, the step is recorded anew; if it is one of the model, after further eager steps.

    Args:
        step: what is to be recorded; its model, loss and optimizer.
        graph: makes an empty graph, see `gst.execution.recording.new_graph`.
        is_recorded: whether to record at all; where the model is on an accelerator of this process if None.

    Attributes:
        reason: why all steps from now on run eagerly; empty if they are, or will be, replays.

    Examples:
        >>> import gst, numpy as np
        >>> from gst.cost.losses import pairwise_hinge
        >>> from gst.method.fixed_step import Sizes
        >>> from torch_geometric.nn import GraphSAGE
        >>> path = gst.Graph(np.ones((6, 1), np.float32), np.stack([np.arange(5), np.arange(1, 6)]))
        >>> graphs = [gst.segment(path, 3, "contiguous")]
        >>> model = gst.GraphSegmentTraining(GraphSAGE(1, 4, 2), torch.nn.Linear(4, 1), estimate="fresh")
        >>> optimizer = torch.optim.SGD(model.parameters(), 0.1)
        >>> step = RecordedStep(FixedStep(model, pairwise_hinge, optimizer, Sizes.of(graphs, 1, 1, 1)))
        >>> step(graphs, torch.tensor([[0]]), torch.ones(1, 1)).item(), step.reason
        (0.0, 'graphs are recorded on an accelerator; the model is on cpu')
    """

    def __init__(
        self, step: FixedStep, graph: Callable[[torch.device], Graph] = new_graph, is_recorded: bool | None = None
    ) -> None:
        self.step, self._new_graph = step, graph
        device = step.model.like().device
        self._device = device
        self._stream = torch.Stream(device) if is_here(device) else None
        self._graph: Graph | None = None
        self._gradients: list[tuple[Tensor, Tensor | None]] = []
        self._results, self._is_compared = step.results, False
        self._warm_runs = 0
        self._numbers: list[dict[str, Any]] = []
        self._places: list[Any] = []
        wanted = is_here(device) if is_recorded is None else is_recorded
        self.reason = "" if wanted else f"graphs are recorded on an accelerator; the model is on {device}"

    def __call__(
        self, graphs: Sequence[SegmentedGraph], configs: Int64[Tensor, "graphs configs"],
        targets: Float[Tensor, "graphs configs"],
    ) -> Float[Tensor, ""]:  # fmt: skip
        """Take one training step, padded to the sizes, and return its loss. The host does not wait for the loss.

        Raises:
            ValueError: the step is larger than the sizes.
            NoFixedShapes: see `FixedStep.fill` and `FixedStep.compute`.
        """
        return self.run(self.step.load(self.step.draw(graphs, configs)), targets)

    @torch.compiler.disable
    def run(self, padded: PaddedStep, targets: Float[Tensor, "graphs configs"]) -> Float[Tensor, ""]:
        """Take a training step that `FixedStep.load` has read."""
        caller: Any = None if self._stream is None else torch.accelerator.current_stream(self._device)
        if self._stream is not None:
            self._stream.wait_stream(caller)
        try:
            with self._stream or nullcontext():
                value = self._run(padded, targets)
        finally:
            if self._stream is not None:
                caller.wait_stream(self._stream)
        if self._stream is not None:
            value.record_stream(caller)
        self._warm_runs += 1
        return value

    def _run(self, padded: PaddedStep, targets: Float[Tensor, "graphs configs"]) -> Float[Tensor, ""]:
        if not self.reason:
            self._look_at_constants()
        self.step.fill(padded, targets)
        if self._graph is None:
            self.step.compute()
        elif self._is_compared:
            self._replay()
        else:
            self._replay_and_compare()
        self.step.finish()
        value = self.step.results.value.clone()
        if not self.reason and self._graph is None and self._warm_runs + 1 >= WARM_RUNS:
            self._record()
        return value

    def _replay(self) -> None:
        assert self._graph is not None
        self._graph.replay()
        self.step.results = self._results
        for parameter, gradient in self._gradients:
            parameter.grad = gradient

    def _replay_and_compare(self) -> None:
        """Compute a step both ways, with the same random numbers, and drop a recording that computes something else."""
        step, buffers, self._is_compared = self.step, list(self.step.model.buffers()), True
        before = [each.clone() for each in buffers]
        with torch.random.fork_rng([] if self._stream is None else [self._device]):
            step.compute()
        results, gradients = step.results, [(each, each.grad) for each in step.model.parameters()]
        for each, value in zip(buffers, before, strict=True):
            each.copy_(value)
        self._replay()
        groups = [([one], [other]) for one, other in zip(self._results, results, strict=True)]
        ours, theirs = ([each for _, each in many if each is not None] for many in (self._gradients, gradients))
        if not all(_alike(*group) for group in [*groups, (ours, theirs)]):
            self._graph, step.results = None, results
            self.reason = "a replay computes something else than the step that was recorded"
            for parameter, gradient in gradients:
                parameter.grad = gradient

    def _look_at_constants(self) -> None:
        """Drop the graph if something has changed that it holds as a constant; new tensors need warm runs, too."""
        kind = self._device.type
        short = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        if (numbers := [*optimizer_numbers(self.step.optimizer), {"autocast": short}]) != self._numbers:
            self._graph, self._numbers = None, numbers
        if (places := model_places(self.step.model)) != self._places:
            self._graph, self._places, self._warm_runs = None, places, 0

    def _record(self) -> None:
        """Record the arithmetic of the step that was computed last; recording launches nothing."""
        if self._stream is not None:
            self._stream.synchronize()
        gradients = [(parameter, parameter.grad) for parameter in self.step.model.parameters()]
        try:
            graph = self._new_graph(self._device)
            with no_garbage(), recorded(graph):
                self.step.compute()
        except Exception as error:  # whatever an encoder does that a graph cannot
            self.reason = first_line(error)
        else:
            self._graph, self._results, self._is_compared = graph, self.step.results, self.step.optimizer is not None
            self._gradients = [(parameter, parameter.grad) for parameter, _ in gradients]
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _alike(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    """True if two lists of tensors differ by at most `TOLERANCE` of their norm; NaN equals NaN."""
    here, there = ([each.float().nan_to_num() for each in many] for many in (ours, theirs))
    off = [(one - other).norm() for one, other in zip(here, there, strict=True)]
    return not off or bool(torch.stack(off).norm() <= TOLERANCE * torch.stack([each.norm() for each in there]).norm())


def optimizer_numbers(optimizer: torch.optim.Optimizer | None) -> list[dict[str, Any]]:
    """The options of each group of parameters that are no tensors: learning rates, momenta.

    Examples:
        >>> optimizer_numbers(torch.optim.SGD([torch.ones(1)], 0.1))[0]["lr"]
        0.1
    """
    groups = [] if optimizer is None else optimizer.param_groups
    return [{key: each for key, each in group.items() if not isinstance(each, Tensor | list)} for group in groups]


def model_places(model: nn.Module) -> list[Any]:
    """Of every parameter and buffer its identity, its address and whether it is trained; of every module its mode.

    Examples:
        >>> layer = nn.Linear(1, 1)
        >>> before = model_places(layer)
        >>> model_places(layer.eval()) == before
        False
    """
    tensors = [(id(each), each.data_ptr(), each.requires_grad) for each in (*model.parameters(), *model.buffers())]
    return [*tensors, *(each.training for each in model.modules())]


Loss = Callable[[Tensor, Tensor], Tensor]


class PaddedSteps:
    """The padded steps of a training, each up to its gradients. The trainer does the rest, as after any other step: it
    clips gradients, steps optimizers and schedules, and writes checkpoints.

    Args:
        estimator: the model in training.
        step: its steps, without an optimizer.

    Attributes:
        step: None once steps are no longer padded.
    """

    def __init__(self, trainer: L.Trainer, estimator: GraphSegmentTraining, step: RecordedStep) -> None:
        self.step: RecordedStep | None = step
        self._trainer, self._estimator, self._reason = trainer, estimator, step.reason

    @staticmethod
    def of(
        trainer: L.Trainer, estimator: GraphSegmentTraining, loss: Loss, loader: StepLoader, overridden: list[str],
        is_asked: bool = True,
    ) -> PaddedSteps | None:  # fmt: skip
        """Return the padded steps of a training, or log why there are none and return None.

        Args:
            loss: predictions and targets -> a number.
            overridden: methods of the module's training step that padded steps would leave out.
            is_asked: else they must not have more than `MOST_PADDING` times the nodes of steps that are not padded.
        """
        reason = _refusal_of_training(trainer, loader, overridden) or refusal(estimator)
        if reason is None:
            try:
                step = RecordedStep(_fixed(estimator, loss, loader, inf if is_asked else MOST_PADDING))
            except NoFixedShapes as error:
                reason = str(error)
            else:
                if step.reason:
                    rank_zero_info(f"steps are padded, and not recorded: {step.reason}")
                return PaddedSteps(trainer, estimator, step)
        rank_zero_info(f"steps are neither padded nor recorded: {reason}")
        return None

    def reading(self, step: Step, ahead: int) -> Callable[[], PaddedStep] | None:
        """Draw a step; the result reads it. None once steps are no longer padded."""
        fixed = self._fixed()
        return None if fixed is None else partial(fixed.load, fixed.draw(step.graphs, step.configs, ahead))

    def run(self, step: Step) -> tuple[Tensor | None, Step]:
        """Train a step that was read as a padded one; the parameters have its gradients then.

        Returns:
            Its loss and the step; no loss, and the same draw unpadded, if the step has to be trained unpadded.
        """
        if not isinstance(step.prefetched, PaddedStep):
            return None, step
        if self.step is None or self._fixed() is None:
            return None, self._unpadded(step)
        try:
            loss = self.step.run(step.prefetched, step.targets)
        except NoFixedShapes as error:
            self._stop(str(error))
            return None, self._unpadded(step)
        if self.step.reason != self._reason:  # it could not be recorded: padding gains nothing
            self._stop(self.step.reason)
        return loss, step

    def _fixed(self) -> FixedStep | None:
        """Return the object that draws and loads the next step, if that is to be padded."""
        if self.step is not None and (reason := self._refusal_now()):
            self._stop(reason)
        return None if self.step is None else self.step.step

    def _unpadded(self, step: Step) -> Step:
        draw = step.prefetched.draw
        targets = pad(step.targets, (0, draw.configs.shape[1] - step.targets.shape[1]), value=torch.nan)
        return replace(step, configs=draw.configs, targets=targets, prefetched=self._estimator.load(draw))

    def _refusal_now(self) -> str | None:
        """Return the reason against padding from now on, if callbacks have caused one while the training goes on."""
        if self._trainer.accumulate_grad_batches != 1:
            return ACCUMULATES
        return "the encoder is frozen" if self._estimator.encoder_frozen else None

    def _stop(self, reason: str) -> None:
        self.step = None
        rank_zero_info(f"steps are no longer padded: {reason}")


PRECISIONS = ("32-true", "bf16-mixed")  # 16-mixed scales losses by numbers that change from step to step
MOST_PADDING = 2.0
ACCUMULATES = "each padded step begins with new gradients, and the trainer accumulates them"


def _fixed(estimator: GraphSegmentTraining, loss: Loss, loader: StepLoader, most_padding: float) -> FixedStep:
    """Make the steps of fixed shapes of a training; `NoFixedShapes` if shapes change from step to step, or padded steps
    have more than `most_padding` times the nodes of others."""
    graphs = [graph for graph, _ in loader.selections]
    encoder = estimator.encoder if estimator.takes_batches else None
    num_configs = min(loader.configs_per_graph, max(len(configs) for _, configs in loader.selections))
    sizes = Sizes.of(graphs, loader.graphs_together, estimator.num_fresh, num_configs, encoder)
    fresh = [min(estimator.num_fresh, graph.num_segments) * np.diff(graph.row_ptr).mean() for graph in graphs]
    if (padding := sizes.nodes / (loader.graphs_together * np.mean(fresh))) > most_padding:
        raise NoFixedShapes(
            f"they would have {padding:.1f} times the nodes; --model.record_step true records them all the same"
        )
    return FixedStep(estimator, loss, None, sizes)


def _refusal_of_training(trainer: L.Trainer, loader: StepLoader, overridden: list[str]) -> str | None:
    """Return the reason why a trainer cannot go on from gradients of padded steps."""
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    if loader.world_size > 1 or not isinstance(trainer.strategy, SingleDeviceStrategy):
        return f"they are for one process on one device, not for strategy {type(trainer.strategy).__name__}"
    if trainer.precision not in PRECISIONS:
        return f"they compute in {' or '.join(PRECISIONS)}, and --trainer.precision is {trainer.precision}"
    if trainer.accumulate_grad_batches != 1 or any(
        isinstance(each, GradientAccumulationScheduler) for each in callbacks
    ):
        return ACCUMULATES
    if any(isinstance(each, PlacedSteps) for each in callbacks):
        return "PlacedSteps runs the steps in its own way"
    if overridden:
        module = type(trainer.lightning_module).__name__
        return f"{module} has its own {', '.join(overridden)}, which they would leave out"
    return None
