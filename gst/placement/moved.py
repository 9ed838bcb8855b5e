"""A model or a step run whole on an accelerator, beside plans there: moved, recorded as one graph, and compiled.

Users of a GPU compare a plan with these. What they place may lie on the host: then a copy of it lies on the
accelerator, whose weights follow those of the model. Ways are timed on example inputs that lie there, as plans are; a
call brings its own inputs there, and leaves outputs there, as plans do.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gst.devices import Device
from gst.devices.execute.calls import laid_out
from gst.devices.execute.lanes import is_here
from gst.devices.execute.on_accelerator import module_on, one_graph
from gst.devices.execute.plain import COMPILED, PYTORCH
from gst.devices.execute.residents import Resident
from gst.devices.execute.spans import NewGraph
from gst.placement.choosing import SEED, Candidates, Subject, tried
from gst.placement.guards import Guard
from gst.placement.whole import ONE_GRAPH, Function, Way, as_written, difference
from gst.process.progress import Progress, no_progress
from gst.programs import Program, Step, differ_beyond_rounding

WAYS = (
    Way(PYTORCH), Way(ONE_GRAPH), Way(COMPILED), Way(COMPILED, mode="reduce-overhead"),
    Way(COMPILED, mode="max-autotune"),
)  # fmt: skip
"""Those that users of an accelerator know, the simplest first."""


class Moved:
    """A model or a step on a device: itself if it lies there, otherwise a copy.

    Args:
        model: a model in the mode in which it is to run, or a step.
        inputs: what it is called with, on any device.
        device: an accelerator of this process.
        program: of a step, as captured.
        graph: makes an empty graph; see `gst.devices.execute.spans.graph_maker`.

    Attributes:
        examples: the inputs on the device.

    Raises:
        ValueError: it changes its buffers when it runs, which a copy cannot do for it.
        Exception: whatever an operation raises that cannot run there, or where memory is short.

    Examples:
        >>> model = nn.Linear(2, 3).to("meta")
        >>> there = Moved(nn.Linear(2, 3), (torch.ones(1, 2),), torch.device("meta"))
        >>> there.eager(*there.examples).device
        device(type='meta')
    """

    def __init__(
        self, model: nn.Module | Step, inputs: Sequence[Any], device: torch.device, program: Program | None = None,
        graph: NewGraph | None = None,
    ) -> None:  # fmt: skip
        self.device, self.examples = device, brought(inputs, device)
        self._program, self._graph, self._model = program, graph, model
        self._sources: list[Tensor] = []
        self._copies: list[Tensor] = []
        self._own: list[Tensor] = []
        if isinstance(model, nn.Module) and _lies_on(device, model):
            self._own = _tensors(model)
        elif isinstance(model, nn.Module):
            self._model = copy.deepcopy(model).to(device)
            self._sources, self._copies = _tensors(model), _tensors(self._model)
        self._states = list(map(_state, self._sources))
        self._addresses = list(map(Tensor.data_ptr, self._own))
        before = [each._version for each in self._copies if not each.is_inference()]
        self._context: torch.device | None = None
        try:
            self.eager(*self.examples)
        except (RuntimeError, ValueError, TypeError):
            self._context = device  # for tensors that it makes where it does not say
            self.eager(*self.examples)
        if [each._version for each in self._copies if not each.is_inference()] != before:
            raise ValueError("it changes its buffers when it runs: move it there before it is placed")

    def eager(self, *inputs: Any) -> Any:
        """What it returns for inputs on the device, without gradients."""
        with self._context or nullcontext():
            return as_written(self._model, inputs)

    def follow(self) -> None:
        """Copy the weights that were written to since, or lie elsewhere now."""
        now = list(map(_state, self._sources))
        if now == self._states:
            return
        with torch.no_grad():
            for source, mine, state, before in zip(self._sources, self._copies, now, self._states, strict=True):
                if state != before:
                    mine.copy_(source)
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
            return _Direct(self, self.eager)
        if way.kind == ONE_GRAPH:
            held = _Held(self, self.eager)
            held.again = one_graph(held.again, self.device, self._graph)
            return held
        compiled = self._compiled(way.mode)
        if way.mode:
            held = _Held(self, compiled)
            for each in held.residents:
                if each is not None:
                    torch._dynamo.mark_static_address(each.value)  # else each run copies all of them
            held.again()
            return held
        compiled(*self.examples)
        return _Direct(self, compiled)

    def _compiled(self, mode: str) -> Function:
        compiled_by = partial(torch.compile, mode=mode or "default", dynamic=False)
        if isinstance(self._model, Step):
            return _compiled_step(self._program, self.examples, compiled_by, self.device)
        function = compiled_by(self._model)

        def run(*inputs: Any) -> Any:
            with torch.no_grad(), self._context or nullcontext():
                return function(*inputs)

        return run


class _Direct:
    """Runs a function of inputs on a device."""

    def __init__(self, moved: Moved, function: Function) -> None:
        self._moved, self._function = moved, function

    def __call__(self, *inputs: Any) -> Any:
        self._moved.follow()
        return self._function(*brought(inputs, self._moved.device))

    def on_examples(self) -> Any:
        return self._function(*self._moved.examples)


class _Held:
    """Runs a function on memory that stays, where graphs read their inputs. Outputs are copied: the next run overwrites
    them.

    Attributes:
        residents: memory of each leaf of the inputs, None for what is no tensor.
        again: runs the function on what lies there.
    """

    def __init__(self, moved: Moved, function: Function) -> None:
        leaves, self._spec = pytree.tree_flatten(moved.examples)
        self._moved = moved
        self._is_steady = isinstance(moved._model, Step)  # parameters are among its inputs
        self.residents = [Resident(each, moved.device, True) if isinstance(each, Tensor) else None for each in leaves]
        values = [leaf if each is None else each.value for leaf, each in zip(leaves, self.residents, strict=True)]
        self.again: Callable[[], Any] = partial(function, *pytree.tree_unflatten(values, self._spec))

    def __call__(self, *inputs: Any) -> Any:
        self._moved.follow()
        if self._moved.lies_elsewhere():
            return self._moved.eager(*brought(inputs, self._moved.device))
        with torch.no_grad():
            for given, each in zip(self._spec.flatten_up_to(inputs), self.residents, strict=True):
                if each is not None:
                    each.hold(given, self._is_steady)
            return pytree.tree_map_only(Tensor, Tensor.clone, self.again())

    def on_examples(self) -> Any:
        with torch.no_grad():
            return self.again()


def first_accelerator(devices: Sequence[Device]) -> torch.device | None:
    """Where a model is run whole beside plans for these devices; None if they are the CPU's.

    Examples:
        >>> first_accelerator([Device("cpu:0", "cpu", (0,), 1, "host", "example")]) is None
        True
    """
    return next((each.torch_device for each in devices if each.is_accelerator), None)


def brought(inputs: Sequence[Any], device: torch.device) -> tuple[Any, ...]:
    """The inputs with their tensors on a device, without gradients."""
    brought: tuple[Any, ...] = pytree.tree_map_only(Tensor, lambda each: each.detach().to(device), tuple(inputs))
    return brought


def candidates_there(
    model: nn.Module | Step, inputs: Sequence[Any], device: torch.device, seconds: float = math.inf,
    compiled: bool = True, progress: Progress = no_progress, program: Program | None = None,
    graph: NewGraph | None = None,
) -> Candidates:  # fmt: skip
    """Make the ways to run a model or a step whole on an accelerator and look at each, see
    `gst.placement.choosing.tried`.

    Args:
        model, inputs, device, program, graph: see `Moved`.

    Raises:
        Exception: it does not run there as written.

    Examples:
        >>> found = candidates_there(nn.ReLU(), (torch.ones(2),), torch.device("cpu"), compiled=False)
        >>> list(found.runs), found.reasons["one graph"]
        (['pytorch'], 'ValueError: graphs are recorded on an accelerator; this runs on cpu')
    """
    moved = Moved(model, inputs, device, program, graph)
    is_step = isinstance(model, Step)
    want = pytree.tree_leaves(moved.eager(*moved.examples)) if is_step else []

    def wrong(run: Function) -> str | None:
        if not is_step:
            return difference(run, moved.eager, moved.examples, SEED)
        got = pytree.tree_leaves(run(*moved.examples))  # others would be no state of an optimiser
        return differ_beyond_rounding(got, want, lambda given: moved.eager(*given), moved.examples)

    guard = Guard(None if is_step else model, inputs, weights=False)  # type: ignore[arg-type]
    function: Function = model.function if isinstance(model, Step) else model
    return tried(Subject(function, inputs, WAYS, moved.run, wrong, lambda way: guard), seconds, compiled, progress)


def give_back(device: torch.device) -> None:
    """Give memory that is cached back to an accelerator: another process runs plans there."""
    if is_here(device):
        torch.accelerator.empty_cache()


def _compiled_step(
    program: Program | None, inputs: Sequence[Any], compiled_by: Callable[[nn.Module], Function], device: torch.device
) -> Function:
    assert program is not None, "a step is compiled as captured"
    module, read = compiled_by(module_on(program, device)), Guard(None, inputs, weights=False).leaves

    def run(*given: Any) -> Any:
        with torch.no_grad():
            tensors = [laid_out(each, like) for each, like in zip(read(given), program.inputs, strict=True)]
            return program.unflatten(list(module(*tensors)))

    return run


def _lies_on(device: torch.device, model: nn.Module) -> bool:
    return all(each.device == device for each in _tensors(model))


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def _state(value: Tensor) -> tuple[int, int]:
    """Another one if the tensor was written to (`_version`, which tensors of inference mode do not have) or lies
    elsewhere."""
    return -1 if value.is_inference() else value._version, value.data_ptr()
