"""Times of operations by events of the accelerator that runs them: what a clock of the host cannot see.

A host hears of the end of a kernel microseconds late, and takes longer to launch a short kernel than it takes to run.
So calls of an operation are recorded as one graph, whose replay is one launch, and timed between two events of a
stream; on a CPU they are called between two readings of the clock.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor
from torch.utils import _pytree as pytree

from gst.execution.spans import Graphs, NewGraph, call_us, first_line, graph_maker, timing_on
from gst.lowering.calls import HOST, Call, Values, bind, copied, steps_in_order
from gst.lowering.plan import says_no_memory
from gst.lowering.storages import fixed_values
from gst.programs import Operation, Program, Reference
from gst.programs.operation import references

WAITING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""Tags of operators for which the host waits for values of a tensor."""
WRITERS = {torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default}


def event_times_us(
    program: Program, device: torch.device, repetitions: int = 5, batch: int = 10, graph: NewGraph | None = None
) -> Float64[np.ndarray, " nodes"]:
    """Time of each operation alone on a device, in microseconds; 0 for inputs and constants, infinite where an
    operation cannot run there: its value is then computed on the host, for those that read it. What cannot be recorded
    is timed with its launch. Operations with the same arguments but for the values of tensors are timed once. Values
    are freed behind their last reader.

    Args:
        program: what to run, in its order.
        device: the CPU, or an accelerator of this machine.
        repetitions: spans of each operation, of which the median counts, at most (`call_us`).
        batch: calls of the operation in a span, at most.
        graph: makes an empty graph. If None, `new_graph` on an accelerator; on a CPU nothing is recorded.

    Raises:
        ValueError: there is no such device here, or fewer than one repetition or call is asked for, or an operation
            runs neither on the device nor on the host.
        RuntimeError: memory is short.

    Examples:
        >>> from gst.programs import capture_module
        >>> program = capture_module(torch.nn.ReLU(), (torch.zeros(1000),))
        >>> (event_times_us(program, torch.device("cpu")) > 0).tolist()  # the input, and relu
        [False, True]
    """
    if repetitions < 1 or batch < 1:
        raise ValueError(f"want repetitions >= 1 and batch >= 1, got {repetitions} and {batch}")
    make = graph_maker(device, graph)
    times, of_signature = np.zeros(program.num_nodes), dict[Hashable, float]()
    with timing_on(device):
        graphs = None if make is None else Graphs(device, make)
        for node, call, values, reason in first_runs(program, device):
            if reason:
                times[node] = np.inf
                continue
            signature = signature_of(program.operations[node], values)
            if signature not in of_signature:
                recording = graphs if can_be_recorded(program, node) else None
                of_signature[signature] = call_us(partial(call, values), device, repetitions, batch, recording)
            times[node] = of_signature[signature]
    return times


def first_runs(program: Program, device: torch.device) -> Iterator[tuple[int, Call, Values, str]]:
    """Each operation of a program in order, after it has run once on a device: its node, its call, the values of all
    nodes that are read yet, and why it cannot run there, in one line, empty if it can. If it cannot, its value comes
    from the host.

    Args:
        program: what to run.
        device: the CPU, or an accelerator of this machine.

    Raises:
        ValueError: an operation runs neither on the device nor on the host.
        RuntimeError: memory is short.
    """
    calls = bind(program, device)
    steps = steps_in_order(program, calls, [node for node, call in enumerate(calls) if call is not None])
    values: Values = [None if value is None else copied(value.detach(), device) for value in fixed_values(program)]
    for node, call, dead in steps:
        reason = ""  # not the error: in a cycle with this frame it would keep tensors
        try:
            values[node] = call(values)
        except Exception as error:  # whatever operators raise
            reason = first_line(error)
            if says_no_memory(str(error)):
                raise
        if reason:
            values[node] = _on_host(program, node, values, device, reason)
        yield node, call, values, reason
        for each in dead:
            values[each] = None


def can_be_recorded(program: Program, node: int) -> bool:
    """Whether recording an operation may be tried. Not if it draws random numbers on the host, or if the host waits for
    values of its tensors: that ends a recording.

    Examples:
        >>> from gst.programs import Step, capture
        >>> program = capture(Step("masked", lambda a: a.index_put((a > 0,), torch.zeros(())), (torch.ones(2),)))
        >>> names = [str(each.target) for each in program.operations]
        >>> [can_be_recorded(program, names.index(f"aten.{name}")) for name in ("gt.Scalar", "index_put.default")]
        [True, False]
    """
    operation = program.operations[node]
    if getattr(operation.target, "namespace", "") == "gst":  # `gst.programs.seeded`
        return False
    if operation.target in WRITERS:  # at positions of which the host knows the number, or by masks
        read = {dtype for each in references(operation.args[1]) for dtype in program.operations[each].dtypes}
        return not read & {torch.bool, torch.uint8}
    is_gather = operation.target is torch.ops.aten.index.Tensor  # a program has none by masks: its shapes are fixed
    return is_gather or WAITING.isdisjoint(getattr(operation.target, "tags", ()))


def signature_of(operation: Operation, values: Values) -> Hashable:
    """The same for operations that take equally long: operator, shapes, strides and types of tensors, and all other
    arguments."""
    leaves, form = pytree.tree_flatten((operation.args, operation.kwargs))
    arguments = [values[leaf.node] if isinstance(leaf, Reference) else leaf for leaf in leaves]
    return operation.target, repr(form), tuple(map(_described, arguments))


def _described(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype
    return tuple(map(_described, value)) if isinstance(value, list | tuple) else repr(value)


def _on_host(program: Program, node: int, values: Values, device: torch.device, reason: str) -> Any:
    """The value of an operation that failed on a device, computed on the host and brought there."""
    call, second_reason = bind(program, HOST)[node], reason
    assert call is not None, f"node {node} is no operation"
    if device != HOST:
        try:
            arguments = {each: _moved(values[each], HOST) for each in program.operations[node].producers}
            return _moved(call(arguments), device)  # type: ignore[arg-type]
        except Exception as error:  # whatever operators raise
            second_reason = first_line(error)
            if says_no_memory(str(error)):
                raise
    raise ValueError(
        f"operation {node} ({program.operations[node].target}) runs neither on {device} ({reason}) nor on the host "
        f"({second_reason})"
    )


def _moved(value: Any, device: torch.device) -> Any:
    return pytree.tree_map_only(Tensor, lambda tensor: copied(tensor, device), value)
