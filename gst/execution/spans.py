"""Time that a device takes for calls: by its events, of a graph of the calls where one can be recorded."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch

from gst.execution.lanes import is_here, synchronise
from gst.execution.recording import WARM_RUNS, Graph, new_graph, no_garbage, recorded
from gst.lowering.plan import says_no_memory

NewGraph = Callable[[torch.device, Any], Graph]
BUDGET_US = 20_000.0  # that an operation is timed for, about
BATCH_US = 1_000.0  # of several calls in a span, about
LONG_US = 2_000.0  # of a call that is timed alone
LEAST_US = 1e-3  # a view takes an accelerator no time


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


class Graphs:
    """Records graphs on one device, one after the other in the same memory, and in new memory behind one that could not
    be recorded. A graph is of no more use once the next is recorded.

    Args:
        device: of the current stream.
        make: makes an empty graph.
    """

    def __init__(self, device: torch.device, make: NewGraph) -> None:
        self.device, self._make = device, make
        self._first: Graph | None = None  # it lives as long as this: with its last graph the memory would go

    def record(self, function: Callable[[], object]) -> Graph | None:
        """A graph of what a function launches on the current stream; None where that cannot be recorded. Where memory
        is short, what was cached is given back, and recording is tried once more.

        Args:
            function: was called before, so that libraries have chosen their kernels.
        """
        for gives_back in (False, True):
            try:
                graph = self._make(self.device, None if self._first is None else self._first.pool())
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", r".*Graph is empty")  # views launch nothing
                    with recorded(graph, gives_back):
                        function()
            except RuntimeError as error:  # of all kinds: function() failed in no call before
                self._first = None
                if not says_no_memory(str(error)):
                    return None
            else:
                self._first = self._first or graph
                return graph
        return None


def call_us(
    call: Callable[[], object], device: torch.device, repetitions: int, batch: int, graphs: Graphs | None
) -> float:
    """Microseconds that a call takes on a device, of several in a span; with its launch where it is not recorded. A
    call that takes long is made fewer times, so that all of them take about `BUDGET_US`.

    Args:
        call: was made once before.
        device: of the current stream.
        repetitions: spans of which the median counts, at most.
        batch: calls in a span, at most.
        graphs: record the calls of a span as one; None = they are launched one by one.
    """
    spans = [span_us(call, device) for _ in range(WARM_RUNS - 1)]  # behind the call before
    once_us = max(min(spans), LEAST_US)
    if once_us >= LONG_US:  # its launch is next to nothing
        more = min(repetitions, int(BUDGET_US / once_us)) - len(spans)
        return float(np.median([*spans, *(span_us(call, device) for _ in range(more))]))
    size = max(min(batch, int(BATCH_US / once_us)), 1)
    several = partial(repeated, call, size)
    if graphs is not None:
        synchronise([device])
        graph = graphs.record(several)
        if graph is not None:
            return graph_us(graph, device, min(repetitions, max(int(BUDGET_US / (2 * size * once_us)), 1))) / size
    return float(np.median([span_us(several, device) for _ in range(repetitions)])) / size


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
        if make is None:
            return None
        several = partial(repeated, call or partial(torch.add, torch.zeros(8, device=device), 1), batch)
        repeated(several, WARM_RUNS)
        synchronise([device])
        together = Graphs(device, make).record(several)
        if together is None:
            return None
        inside = graph_us(together, device, repetitions)
        outside = float(np.median([span_us(several, device) for _ in range(repetitions)]))
    return max(outside - inside, 0.0) / batch


def graph_maker(device: torch.device, graph: NewGraph | None = None) -> NewGraph | None:
    """What makes empty graphs for a device: `graph` if it is given, otherwise `new_graph` on an accelerator of this
    process, and None on a CPU, or where the accelerator has no graphs; a warning says so."""
    if graph is not None or not is_here(device):
        return graph
    try:
        new_graph(device)
    except (RuntimeError, AttributeError) as error:  # of the kind, the driver or PyTorch
        warnings.warn(f"times on {device} hold the launch of each operation: {first_line(error)}", stacklevel=2)
        return None
    return new_graph


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
