"""Times of operations by events of the accelerator that runs them, in batches: what a clock of the host cannot see.

A host hears of the end of a kernel microseconds late, and short kernels take less than to launch them. Each operation
is launched many times between two events of one stream; on a CPU, between two readings of the clock.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns

import numpy as np
import torch
from jaxtyping import Float64

from gst.devices.execute.calls import Values, bind, steps_in_order
from gst.devices.execute.lanes import is_here
from gst.programs import Program


def span_us(function: Callable[[], object], device: torch.device) -> float:
    """Microseconds between the moment at which a device begins and that at which it ends what a function gives it, on
    the current stream.

    Args:
        function: launches operations there.
        device: the CPU, or an accelerator of this machine.

    Raises:
        ValueError: there is no such device here.

    Examples:
        >>> span_us(lambda: torch.ones(10_000).sum(), torch.device("cpu")) > 0
        True
    """
    if device.type == "cpu":
        begin = perf_counter_ns()
        function()
        return (perf_counter_ns() - begin) / 1e3
    if not is_here(device):
        raise ValueError(f"there is no {device} here to take times on")
    stream = torch.accelerator.current_stream(device)
    first, last = (torch.Event(device, enable_timing=True) for _ in range(2))
    first.record(stream)
    function()
    last.record(stream)
    last.synchronize()
    return first.elapsed_time(last) * 1e3


def event_times_us(
    program: Program, device: torch.device, repetitions: int = 5, batch: int = 10
) -> Float64[np.ndarray, " nodes"]:
    """Time of each operation alone on a device, in microseconds; 0 for inputs and constants. Values are freed behind
    their last reader. Where launching an operation takes longer than computing it, this is the time of the launch.

    Args:
        program: what to run, in its order.
        device: the CPU, or an accelerator of this machine.
        repetitions: spans of each operation, of which the median counts.
        batch: calls of the operation in a span.

    Raises:
        ValueError: there is no such device here, or fewer than one repetition or call is asked for.

    Examples:
        >>> from gst.programs import capture_module
        >>> program = capture_module(torch.nn.ReLU(), (torch.zeros(1000),))
        >>> (event_times_us(program, torch.device("cpu")) > 0).tolist()  # the input, and relu
        [False, True]
    """
    if repetitions < 1 or batch < 1:
        raise ValueError(f"want repetitions >= 1 and batch >= 1, got {repetitions} and {batch}")
    calls = bind(program, device)
    steps = steps_in_order(program, calls, [node for node, call in enumerate(calls) if call is not None])
    values: Values = [*program.inputs, *(each.constant for each in program.operations[len(program.inputs) :])]
    values = [None if value is None else value.detach().to(device) for value in values]
    times = np.zeros(program.num_nodes)
    with torch.no_grad():
        for node, call, dead in steps:
            values[node] = call(values)  # warms up

            def several(call: Callable[[Values], object] = call) -> None:
                for _ in range(batch):
                    call(values)

            times[node] = np.median([span_us(several, device) for _ in range(repetitions)]) / batch
            for each in dead:
                values[each] = None
    return times
