"""Training steps that renew their state where it lies: nothing of it is copied from step to step.

The compiled function ends with `old.copy_(new)` for each tensor of the state, and Inductor writes the new value from
the kernel that computes it. A tensor whose old value another one takes over is written after the function instead, as
Inductor drops copies that it holds needless. Each compiled step is compared with the step as written before its use.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from gst.execution.measure import measure, rested
from gst.kernels.inductor import NotUnderstoodError, kernel_program
from gst.kernels.program import KernelProgram
from gst.kernels.run import Run
from gst.lowering.calls import HOST, module_on
from gst.machine.load import TimeIsUp, stopped_after
from gst.programs import Program, Reference, Step, differ_beyond_rounding, kind_for
from gst.programs.operation import opened
from gst.programs.tracing import capture
from gst.programs.watcher import Watcher
from gst.util.progress import notice

TIMED = 3  # steps, of which the shortest counts
COMPARED = 4  # calls in which compiled code has to compute what the step as written computes
Call = Callable[[], list[Any]]
Plan = Callable[[KernelProgram, Sequence[Tensor]], Call]
Function = Callable[[Sequence[Tensor]], list[Any]]


def state_pairs(step: Step, program: Program) -> list[tuple[int, int]]:
    """Return for each tensor of the state its flat output, where the step returns it renewed, and its flat input.

    Raises:
        ValueError: the first input is no dictionary of tensors that the step returns, with the same keys, at the end,
            or a tensor of it gets another shape or dtype.

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
    for key, number in state.items():
        value = program.outputs[new[key]] if isinstance(new[key], int) else None
        node = program.operations[value.node] if isinstance(value, Reference) else None
        then = f"{node.dtypes[0]} {node.shapes[0]}" if node else f"a {type(value).__name__}"
        if (now := f"{leaves[number].dtype} {tuple(leaves[number].shape)}") != then:
            raise ValueError(
                f"step {step.name!r} cannot keep {key!r} of its state in place: it is {now} and becomes {then}; "
                "keep its shape and dtype, or call placed.module(), which takes and returns the state"
            )
    return [(new[key], number) for key, number in state.items()]


def in_place(module: fx.GraphModule, program: Program, pairs: Sequence[tuple[int, int]]) -> fx.GraphModule:
    """Return a module that writes outputs into inputs, and returns the other outputs, as a tuple.

    Args:
        module: of the program, as `as_module` makes it; it is changed.
        pairs: (flat output, flat input), without those of `late`.
    """
    graph, output = module.graph, module.graph.output_node()
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    values: Any = output.args[0]
    with graph.inserting_before(output):
        for one, other in pairs:
            if values[one] is not inputs[other]:
                graph.call_function(torch.ops.aten.copy_.default, (inputs[other], values[one]))
    written = {one for one, _ in pairs}
    output.args = (tuple(value for number, value in enumerate(values) if number not in written),)
    module.recompile()
    return module


def late(program: Program, pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the pairs whose input must keep its value until the outputs are computed, as another output, or other
    elements of the same one, may hold it unchanged.

    An operation with one tensor that depends on inputs may return this one: views, copies, `x * 1`, and whatever else
    compilers leave out.
    """
    depends: list[bool] = []
    held: list[dict[int, bool]] = []  # inputs by number; True where elements may have moved
    for number, operation in enumerate(program.operations):
        sources = [each for each in operation.producers if depends[each]]
        is_made = _makes(operation.target)
        depends.append(operation.kind == "input" or (bool(sources) and not is_made))
        moves = torch.Tag.pointwise not in getattr(operation.target, "tags", ())
        result = {number: False} if operation.kind == "input" else {}
        is_list = any(isinstance(each, list | tuple) for each in operation.args)
        if not is_made and (len(sources) == 1 or is_list):
            for each in sources:
                result |= {key: moved or moves for key, moved in held[each].items()}
        held.append(result)
    home = dict(pairs)
    kept = {
        source
        for number, output in enumerate(program.outputs) if isinstance(output, Reference)
        for source, moved in held[output.node].items() if moved or home.get(number) != source
    }  # fmt: skip
    return [(one, other) for one, other in pairs if other in kept]


def _makes(target: Any) -> bool:
    """True for an operator that reads the form of its tensors alone, as `zeros_like`."""
    name = getattr(getattr(target, "_schema", None), "name", "")
    return name.endswith("_like") or name.startswith("aten::new_")


class StepInPlace:
    """A training step that is called with batches alone: `loss = step(*batch)`. Its state stays where it is.

    The size of the first batch is compiled, and compared with the step as written. Another size runs as written until
    that has taken as long as compiling did; so a smaller last batch is not waited for. A step whose kernels cannot be
    recorded runs as `torch.compile` runs it, in place too; one that computes something else so has its state written
    after it, or runs as written, with a warning. On CPUs it also runs as written if that is faster, or if nothing is
    compiled within `seconds`. `reason` says why.

    Args:
        step: `function(state, *batch) -> (loss, new_state)`, with its first state and a batch.
        device: of the state; that of the first state if None.
        plan: takes the kernels and the memory of their inputs, and returns a function that runs them; `Run` if None.
        seconds: of compiling for one size of batch, at most.

    Attributes:
        state: tensors by name, which each call renews in place.

    Raises:
        ValueError: the step renews no state, a tensor of it changes its shape or dtype, or it cannot be captured.

    Examples:
        >>> from gst.programs import training_step
        >>> loss = lambda model, x, y: (model(x) - y).square().mean()
        >>> data = torch.ones(4, 2), torch.ones(4, 1)
        >>> step = StepInPlace(training_step("line", torch.nn.Linear(2, 1), loss, data, rate=0.1))
        >>> first = step(*data)
        >>> bool(step(*data) < first)
        True
    """

    def __init__(
        self, step: Step, device: torch.device | None = None, plan: Plan | None = None, seconds: float = math.inf
    ) -> None:
        first = step.inputs[0] if step.inputs else None
        if not isinstance(first, Mapping) or not all(isinstance(each, Tensor) for each in first.values()):
            raise ValueError(f"step {step.name!r} has no state: its first input has to be a dictionary of tensors")
        tensors = pytree.tree_leaves(step.inputs)
        home = next((each.device for each in tensors if isinstance(each, Tensor)), HOST)
        self.device = home if device is None else device
        self._step, self._plan, self._seconds = step, plan, seconds
        self.state: dict[str, Tensor] = {key: self._own(value) for key, value in first.items()}
        self._code: dict[Any, _Code] = {}
        self._compile_s, self._written_s = 0.0, dict[Any, float]()  # the latter by size, without being compiled
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
            self._code, self._written_s, self._watcher = {}, {}, Watcher(self._step.function)
        key = _size(batch)
        is_like = self.device == HOST and any(key[:2] == each[:2] for each in self._code)
        if key not in self._code and is_like and self._written_s.get(key, 0.0) < self._compile_s:
            return self._as_written(batch, key)
        return self._of(batch)(batch)

    def _as_written(self, batch: tuple[Any, ...], key: Any) -> Any:
        """Take a step on a batch whose size is not compiled, as written."""
        if not self._written_s:
            sizes = " and ".join(map(str, key[2]))
            notice(
                f"step {self._step.name!r} runs as written on a batch of {sizes}, and is compiled for it once that has "
                f"taken as long as compiling, {self._compile_s:.0f} s; DataLoader(drop_last=True) has one size alone"
            )
        begun = time.perf_counter()
        here = pytree.tree_map_only(Tensor, lambda value: value.detach().to(self.device), batch)
        *result, new = self._step.function(self.state, *here)
        self.load_state_dict({name: value.detach().clone() for name, value in new.items()})  # some may hold others
        self._written_s[key] = self._written_s.get(key, 0.0) + time.perf_counter() - begun
        result = pytree.tree_map_only(Tensor, Tensor.detach, result)
        return result[0] if len(result) == 1 else tuple(result)

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
        key = _size(batch)
        if key not in self._code:
            if others := [each for each in pytree.tree_leaves(tuple(batch)) if not isinstance(each, Tensor)]:
                raise ValueError(f"a batch holds a {type(others[0]).__name__}; want tensors")
            begun = time.perf_counter()
            self._code[key] = self._compiled(tuple(batch))
            self._compile_s = max(self._compile_s, time.perf_counter() - begun)
        return self._code[key]

    def _compiled(self, batch: tuple[Any, ...]) -> _Code:
        on_host = pytree.tree_map_only(Tensor, lambda each: each.detach().cpu(), (self.state, *batch))
        step = Step(self._step.name, self._step.function, on_host)
        program = capture(step, kind_for([self.device.type]))
        pairs = state_pairs(step, program)
        own = [self._own(each) for each in pytree.tree_leaves(batch)]
        inputs = [*pytree.tree_leaves(self.state), *own]
        written = self._written(program, step.inputs, inputs)
        as_written = _Code(lambda: written(inputs), own, program, [], [(one, inputs[other]) for one, other in pairs])
        sizes = " and ".join(str(tuple(each.shape)) for each in own)
        notice(f"compiling step {step.name!r} for a batch of {sizes}")
        reason = ""
        try:
            with stopped_after(self._seconds):
                for after in dict.fromkeys((tuple(late(program, pairs)), tuple(pairs))):
                    early = [each for each in pairs if each not in after]
                    call = self._call(in_place(module_on(program, self.device), program, early), inputs)
                    code = _Code(call, own, program, early, [(one, inputs[other]) for one, other in after])
                    if not (reason := self._difference(code, written, inputs, pairs)):
                        return self._faster(code, as_written)
            self.reason = f"compiled it gives other results: {reason}"
        except TimeIsUp:
            self.reason = f"a batch of {sizes} was not compiled within {self._seconds:g} s"
        warnings.warn(f"gst: step {step.name!r} runs as written; {self.reason}", stacklevel=5)
        return as_written

    def _faster(self, code: _Code, as_written: _Code) -> _Code:
        """Return the faster of both by a few steps, which are undone; on an accelerator the compiled code."""
        if self.device != HOST:
            return code
        with self._undone():
            timed = measure({"code": code.outputs, "written": as_written.outputs}, TIMED, 1, time_of=rested)
        code_ms, written_ms = (min(each.samples_ms, default=math.inf) for each in timed.values())
        if code_ms <= written_ms:
            return code
        self.reason = f"as written it takes {written_ms:.3g} ms, compiled {code_ms:.3g} ms"
        return as_written

    def _call(self, module: fx.GraphModule, inputs: Sequence[Tensor]) -> Call:
        try:
            kernels = kernel_program(module, inputs, self._step.name).without_inputs()
            with self._undone():  # a plan takes steps to time them
                return Run(kernels, given=inputs) if self._plan is None else self._plan(kernels, inputs)
        except NotUnderstoodError as error:
            self.reason = str(error)
            return _compiled_whole(module, inputs)

    def _written(self, program: Program, examples: Any, inputs: Sequence[Tensor]) -> Function:
        """Return the step as written, of flat inputs; by its operations where it holds tensors of another device."""
        spec = pytree.tree_structure(examples)

        def written(values: Sequence[Tensor]) -> list[Any]:
            outputs = pytree.tree_leaves(opened(self._step.function(*pytree.tree_unflatten(list(values), spec))))
            return [each.detach() if isinstance(each, Tensor) else each for each in outputs]

        try:
            written([each.clone() for each in inputs])
        except RuntimeError:
            if self.device == HOST:
                raise
            module = module_on(program, self.device)
            return lambda values: list(module(*values))
        return written

    def _difference(
        self, code: _Code, written: Function, inputs: Sequence[Tensor], pairs: Sequence[tuple[int, int]]
    ) -> str:
        """Describe the first difference of a few calls from the step as written; the state is left as it was."""
        with self._undone():
            for call in range(COMPARED):
                given = [each.clone() for each in inputs]
                got = code.outputs()
                for one, other in pairs:
                    got[one] = inputs[other].clone()
                want = written([each.clone() for each in given])
                if reason := differ_beyond_rounding(got, want, written, given):
                    return f"{reason} (call {call + 1})"
        return ""

    @contextmanager
    def _undone(self) -> Iterator[None]:
        """Undo steps that are taken on trial."""
        before = {key: value.clone() for key, value in self.state.items()}
        try:
            yield
        finally:
            self.load_state_dict(before)


def _size(batch: Sequence[Any]) -> tuple[Any, ...]:
    """Return the structure of a batch, and dtypes and shapes of its tensors."""
    leaves, spec = pytree.tree_flatten(tuple(batch))
    tensors = [each for each in leaves if isinstance(each, Tensor)]
    return spec, tuple(each.dtype for each in tensors), tuple(tuple(each.shape) for each in tensors)


def _compiled_whole(module: fx.GraphModule, inputs: Sequence[Tensor]) -> Call:
    function = torch.compile(module, dynamic=False)

    def call() -> list[Any]:
        with torch.no_grad():
            return list(function(*inputs))

    return call


class _Code:
    """Compiled code of a step for batches of one size: it reads them from `batch` and renews the state in place.

    Args:
        call: returns the outputs that are not written `early`.
        program: the step.
        early: pairs that the call writes itself.
        after: outputs, and the tensors of the state into which they are written once all outputs are computed.
    """

    def __init__(
        self, call: Call, batch: Sequence[Tensor], program: Program, early: Sequence[tuple[int, int]],
        after: Sequence[tuple[int, Tensor]],
    ) -> None:  # fmt: skip
        self._call, self._batch, self._program, self._after = call, batch, program, after
        written = {output for output, _ in early}
        self._rest = [number for number in range(len(program.outputs)) if number not in written]

    def __call__(self, batch: Any) -> Any:
        with torch.no_grad():
            for place, value in zip(self._batch, pytree.tree_leaves(batch), strict=True):
                if place is not value:
                    place.copy_(value, non_blocking=True)
        result = self._program.unflatten(self.outputs())
        return result[0] if len(result) == 2 else result[:-1]

    def outputs(self) -> list[Any]:
        """Renew the state, and return the flat outputs, in memory of their own; None for those of the state."""
        outputs: list[Any] = [None] * len(self._program.outputs)
        for number, value in zip(self._rest, self._call(), strict=True):
            outputs[number] = value.detach().clone() if isinstance(value, Tensor) else value
        with torch.no_grad():
            for number, place in self._after:
                place.copy_(outputs[number])
                outputs[number] = None
        return outputs
