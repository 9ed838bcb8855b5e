"""Variants of a model or a step on an accelerator: copied to it, recorded as one graph, and compiled.

A call copies its inputs to the memory where they are read; no later call overwrites its outputs. Such calls are timed,
with example inputs in the accelerator's memory.
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gst.execution.costs import NewGraph, one_graph
from gst.execution.lane_graphs import DRAWS_ON_HOST, Resident, draws_on_host
from gst.lowering.calls import copied, module_on
from gst.machine.devices import Device
from gst.programs import Program, Step
from gst.programs.operation import opened, tensors_of
from gst.util.recording import is_here
from gst.whole_model.choosing import SEED, Subject
from gst.whole_model.comparing import DRAWS, Guard, difference
from gst.whole_model.variants import (
    COMPILED,
    MODE,
    ONE_GRAPH,
    PYTORCH,
    Function,
    Variant,
    all_compiled_kept,
    as_written,
    compiled_step,
    with_strides_of,
)  # fmt: skip

VARIANTS = (Variant(PYTORCH), Variant(ONE_GRAPH), Variant(COMPILED), Variant(COMPILED, mode=MODE))
"""Variants on an accelerator, the simplest first."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """Inputs of a call, which stay in a device's memory as long as this object is referenced."""

    values: tuple[Any, ...]


class DeviceCopy:
    """A model or a step on a device: itself if it is there, otherwise a copy whose weights follow those of the model.
    All variants share the copy and the memory of the inputs.

    Args:
        model: a model in the mode in which it is to run, or a step.
        inputs: of its calls, on any device.
        device: an accelerator of this process.
        program: of a step, as captured.
        graph: makes an empty graph; see `gst.execution.costs.graph_maker`.

    Raises:
        ValueError: it changes its buffers when it runs, which a copy cannot do for it.
        Exception: any exception of an operation, or where memory is short.

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
        self._lock, self._is_accelerator = threading.RLock(), is_here(device)  # a model may call its own placed form
        self._done: torch.Event | None = None  # the end of the previous call
        self._leaves, self._spec = pytree.tree_flatten(tuple(inputs))
        self._residents = [Resident(each, device, True) if isinstance(each, Tensor) else None for each in self._leaves]
        self._callers: weakref.ref[Inputs] | None = None
        if isinstance(model, nn.Module) and _is_on(device, model):
            self._own = _tensors(model)
        elif isinstance(model, nn.Module):
            self._model = _copied(model, device)
            self._sources, self._copies = _tensors(model), _tensors(self._model)
            assert len(self._sources) == len(self._copies), "a copy has other weights than its model"
        self._states = list(map(_state, self._sources))
        self._memory = [each.detach() for each in self._sources]  # kept, so that no other weight gets its address
        self._addresses = list(map(Tensor.data_ptr, self._own))
        before = [each._version for each in self._copies if not each.is_inference()]
        self._context: torch.device | None = None
        try:
            self.eager(*self.examples())
        except (RuntimeError, ValueError, TypeError):
            self._context = device  # for tensors that it makes without naming a device
            self.eager(*self.examples())
        if [each._version for each in self._copies if not each.is_inference()] != before:
            raise ValueError("it changes its buffers when it runs: move it to the accelerator before it is placed")
        self._record_done()

    def eager(self, *inputs: Any) -> Any:
        """Run it as written for inputs on the device, without gradients."""
        with self._context or nullcontext():
            return as_written(self._model, inputs)

    def examples(self) -> tuple[Any, ...]:
        """Return the example inputs on the device as new tensors, in the memory that all variants share: calls
        overwrite them."""
        with torch.no_grad():
            for each in filter(None, self._residents):
                each.hold_example()
        pairs = zip(self._leaves, self._residents, strict=True)
        values = [leaf if each is None else each.value.detach() for leaf, each in pairs]
        return tuple(pytree.tree_unflatten(values, self._spec))

    def callers_examples(self) -> Inputs:
        """Return the example inputs on the device as a caller holds them, in memory that lasts while they are timed."""
        inputs = None if self._callers is None else self._callers()
        if inputs is None:
            values = [_moved(each, self.device) if isinstance(each, Tensor) else each for each in self._leaves]
            inputs = Inputs(pytree.tree_unflatten(values, self._spec))
            self._callers = weakref.ref(inputs)
        return inputs

    def hold(self, inputs: Sequence[Any]) -> None:
        """Copy all inputs to the shared memory: PyTorch does not count every write, as by NumPy or another graph."""
        with torch.no_grad():
            for value, each in zip(self._spec.flatten_up_to(tuple(inputs)), self._residents, strict=True):
                if each is not None:
                    each.hold(value, is_steady=False)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Run a call with the current weights, after calls of other threads and streams: all use the same memory."""
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
        """Copy the weights that were written to or replaced since the last call."""
        now = list(map(_state, self._sources))
        if now == self._states:
            return
        with torch.no_grad():
            for number, (source, state) in enumerate(zip(self._sources, now, strict=True)):
                if state != self._states[number]:
                    self._copies[number].copy_(source)
                    self._memory[number] = source.detach()
        self._states = now

    def has_moved(self) -> bool:
        """True if weights of a model that is no copy have other memory now, as after `model.half()`; graphs read the
        former one."""
        return list(map(Tensor.data_ptr, self._own)) != self._addresses

    def run(self, variant: Variant) -> Function:
        """Return a function that runs a variant, called with inputs on any device.

        Raises:
            Exception: any exception of a compiler, or of an operation that cannot be recorded.
        """
        if variant.kind == PYTORCH:
            return OnInputs(self, self.eager)
        if variant.kind == ONE_GRAPH:
            if self._program is not None and draws_on_host(self._program):
                raise ValueError(DRAWS_ON_HOST)
            recorded = OnStaticInputs(self, self.eager)
            with torch.inference_mode(False):  # its outputs are written to in any mode
                recorded.again = one_graph(recorded.again, self.device, self._graph)
            return recorded
        compiled = self._compiled(variant.mode)
        if not variant.mode:
            compiled(*self.examples())
            return OnInputs(self, compiled)
        run = OnStaticInputs(self, compiled)
        for each in tensors_of(run.inputs):
            torch._dynamo.mark_static_address(each)  # otherwise each run copies all of them
        run.again()
        return run

    def refused(self, guard: Guard) -> Function:
        """Return a function that runs a call that a guard refuses, as written on the device. The model itself runs
        where more than its weights changed, or where an input requires a gradient."""
        model = self._original

        def run(*inputs: Any) -> Any:
            if isinstance(model, nn.Module) and (guard.change() or _wants_gradients(inputs)):
                return model(*inputs)
            with self.turn():
                return self.eager(*to_device(inputs, self.device))

        return run

    def _compiled(self, mode: str) -> Function:
        compiled_by, program = partial(torch.compile, mode=mode or "default", dynamic=False), self._program
        context = self._context
        if isinstance(self._model, Step):
            assert program is not None, "a step is compiled as captured"
            context = None  # its program names every device
            function = compiled_step(program, self.examples(), compiled_by(module_on(program, self.device)))
        else:
            function = with_strides_of(self.examples(), compiled_by(self._model))

        def run(*inputs: Any) -> Any:
            with torch.no_grad(), context or nullcontext(), all_compiled_kept():
                return function(*inputs)

        return run


class OnInputs:
    """Runs a function of inputs on the device of a copy."""

    def __init__(self, model: DeviceCopy, function: Function) -> None:
        self._model, self._function = model, function
        self.examples = model.callers_examples

    def __call__(self, *inputs: Any) -> Any:
        with self._model.turn():
            return self._function(*to_device(inputs, self._model.device))


class OnStaticInputs:
    """Runs a function on the shared memory, where graphs read their inputs, and copies its outputs.

    Attributes:
        inputs: in that memory.
        again: runs the function on them.
    """

    def __init__(self, model: DeviceCopy, function: Function) -> None:
        self._model, self.inputs = model, model.examples()
        self.examples = model.callers_examples
        self.again: Callable[[], Any] = partial(function, *self.inputs)

    def __call__(self, *inputs: Any) -> Any:
        model = self._model
        with model.turn():
            if model.has_moved():
                return model.eager(*to_device(inputs, model.device))
            model.hold(inputs)
            with torch.no_grad():
                return pytree.tree_map_only(Tensor, Tensor.clone, opened(self.again()))


def to_device(inputs: Sequence[Any], device: torch.device) -> Any:
    """Move the tensors of the inputs to a device, without gradients."""
    return pytree.tree_map_only(Tensor, lambda each: each.detach().to(device), tuple(inputs))


def first_accelerator(devices: Sequence[Device]) -> torch.device | None:
    """Return the first accelerator among devices, where whole-model variants run; None if there is none."""
    return next((each.torch_device for each in devices if each.is_accelerator), None)


def subject_on_accelerator(
    model: nn.Module | Step, inputs: Sequence[Any], device: torch.device, program: Program | None = None,
    graph: NewGraph | None = None,
) -> Subject:  # fmt: skip
    """Return the variants of a model or a step on an accelerator.

    Args:
        model, inputs, device, program, graph: see `DeviceCopy`.

    Raises:
        Exception: it does not run on the accelerator as written.

    Examples:
        >>> from gst.whole_model.choosing import tried
        >>> result = tried(subject_on_accelerator(nn.ReLU(), (torch.ones(2),), torch.device("cpu")), compiled=False)
        >>> list(result.runs), result.reasons["one graph"]
        (['pytorch'], 'ValueError: graphs are recorded on an accelerator; this runs on cpu')
    """
    on_device = DeviceCopy(model, inputs, device, program, graph)
    draws = 0 if isinstance(model, Step) else DRAWS  # random inputs would be no state of an optimiser
    wrong = lambda run: difference(run, on_device.eager, on_device.examples(), SEED, draws)  # noqa: E731
    function = model if isinstance(model, nn.Module) else model.function
    guard = Guard(function, inputs, weights=False, any_device=True)
    return Subject(on_device.refused(guard), inputs, VARIANTS, on_device.run, wrong, lambda variant: guard)


def give_back(device: torch.device) -> None:
    """Release the cached memory of an accelerator for another process, which runs plans there."""
    if is_here(device):
        torch.accelerator.empty_cache()


def _moved(value: Tensor, device: torch.device) -> Tensor:
    """Copy an example to a device, in the layout and with the gradients that a guard compares."""
    moved = value.detach() if value.device == device else copied(value.detach(), device)
    return moved.requires_grad_(value.requires_grad)


def _copied(model: nn.Module, device: torch.device) -> nn.Module:
    """Copy a model to a device; a weight that several modules share is copied once."""
    memo: dict[int, Any] = {}
    with torch.inference_mode(False):  # a caller of the copy may be in another mode
        for each in _tensors(model):
            if type(each) in (Tensor, nn.Parameter):  # tensors of other classes copy themselves
                value = each.detach().to(device, copy=True)
                memo[id(each)] = nn.Parameter(value, each.requires_grad) if type(each) is nn.Parameter else value
        return copy.deepcopy(model, memo).to(device)


def _is_on(device: torch.device, model: nn.Module) -> bool:
    return all(each.device == device for each in _tensors(model))


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def _state(value: Tensor) -> tuple[int, int]:
    """Return the version and the address of a tensor; one of them changes when it is written to or replaced."""
    return -1 if value.is_inference() else value._version, value.data_ptr()  # inference tensors have no version


def _wants_gradients(inputs: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(each.requires_grad for each in tensors_of(inputs))
