"""Work of fixed shapes that runs again and again, on an accelerator by one call that launches a recorded graph."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from gst.util.recording import WARM_RUNS, Graph, is_here, new_graph, no_garbage, recorded
from gst.util.untrusted import first_line


@runtime_checkable
class Work(Protocol):
    """Work that can be recorded.

    Attributes:
        model: its parameters, buffers and modes are constants of a recording; `like()` is on its device.
        optimizer: None if the work does not change parameters.
        results: a tuple of tensors of the work computed last; the first one is that of `Recorded.run`.
    """

    model: Any
    optimizer: torch.optim.Optimizer | None
    results: Any

    def fill(self, *inputs: Any) -> None:
        """Copy inputs to the memory that `compute` reads."""

    def compute(self) -> None:
        """Compute results and gradients; this is what is recorded."""

    def finish(self) -> None:
        """Do what depends on the host, afterwards."""


Step = TypeVar("Step", bound=Work)

TOLERANCE = 0.02  # of sums in another order, also of short numbers


class Recorded(Generic[Step]):
    """Runs steps: the first `WARM_RUNS` steps run eagerly, the last one is then recorded, and the recording is replayed
    for all later ones.

    The first replay is compared with the same step computed eagerly, unless the step holds an optimizer. If results or
    gradients differ by more than `TOLERANCE`, the recording holds something that changes from step to step, and all
    steps run eagerly from then on.

    A recording holds numbers of the optimizer (a learning rate, unless it is a tensor as with `capturable=True`), the
    dtype of autocast, addresses of parameters and buffers, and which of them and of the modules are trained. When one
    of these changes, the step is recorded anew; if it is one of the model, after further eager steps.

    Args:
        step: what is to be recorded.
        graph: makes an empty graph, see `gst.util.recording.new_graph`.
        is_recorded: whether to record at all; where the model is on an accelerator of this process if None.

    Attributes:
        reason: why all steps from now on run eagerly; empty if they are, or will be, replays.

    Examples:
        >>> import gst, numpy as np
        >>> from gst.method.fixed_step import FixedStep, Sizes
        >>> from torch_geometric.nn import GraphSAGE
        >>> path = gst.Graph(np.ones((6, 1), np.float32), np.stack([np.arange(5), np.arange(1, 6)]))
        >>> graphs = [gst.segment(path, 3, "contiguous")]
        >>> model = gst.GraphSegmentTraining(GraphSAGE(1, 4, 2), torch.nn.Linear(4, 1), estimate="fresh")
        >>> optimizer = torch.optim.SGD(model.parameters(), 0.1)
        >>> fixed = FixedStep(model, nn.functional.mse_loss, optimizer, Sizes.of(graphs, 1, 1, 1))
        >>> step = Recorded(fixed)
        >>> loss = step.run(fixed.load(fixed.draw(graphs, torch.tensor([[0]]))), torch.ones(1, 1))
        >>> step.reason
        'graphs are recorded on an accelerator; the model is on cpu'
    """

    def __init__(
        self, step: Step, graph: Callable[[torch.device], Graph] = new_graph, is_recorded: bool | None = None
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

    @torch.compiler.disable
    def run(self, *inputs: Any) -> Tensor:
        """Fill the step with these inputs, take it, and return its first result. The host does not wait for it."""
        caller: Any = None if self._stream is None else torch.accelerator.current_stream(self._device)
        if self._stream is not None:
            self._stream.wait_stream(caller)
        try:
            with self._stream or nullcontext():
                value = self._run(*inputs)
        finally:
            if self._stream is not None:
                caller.wait_stream(self._stream)
        if self._stream is not None:
            value.record_stream(caller)
        self._warm_runs += 1
        return value

    def _run(self, *inputs: Any) -> Tensor:
        if not self.reason:
            self._look_at_constants()
        self.step.fill(*inputs)
        if self._graph is None:
            self.step.compute()
        elif self._is_compared:
            self._replay()
        else:
            self._replay_and_compare()
        self.step.finish()
        value = self.step.results[0].clone()
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
