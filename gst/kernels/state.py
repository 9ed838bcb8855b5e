"""Training steps that renew their state where it lies: nothing of it is copied from step to step.

The compiled function ends with `old.copy_(new)` for each tensor of the state, and Inductor writes the new value from
the kernel that computes it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from gst.execution.on_accelerator import module_on
from gst.kernels.program import KernelProgram
from gst.kernels.recording import NotUnderstoodError, kernel_program
from gst.kernels.run import Run
from gst.lowering.calls import HOST
from gst.programs import Program, Step, kind_for
from gst.programs.tracing import capture
from gst.programs.untouched import Watcher

Call = Callable[[], list[Any]]
Plan = Callable[[KernelProgram, Sequence[Tensor]], Call]


def state_pairs(step: Step, program: Program) -> list[tuple[int, int]]:
    """Return for each tensor of the state its flat output, where the step returns it renewed, and its flat input.

    Raises:
        ValueError: the first input is no dictionary of tensors that the step returns, with the same keys, at the end.

    Examples:
        >>> count = lambda state, x: (x.sum(), {"n": state["n"] + 1})
        >>> step = Step("count", count, ({"n": torch.zeros(())}, torch.ones(2)))
        >>> state_pairs(step, capture(step))
        [(1, 0)]
    """
    leaves, spec = pytree.tree_flatten(step.inputs)
    inputs = pytree.tree_unflatten(list(range(len(leaves))), spec)
    outputs = program.unflatten(list(range(len(program.outputs))))
    state, new = (inputs[0] if inputs else None), (outputs[-1] if isinstance(outputs, tuple | list) else None)
    if not isinstance(state, dict) or not isinstance(new, dict) or state.keys() != new.keys():
        raise ValueError(
            f"step {step.name!r} renews no state: its first input has to be a dictionary of tensors, and the last of "
            "its outputs the same dictionary renewed, as gst.programs.training_step makes it"
        )
    return [
        (output, number)
        for key in state
        for output, number in zip(pytree.tree_leaves(new[key]), pytree.tree_leaves(state[key]), strict=True)
    ]


def in_place(module: fx.GraphModule, program: Program, pairs: Sequence[tuple[int, int]]) -> fx.GraphModule:
    """Return a module that writes outputs into inputs, and returns the other outputs, as a tuple.

    Args:
        module: of the program, as `as_module` makes it; it is changed.
        pairs: (flat output, flat input).
    """
    graph, output = module.graph, module.graph.output_node()
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    values: Any = output.args[0]
    held, clone, copy = _in_inputs(program), torch.ops.aten.clone.default, torch.ops.aten.copy_.default
    with graph.inserting_before(output):
        renewed = []
        for one, other in pairs:
            value, place = values[one], inputs[other]
            if value is not place:  # what is in an input is read before any input is written
                renewed.append(
                    (place, graph.call_function(clone, (value,)) if held[program.outputs[one].node] else value)
                )
        for pair in renewed:
            graph.call_function(copy, pair)
    written = {one for one, _ in pairs}
    output.args = (tuple(value for number, value in enumerate(values) if number not in written),)
    module.recompile()
    return module


def _in_inputs(program: Program) -> list[bool]:
    """Mark nodes whose values are inputs, constants or views of them."""
    held: list[bool] = []
    for operation in program.operations:
        is_view = operation.is_view and any(held[each] for each in operation.producers)
        held.append(operation.kind != "operation" or is_view)
    return held


class StepInPlace:
    """A training step that is called with batches alone: `loss = step(*batch)`. Its state stays where it is.

    Each size of batch is compiled at its first call. A step whose kernels cannot be recorded runs as `torch.compile`
    runs it, in place too; `reason` says why.

    Args:
        step: `function(state, *batch) -> (loss, new_state)`, with its first state and a batch.
        device: of the state; that of the first state if None.
        plan: takes the kernels and the memory of their inputs, and returns a function that runs them; `Run` if None.

    Attributes:
        state: tensors by name, which each call renews in place.

    Raises:
        ValueError: the step renews no state, or cannot be captured.

    Examples:
        >>> from gst.programs import training_step
        >>> loss = lambda model, x, y: (model(x) - y).square().mean()
        >>> data = torch.ones(4, 2), torch.ones(4, 1)
        >>> step = StepInPlace(training_step("line", torch.nn.Linear(2, 1), loss, data, rate=0.1))
        >>> first = step(*data)
        >>> bool(step(*data) < first)
        True
    """

    def __init__(self, step: Step, device: torch.device | None = None, plan: Plan | None = None) -> None:
        if not step.inputs or not isinstance(step.inputs[0], Mapping):
            raise ValueError(f"step {step.name!r} has no state: its first input has to be a dictionary of tensors")
        tensors = pytree.tree_leaves(step.inputs)
        home = next((each.device for each in tensors if isinstance(each, Tensor)), HOST)
        self.device = home if device is None else device
        self._step, self._plan = step, plan
        self.state: dict[str, Tensor] = {key: self._own(value) for key, value in step.inputs[0].items()}
        self._code: dict[Any, _Code] = {}
        self._watcher = Watcher(step.function)
        self.reason = ""
        self._of(step.inputs[1:])

    def __call__(self, *batch: Any) -> Any:
        """Train on a batch, on any device; return what the step returns but the state.

        Raises:
            ValueError: the batch has another structure than that of the step.
        """
        if change := self._watcher.change():
            warnings.warn(f"gst: {change}; step {self._step.name!r} is compiled anew", stacklevel=2)
            self._code, self._watcher = {}, Watcher(self._step.function)
        return self._of(batch)(batch)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the tensors of the state by name, as `torch.nn.Module.state_dict` does: later steps change them."""
        return dict(self.state)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copy a state of the same names and shapes into this one.

        Raises:
            ValueError: a name is missing or unknown, or a shape differs.
        """
        if unlike := self.state.keys() ^ state.keys():
            raise ValueError(f"the state to load and that of the step differ in {', '.join(sorted(unlike)[:3])}")
        for key, value in state.items():
            if value.shape != self.state[key].shape:
                want = tuple(self.state[key].shape)
                raise ValueError(f"{key!r} of the state to load has shape {tuple(value.shape)}; want {want}")
        with torch.no_grad():
            for key, value in state.items():
                self.state[key].copy_(value)

    def _own(self, value: Tensor) -> Tensor:
        return value.detach().to(self.device).clone(memory_format=torch.preserve_format)

    def _of(self, batch: Sequence[Any]) -> _Code:
        leaves, spec = pytree.tree_flatten(tuple(batch))
        key = spec, tuple((tuple(each.shape), each.dtype) for each in leaves if isinstance(each, Tensor))
        if key not in self._code:
            if others := [each for each in leaves if not isinstance(each, Tensor)]:
                raise ValueError(f"a batch holds a {type(others[0]).__name__}; want tensors")
            self._code[key] = self._compiled(tuple(batch))
        return self._code[key]

    def _compiled(self, batch: tuple[Any, ...]) -> _Code:
        on_host = pytree.tree_map_only(Tensor, lambda each: each.detach().cpu(), (self.state, *batch))
        step = Step(self._step.name, self._step.function, on_host)
        program = capture(step, kind_for([self.device.type]))
        pairs = state_pairs(step, program)
        module = in_place(module_on(program, self.device), program, pairs)
        own = [self._own(each) for each in pytree.tree_leaves(batch)]
        inputs = [*pytree.tree_leaves(self.state), *own]
        try:
            kernels = kernel_program(module, inputs, step.name).without_inputs()
            call = Run(kernels, given=inputs) if self._plan is None else self._planned(kernels, inputs, self._plan)
        except NotUnderstoodError as error:
            self.reason = str(error)
            call = _compiled_whole(module, inputs)
        return _Code(call, own, program, pairs)

    def _planned(self, kernels: KernelProgram, inputs: Sequence[Tensor], plan: Plan) -> Call:
        """Make a plan, which takes steps to time them, and undo these."""
        before = {key: value.clone() for key, value in self.state.items()}
        try:
            return plan(kernels, inputs)
        finally:
            self.load_state_dict(before)


def _compiled_whole(module: fx.GraphModule, inputs: Sequence[Tensor]) -> Call:
    function = torch.compile(module, dynamic=False)

    def call() -> list[Any]:
        with torch.no_grad():
            return list(function(*inputs))

    return call


class _Code:
    """Compiled code of a step for batches of one size: `call` reads them from `batch` and renews the state in place."""

    def __init__(self, call: Call, batch: Sequence[Tensor], program: Program, pairs: Sequence[tuple[int, int]]) -> None:
        self._call, self._batch = call, batch
        written = {output for output, _ in pairs}
        self._rest = [number for number in range(len(program.outputs)) if number not in written]
        self._spec, self._count = program, len(program.outputs)

    def __call__(self, batch: Any) -> Any:
        with torch.no_grad():
            for place, value in zip(self._batch, pytree.tree_leaves(batch), strict=True):
                if place is not value:
                    place.copy_(value, non_blocking=True)
            outputs: list[Any] = [None] * self._count
            for number, value in zip(self._rest, self._call(), strict=True):
                outputs[number] = value.clone() if isinstance(value, Tensor) else value
        result = self._spec.unflatten(outputs)
        return result[0] if len(result) == 2 else result[:-1]
