"""Times of operations by events of the accelerator that runs them, in batches: what a clock of the host cannot see.

A host hears of the end of a kernel microseconds late, and takes longer to launch a short kernel than it takes to run.
So calls of an operation are recorded as one graph, whose replay is one launch, and timed between two events of a
stream; on a CPU they are called between two readings of the clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor
from torch.utils import _pytree as pytree

from gst.devices.execute.calls import Call, Values, bind, steps_in_order
from gst.devices.execute.spans import NewGraph, batch_us, first_line, graph_maker, repeated, timing_on
from gst.devices.execute.storages import fixed_values
from gst.programs import Operation, Program

HOST = torch.device("cpu")
DRAWN_ON_HOST = "its random numbers are drawn on the host, which a graph cannot wait for"


@dataclass(frozen=True, eq=False)
class EventTimes:
    """Times of the operations of a program on one device.

    Args:
        times_us: of each operation alone, in microseconds; 0 for inputs and constants, infinite where it cannot run.
        launched: by node, why an operation was called instead of recorded. Its time is that of its launch where that
            takes longer.
        unable: by node, why an operation cannot run on the device.
    """

    times_us: Float64[np.ndarray, " nodes"]
    launched: Mapping[int, str]
    unable: Mapping[int, str]


def event_times_us(
    program: Program, device: torch.device, repetitions: int = 5, batch: int = 10
) -> Float64[np.ndarray, " nodes"]:
    """`times_us` of `event_times`.

    Examples:
        >>> from gst.programs import capture_module
        >>> program = capture_module(torch.nn.ReLU(), (torch.zeros(1000),))
        >>> (event_times_us(program, torch.device("cpu")) > 0).tolist()  # the input, and relu
        [False, True]
    """
    return event_times(program, device, repetitions, batch).times_us


def event_times(
    program: Program, device: torch.device, repetitions: int = 5, batch: int = 10, graph: NewGraph | None = None
) -> EventTimes:
    """Time of each operation alone on a device. Values are freed behind their last reader. The value of an operation
    that cannot run on the device is computed on the host, for those that read it.

    Args:
        program: what to run, in its order.
        device: the CPU, or an accelerator of this machine.
        repetitions: spans of each operation, of which the median counts.
        batch: calls of the operation in a span.
        graph: makes an empty graph. If None, `new_graph` on an accelerator; on a CPU nothing is recorded.

    Raises:
        ValueError: there is no such device here, or fewer than one repetition or call is asked for, or an operation
            runs neither on the device nor on the host.

    Examples:
        >>> from gst.programs import capture_module
        >>> program = capture_module(torch.nn.ReLU(), (torch.zeros(1000),))
        >>> event_times(program, torch.device("cpu")).launched
        {1: 'graphs are recorded on an accelerator; this runs on cpu'}
    """
    if repetitions < 1 or batch < 1:
        raise ValueError(f"want repetitions >= 1 and batch >= 1, got {repetitions} and {batch}")
    make = graph_maker(device, graph)
    times, launched, unable = np.zeros(program.num_nodes), dict[int, str](), dict[int, str]()
    with timing_on(device):
        for node, call, values, failure in first_runs(program, device):
            is_drawn = make is not None and draws_on_host(program.operations[node])
            try:
                if failure is not None:
                    raise failure
                several = partial(repeated, partial(call, values), batch)
                span, reason = batch_us(several, device, repetitions, None if is_drawn else make)
            except Exception as error:  # whatever operators raise
                times[node], unable[node] = np.inf, first_line(error)
                continue
            times[node] = span / batch
            if reason:
                launched[node] = DRAWN_ON_HOST if is_drawn else reason
    return EventTimes(times, launched, unable)


def first_runs(program: Program, device: torch.device) -> Iterator[tuple[int, Call, Values, Exception | None]]:
    """Each operation of a program in order, after it has run once on a device: its node, its call, the values of all
    nodes that are read yet, and why it cannot run there. Its value then comes from the host.

    Args:
        program: what to run.
        device: the CPU, or an accelerator of this machine.

    Raises:
        ValueError: an operation runs neither on the device nor on the host.
    """
    calls = bind(program, device)
    steps = steps_in_order(program, calls, [node for node, call in enumerate(calls) if call is not None])
    values: Values = [None if value is None else value.detach().to(device) for value in fixed_values(program)]
    for node, call, dead in steps:
        failure = None
        try:
            values[node] = call(values)
        except Exception as error:  # whatever operators raise
            failure, values[node] = error, _on_host(program, node, values, device, error)
        yield node, call, values, failure
        for each in dead:
            values[each] = None


def draws_on_host(operation: Operation) -> bool:
    """Whether an operation draws random numbers on the host."""
    return getattr(operation.target, "namespace", "") == "gst"


def _on_host(program: Program, node: int, values: Values, device: torch.device, error: Exception) -> Any:
    """The value of an operation that failed on a device, computed on the host and brought there."""
    call, again = bind(program, HOST)[node], error
    assert call is not None, f"node {node} is no operation"
    if device != HOST:
        try:
            given = {each: _moved(values[each], HOST) for each in program.operations[node].producers}
            return _moved(call(given), device)  # type: ignore[arg-type]
        except Exception as failure:
            again = failure
    raise ValueError(
        f"operation {node} ({program.operations[node].target}) runs neither on {device} ({first_line(error)}) nor on "
        f"the host ({first_line(again)})"
    ) from again


def _moved(value: Any, device: torch.device) -> Any:
    return pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), value)
