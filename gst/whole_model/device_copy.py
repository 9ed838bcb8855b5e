"""A model or a step run whole on an accelerator, beside its plans: copied to it, recorded as one graph, and compiled.

Users of a GPU compare a plan with these. What they place may lie on the host: then a copy of it lies on the
accelerator, whose weights follow those of the model. A call copies its inputs to where they are read, and leaves
outputs on the accelerator, as plans do (`gst.whole_model.device_calls`). Such calls are what is timed, with example
inputs in the accelerator's memory.
"""

from __future__ import annotations

import copy
import math
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gst.execution.lane_graphs import DRAWS_ON_HOST, draws_on_host
from gst.execution.lanes import is_here
from gst.execution.on_accelerator import one_graph
from gst.execution.plain import COMPILED, PYTORCH
from gst.execution.residents import Resident
from gst.execution.spans import NewGraph
from gst.lowering.calls import copied
from gst.machine.devices import Device
from gst.programs import Program, Step, differ_beyond_rounding
from gst.util.progress import Progress, no_progress
from gst.whole_model.choosing import SEED, Candidates, Subject, tried
from gst.whole_model.device_calls import OnInputs, OnStaticInputs, all_kept, compiled_step, to_device
from gst.whole_model.guards import Guard
from gst.whole_model.whole import ONE_GRAPH, Function, Inputs, Way, as_written, difference, with_strides_of

WAYS = (
    Way(PYTORCH), Way(ONE_GRAPH), Way(COMPILED), Way(COMPILED, mode="reduce-overhead"),
    Way(COMPILED, mode="max-autotune"),
)  # fmt: skip
"""Those that users of an accelerator know, the simplest first."""


class DeviceCopy:
    """A model or a step on a device: itself if it lies there, otherwise a copy.

    All ways to run it share the copy and the memory of the inputs. A step whose random numbers depend on a seed draws
    them so in every way, when it is timed, too: `gst place` times such a step with the generator of the process.

    Args:
        model: a model in the mode in which it is to run, or a step.
        inputs: what it is called with, on any device.
        device: an accelerator of this process.
        program: of a step, as captured.
        graph: makes an empty graph; see `gst.execution.spans.graph_maker`.

    Raises:
        ValueError: it changes its buffers when it runs, which a copy cannot do for it.
        Exception: whatever an operation raises that cannot run on the device, or where memory is short.

    Examples:
        >>> on_meta = DeviceCopy(nn.Linear(2, 3), (torch.ones(1, 2),), torch.device("meta"))
        >>> on_meta.eager(*on_meta.examples()).device
        device(type='meta')
    """

    def __init__(
        self, model: nn.Module | Step, inputs: Sequence[Any], device: torch.device, program: Program | None = None,
        graph: NewGraph | None = None,
    ) -> None:  # fmt: skip
        self.device, self._original = device, model
        self._program, self._graph, self._model = program, graph, model
        self._sources: list[Tensor] = []
        self._copies: list[Tensor] = []
        self._own: list[Tensor] = []
        self._lock, self._is_accelerator = threading.Lock(), is_here(device)
        self._done: torch.Event | None = None  # behind the call before
        self._leaves, self._spec = pytree.tree_flatten(tuple(inputs))
        self._residents = [Resident(each, device, True) if isinstance(each, Tensor) else None for each in self._leaves]
        self._holds_examples = True
        self._given: weakref.ref[Inputs] | None = None
        if isinstance(model, nn.Module) and _lies_on(device, model):
            self._own = _tensors(model)
        elif isinstance(model, nn.Module):
            self._model = _copied(model, device)
            self._sources, self._copies = _tensors(model), _tensors(self._model)
            assert len(self._sources) == len(self._copies), "a copy has other weights than its model"
        self._states = list(map(_state, self._sources))
        self._memory = [each.detach() for each in self._sources]  # held, so that no other weight can lie where it does
        self._addresses = list(map(Tensor.data_ptr, self._own))
        before = [each._version for each in self._copies if not each.is_inference()]
        self._context: torch.device | None = None
        try:
            self.eager(*self.examples())
        except (RuntimeError, ValueError, TypeError):
            self._context = device  # for tensors that it makes where it does not say
            self.eager(*self.examples())
        if [each._version for each in self._copies if not each.is_inference()] != before:
            raise ValueError("it changes its buffers when it runs: move it to the accelerator before it is placed")
        self._record_done()

    def eager(self, *inputs: Any) -> Any:
        """What it returns for inputs on the device, without gradients."""
        with self._context or nullcontext():
            return as_written(self._model, inputs)

    def examples(self) -> tuple[Any, ...]:
        """The example inputs on the device, in the memory that all ways share: calls overwrite them."""
        self.hold_examples()
        return self.static_inputs()

    def static_inputs(self) -> tuple[Any, ...]:
        """Inputs in the memory that all ways share, as tensors of the caller's own."""
        pairs = zip(self._leaves, self._residents, strict=True)
        values = [leaf if each is None else each.value.detach() for leaf, each in pairs]
        return tuple(pytree.tree_unflatten(values, self._spec))

    def given_examples(self) -> Inputs:
        """The example inputs on the device, as callers have them there: in memory that lasts while somebody times."""
        given = None if self._given is None else self._given()
        if given is None:
            values = [_there(each, self.device) if isinstance(each, Tensor) else each for each in self._leaves]
            given = Inputs(pytree.tree_unflatten(values, self._spec))
            self._given = weakref.ref(given)
        return given

    def hold_examples(self) -> None:
        """Copy the example inputs to that memory, unless it holds them."""
        if not self._holds_examples:
            with torch.no_grad():
                for each in self._residents:
                    if each is not None:
                        each.hold_example()
        self._holds_examples = True

    def hold(self, inputs: Sequence[Any]) -> None:
        """Copy inputs to that memory. All of them each time: what is written to them is not always counted, as by NumPy
        or by another graph."""
        self._holds_examples = False
        with torch.no_grad():
            for value, each in zip(self._spec.flatten_up_to(tuple(inputs)), self._residents, strict=True):
                if each is not None:
                    each.hold(value, is_steady=False)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """A call, with the weights of now. Calls of other threads wait, and work on other streams is waited for: all
        calls use the same memory."""
        with self._lock:
            if self._done is not None:
                torch.accelerator.current_stream(self.device).wait_event(self._done)
            try:
                self.follow()
                yield
            finally:
                self._record_done()

    def _record_done(self) -> None:
        if self._is_accelerator:
            self._done = torch.accelerator.current_stream(self.device).record_event()

    def follow(self) -> None:
        """Copy the weights that were written to since, or lie elsewhere now."""
        now = list(map(_state, self._sources))
        if now == self._states:
            return
        with torch.no_grad():
            for number, (source, state) in enumerate(zip(self._sources, now, strict=True)):
                if state != self._states[number]:
                    self._copies[number].copy_(source)
                    self._memory[number] = source.detach()
        self._states = now

    def lies_elsewhere(self) -> bool:
        """Whether weights of a model that is no copy have other memory now, as after `model.half()`: graphs read that
        of before."""
        return list(map(Tensor.data_ptr, self._own)) != self._addresses

    def run(self, way: Way) -> Function:
        """What runs it that way, called with inputs on any device.

        Raises:
            Exception: whatever a compiler raises, or an operation that cannot be recorded.
        """
        if way.kind == PYTORCH:
            return OnInputs(self, self.eager)
        if way.kind == ONE_GRAPH:
            if self._program is not None and draws_on_host(self._program):
                raise ValueError(DRAWS_ON_HOST)
            self.hold_examples()
            recorded = OnStaticInputs(self, self.eager)
            with torch.inference_mode(False):  # its outputs are written to in any mode
                recorded.again = one_graph(recorded.again, self.device, self._graph)
            return recorded
        compiled = self._compiled(way.mode)
        if not way.mode:
            compiled(*self.examples())
            return OnInputs(self, compiled)
        self.hold_examples()
        run = OnStaticInputs(self, compiled)
        for each in pytree.tree_leaves(run.inputs):
            if isinstance(each, Tensor):
                torch._dynamo.mark_static_address(each)  # else each run copies all of them
        run.again()
        return run

    def refused(self, guard: Guard) -> Function:
        """What runs a call that a guard refuses: as written on the device, as other calls are. The model itself runs
        where it was changed otherwise than in its weights, or where an input requires a gradient."""
        model = self._original

        def run(*inputs: Any) -> Any:
            if isinstance(model, nn.Module) and (guard.change() or _wants_gradients(inputs)):
                return model(*inputs)
            with self.turn():
                return self.eager(*to_device(inputs, self.device))

        return run

    def _compiled(self, mode: str) -> Function:
        compiled_by = partial(torch.compile, mode=mode or "default", dynamic=False)
        if isinstance(self._model, Step):
            return compiled_step(self._program, self.examples(), compiled_by, self.device)
        function = with_strides_of(self.static_inputs(), compiled_by(self._model))

        def run(*inputs: Any) -> Any:
            with torch.no_grad(), self._context or nullcontext(), all_kept():
                return function(*inputs)

        return run


def first_accelerator(devices: Sequence[Device]) -> torch.device | None:
    """Where a model is run whole beside plans for these devices; None if they are the CPU's.

    Examples:
        >>> first_accelerator([Device("cpu:0", "cpu", (0,), 1, "host", "example")]) is None
        True
    """
    return next((each.torch_device for each in devices if each.is_accelerator), None)


def candidates_on_accelerator(
    model: nn.Module | Step, inputs: Sequence[Any], device: torch.device, seconds: float = math.inf,
    compiled: bool = True, progress: Progress = no_progress, program: Program | None = None,
    graph: NewGraph | None = None,
) -> Candidates:  # fmt: skip
    """Make the ways to run a model or a step whole on an accelerator and look at each, see
    `gst.whole_model.choosing.tried`.

    Args:
        model, inputs, device, program, graph: see `DeviceCopy`.

    Raises:
        Exception: it does not run on the accelerator as written.

    Examples:
        >>> result = candidates_on_accelerator(nn.ReLU(), (torch.ones(2),), torch.device("cpu"), compiled=False)
        >>> list(result.runs), result.reasons["one graph"]
        (['pytorch'], 'ValueError: graphs are recorded on an accelerator; this runs on cpu')
    """
    on_device = DeviceCopy(model, inputs, device, program, graph)
    is_step = isinstance(model, Step)
    want = pytree.tree_leaves(on_device.eager(*on_device.examples())) if is_step else []

    def wrong(run: Function) -> str | None:
        if not is_step:
            return difference(run, on_device.eager, on_device.examples(), SEED)
        got = pytree.tree_leaves(run(*inputs))  # others would be no state of an optimiser
        return differ_beyond_rounding(got, want, lambda moved: on_device.eager(*moved), on_device.examples())

    guard = Guard(None if is_step else model, inputs, weights=False, any_device=True)  # type: ignore[arg-type]
    subject = Subject(on_device.refused(guard), inputs, WAYS, on_device.run, wrong, lambda way: guard)
    return tried(subject, seconds, compiled, progress)


def give_back(device: torch.device) -> None:
    """Give memory that is cached back to an accelerator: another process runs plans there."""
    if is_here(device):
        torch.accelerator.empty_cache()


def _there(value: Tensor, device: torch.device) -> Tensor:
    """An example on a device, in the layout and with the gradients for which calls are compared."""
    there = value.detach() if value.device == device else copied(value.detach(), device)
    return there.requires_grad_(value.requires_grad)


def _copied(model: nn.Module, device: torch.device) -> nn.Module:
    """A copy of a model on a device. Weights are copied once, so that those of several modules stay one."""
    memo: dict[int, Any] = {}
    with torch.inference_mode(False):  # who calls the copy need not be in that mode
        for each in _tensors(model):
            if type(each) in (Tensor, nn.Parameter):  # tensors of other classes know how they are copied
                value = each.detach().to(device, copy=True)
                memo[id(each)] = nn.Parameter(value, each.requires_grad) if type(each) is nn.Parameter else value
        return copy.deepcopy(model, memo).to(device)


def _lies_on(device: torch.device, model: nn.Module) -> bool:
    return all(each.device == device for each in _tensors(model))


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def _state(value: Tensor) -> tuple[int, int]:
    """Another one if the tensor was written to (`_version`, which tensors of inference mode do not have) or lies
    elsewhere."""
    return -1 if value.is_inference() else value._version, value.data_ptr()


def _wants_gradients(inputs: Sequence[Any]) -> bool:
    tensors = [each for each in pytree.tree_leaves(list(inputs)) if isinstance(each, Tensor)]
    return torch.is_grad_enabled() and any(each.requires_grad for each in tensors)
