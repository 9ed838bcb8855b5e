"""How long a device takes for a batch of calls: by its events, and by a graph of them where one can be recorded."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch

from gst.devices.execute.lanes import is_here, synchronise
from gst.devices.execute.recording import WARM_RUNS, Graph, new_graph, no_garbage, recorded

NewGraph = Callable[[torch.device, Any], Graph]
NO_GRAPHS = "graphs are recorded on an accelerator; this runs on {}"


def span_us(function: Callable[[], object], device: torch.device, before: Callable[[], object] = lambda: None) -> float:
    """Microseconds between the moment at which a device begins and that at which it ends what a function gives it, on
    the current stream.

    Args:
        function: launches operations there.
        device: the CPU, or an accelerator of this machine.
        before: launches others first, which are not timed: with them the device is at work while the host launches
            what is timed.

    Raises:
        ValueError: there is no such device here.

    Examples:
        >>> span_us(lambda: torch.ones(10_000).sum(), torch.device("cpu")) > 0
        True
    """
    check_here(device)
    if device.type == "cpu":
        before()
        begin = perf_counter_ns()
        function()
        return (perf_counter_ns() - begin) / 1e3
    stream = torch.accelerator.current_stream(device)
    first, last = (torch.Event(device, enable_timing=True) for _ in range(2))
    before()
    first.record(stream)
    function()
    last.record(stream)
    last.synchronize()
    return first.elapsed_time(last) * 1e3


def batch_us(
    several: Callable[[], object], device: torch.device, repetitions: int, make: NewGraph | None
) -> tuple[float, str]:
    """Median microseconds of a batch of calls: of their graph, or of the calls themselves where there can be none.

    Args:
        several: makes the calls.
        device: of the current stream.
        repetitions: spans of which the median counts.
        make: makes an empty graph; None = the calls themselves are timed.

    Returns:
        The microseconds, and why the calls are no graph; empty if they are.
    """
    reason = NO_GRAPHS.format(device)
    if make is not None:
        try:
            return _replays_us(several, device, repetitions, make), ""
        except Exception as error:  # whatever an operation does that a graph cannot, and memory that is short
            reason = first_line(error)
    return float(np.median([span_us(several, device) for _ in range(repetitions)])), reason


def _replays_us(several: Callable[[], object], device: torch.device, repetitions: int, make: NewGraph) -> float:
    for _ in range(WARM_RUNS):
        several()
    synchronise([device])
    graph = make(device, None)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".*Graph is empty")  # views launch nothing
        with recorded(graph):
            several()
    return graph_us(graph, device, repetitions)


def graph_us(graph: Graph, device: torch.device, repetitions: int) -> float:
    """Median microseconds of a replay. Another replay goes before each that is timed: launching a graph takes longer
    than a few short kernels, too."""
    graph.replay()
    return float(np.median([span_us(graph.replay, device, before=graph.replay) for _ in range(repetitions)]))


def launch_us(
    device: torch.device, repetitions: int = 5, batch: int = 10, graph: NewGraph | None = None,
    call: Callable[[], object] | None = None,
) -> float | None:  # fmt: skip
    """Microseconds that launching an operation takes beyond running it: calls one by one, less the same calls in a
    graph. None where nothing can be recorded.

    Args:
        device: the CPU, or an accelerator of this machine.
        repetitions: spans of each way, of which the median counts.
        batch: calls in a span.
        graph: makes an empty graph. If None, `new_graph` on an accelerator; on a CPU nothing is recorded.
        call: launches the operation; one that adds 1 to eight numbers if None.

    Raises:
        ValueError: there is no such device here.

    Examples:
        >>> launch_us(torch.device("cpu")) is None
        True
    """
    make = graph_maker(device, graph)
    with timing_on(device):
        several = partial(repeated, call or partial(torch.add, torch.zeros(8, device=device), 1), batch)
        inside, reason = batch_us(several, device, repetitions, make)
        if reason:
            return None
        outside, _ = batch_us(several, device, repetitions, None)
    return max(outside - inside, 0.0) / batch


def graph_maker(device: torch.device, graph: NewGraph | None = None) -> NewGraph | None:
    """What makes empty graphs for a device: `graph` if it is given, otherwise `new_graph` on an accelerator of this
    process, and None on a CPU."""
    return new_graph if graph is None and is_here(device) else graph


@contextmanager
def timing_on(device: torch.device) -> Iterator[None]:
    """A stream of the device becomes the current one, on which graphs can be recorded; no gradients are kept.

    Raises:
        ValueError: there is no such device here.
    """
    check_here(device)
    with torch.no_grad(), no_garbage(), torch.Stream(device) if is_here(device) else nullcontext():
        yield


def check_here(device: torch.device) -> None:
    """Refuse a device that is not here with a ValueError."""
    if device.type != "cpu" and not is_here(device):
        raise ValueError(f"there is no {device} here to take times on")


def repeated(call: Callable[[], object], count: int) -> None:
    """Call so many times; no value is kept."""
    for _ in range(count):
        call()


def first_line(error: Exception) -> str:
    """What was raised, in one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0]
