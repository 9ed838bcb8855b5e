"""Work of fixed shapes that runs again and again, on an accelerator by one call that launches a recorded graph."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from gst.util.recording import WARM_RUNS, Graph, is_here, new_graph, no_garbage, recorded
from gst.util.untrusted import first_line

Step = TypeVar("Step", bound=Any)
TOLERANCE = 0.02  # of sums in another order, also of short numbers


class Recorded(Generic[Step]):
    """Runs steps: `WARM_RUNS` steps run eagerly, the last of these is also recorded, and the recording is replayed for
    all later ones.

    Replays 1, 2, 4, 8, ... are compared with the same step computed eagerly, unless the step holds an optimizer. If
    results or gradients differ by more than `TOLERANCE`, the recording holds something that changes from step to step,
    and all steps run eagerly from then on.

    A recording holds numbers of the optimizer (a learning rate, unless it is a tensor as with `capturable=True`), the
    dtype of autocast, addresses of parameters and buffers, and which of them and of the modules are trained. When one
    of these changes, the step is recorded anew; if it is one of the model, after further eager steps.

    Args:
        step: `fill(*inputs)` copies inputs to where `compute()` reads them, which is recorded, and `finish()` does what
            is not recorded. `results` is a tuple of tensors; `optimizer` is None, or changes the parameters of
            `model`, a `GraphSegmentTraining`. `places()` are settings, and addresses of whatever else it reads;
            `undo()` returns what takes back what a later `compute()` writes there. An example is `FixedStep`.
        graph: makes an empty graph, see `gst.util.recording.new_graph`.
        is_recorded: whether to record at all; where the model is on an accelerator of this process if None.

    Attributes:
        reason: why all steps from now on run eagerly; empty if they are, or will be, replays.
    """

    def __init__(
        self, step: Step, graph: Callable[[torch.device], Graph] = new_graph, is_recorded: bool | None = None
    ) -> None:
        self.step, self._new_graph = step, graph
        device = step.model.like().device
        self._device = device
        self._stream = torch.Stream(device) if is_here(device) else None
        self._recording: Recording | None = None
        self._warm_runs = self._replays = 0
        self._numbers, self._places = list[dict[str, Any]](), list[Any]()
        wanted = is_here(device) if is_recorded is None else is_recorded
        self.reason = "" if wanted else f"graphs are recorded on an accelerator; the model is on {device}"

    @torch.compiler.disable
    def run(self, *inputs: Any) -> Tensor:
        """Fill the step with these inputs, take it, and return its first result. The host waits where it compares."""
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
        if self._recording is None:
            self.step.compute()
        else:
            self._replays += 1
            is_compared = self.step.optimizer is None and self._replays & (self._replays - 1) == 0
            (self._replay_and_compare if is_compared else self._replay)(self._recording)
        self.step.finish()
        value = self.step.results[0].clone()
        if not self.reason and self._recording is None and self._warm_runs + 1 >= WARM_RUNS:
            self._record()
        return value

    def _replay(self, recording: Recording) -> None:
        recording.graph.replay()
        self.step.results = recording.results
        _give(self.step.model, recording.gradients)

    def _replay_and_compare(self, recording: Recording) -> None:
        """Replay a step, undo it, and compute it with the same random numbers. A recording that computes something else
        is dropped, and so is one that leaves no memory for an eager step, which raises OutOfMemoryError."""
        step, buffers = self.step, list(self.step.model.buffers())
        undo, before = step.undo(), [each.clone() for each in buffers]
        devices, kind = ([self._device], self._device.type) if self._stream else ([], None)

        def begin_again() -> None:
            undo()
            for each, value in zip(buffers, before, strict=True):
                each.copy_(value)

        with torch.random.fork_rng(devices, device_type=kind):
            self._replay(recording)
        begin_again()
        try:
            step.compute()
        except torch.OutOfMemoryError as error:
            begin_again()
            self._recording, self.reason = None, first_line(error)
            raise
        ours = [*([each] for each in recording.results), recording.gradients]
        theirs = [*([each] for each in step.results), gradients_of(step.model)]
        if not all(map(_alike, ours, theirs)):
            self._recording, self.reason = None, "a replay computes something else than the step that was recorded"

    def _look_at_constants(self) -> None:
        """Drop the graph if something has changed that it holds as a constant; new tensors need warm runs, too."""
        kind = self._device.type
        short = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        if (numbers := [*optimizer_numbers(self.step.optimizer), {"autocast": short}]) != self._numbers:
            self._recording, self._numbers = None, numbers
        if (places := [*model_places(self.step.model), self.step.places()]) != self._places:
            self._recording, self._places, self._warm_runs = None, places, 0

    def _record(self) -> None:
        """Record the arithmetic of the step that was computed last; recording launches nothing."""
        if self._stream is not None:
            self._stream.synchronize()
        gradients = gradients_of(self.step.model)
        try:
            graph = self._new_graph(self._device)
            with no_garbage(), recorded(graph):
                self.step.compute()
        except Exception as error:  # whatever an encoder does that a graph cannot
            self.reason = first_line(error)
        else:
            self._recording = Recording(graph, self.step.results, gradients_of(self.step.model))
            self._replays = 0
        _give(self.step.model, gradients)


class Recording(NamedTuple):
    """A graph, and the results and gradients that a replay writes."""

    graph: Graph
    results: Any
    gradients: list[Tensor | None]


def gradients_of(model: nn.Module) -> list[Tensor | None]:
    """Return the present gradient of each parameter."""
    return [parameter.grad for parameter in model.parameters()]


def _give(model: nn.Module, gradients: list[Tensor | None]) -> None:
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient


def _alike(ours: list[Tensor | None], theirs: list[Tensor | None]) -> bool:
    """True if the same tensors are there, and differ together by at most `TOLERANCE` of their norm; NaN equals NaN."""
    if [each is None for each in ours] != [each is None for each in theirs]:
        return False
    here, there = ([each.float().nan_to_num() for each in many if each is not None] for many in (ours, theirs))
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
