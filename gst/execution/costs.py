"""Measurement of costs: times of operations alone on a device, and of copies between devices.

A host launches a short kernel more slowly than the kernel runs, and learns of its end late. So several calls are
recorded as one graph, and its replay is timed between two events. On a CPU a clock times the calls. A copy takes
latency + bytes / bandwidth, fitted to copies of several sizes, which `Lane` makes as those of plans.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from time import perf_counter, perf_counter_ns
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor
from torch.utils import _pytree as pytree

from gst.execution.lanes import Lane, synchronise
from gst.lowering.calls import HOST, Call, Links, Values, bind, copied, fixed_values, in_program_order
from gst.lowering.plan import says_no_memory
from gst.machine.devices import Device
from gst.programs import Operation, Program, Reference
from gst.programs.operation import references
from gst.util.recording import WARM_RUNS, Graph, is_here, new_graph, no_garbage, recorded
from gst.util.untrusted import first_line

NewGraph = Callable[[torch.device, Any], Graph]
BUDGET_US = 20_000.0  # that an operation is timed for, about
BATCH_US = 1_000.0  # of several calls in a span, about
LONG_US = 2_000.0  # of a call that is timed alone
LEAST_US = 1e-3  # of a view, which takes an accelerator no time, and of the latency of a copy


def span_us(function: Callable[[], object], device: torch.device, before: Callable[[], object] = lambda: None) -> float:
    """Return the microseconds that a device takes for the work of a function, on the current stream.

    Args:
        function: launches operations.
        before: launches other work, which is not timed and keeps the device busy while the host launches the function.

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
    """Recorder of graphs on the device of the current stream, one after the other in the same memory, and in new memory
    after a failure. A graph is invalid once the next is recorded."""

    def __init__(self, device: torch.device, make: NewGraph) -> None:
        self.device, self._make = device, make
        self._first: Graph | None = None  # it lives as long as this: with its last graph the memory would go

    def record(self, function: Callable[[], object]) -> Graph | None:
        """Return a graph of the work that a function launches, which ran before; None if it cannot be recorded. Where
        memory is short, cached memory is released, and recording is tried once more."""
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
    """Return the median microseconds of a call on a device, with its launch if it is not recorded. Long calls run fewer
    times, so that all of them take about `BUDGET_US`.

    Args:
        call: ran once before.
        device: of the current stream.
        repetitions: spans of which the median counts, at most.
        batch: calls in a span, at most.
        graphs: records the calls of a span as one; None = they are launched one by one.
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
            graph.replay()
            count = min(repetitions, max(int(BUDGET_US / (2 * size * once_us)), 1))
            spans = [span_us(graph.replay, device, before=graph.replay) for _ in range(count)]  # it hides the launch
            return float(np.median(spans)) / size
    return float(np.median([span_us(several, device) for _ in range(repetitions)])) / size


def graph_maker(device: torch.device, graph: NewGraph | None = None) -> NewGraph | None:
    """Return `graph` if given, otherwise `new_graph` on an accelerator of this process. None on a CPU, and with a
    warning on an accelerator without graphs."""
    if graph is not None or not is_here(device):
        return graph
    try:
        new_graph(device)
    except (RuntimeError, AttributeError) as error:  # of the kind, the driver or PyTorch
        warnings.warn(f"times on {device} hold the launch of each operation: {first_line(error)}", stacklevel=2)
        return None
    return new_graph


def one_graph(run: Callable[[], Any], device: torch.device, graph: NewGraph | None = None) -> Callable[[], Any]:
    """Record a function on one stream as one graph of an accelerator.

    Args:
        run: computes; each replay overwrites its results.
        device: of the computation.
        graph: makes an empty graph, see `graph_maker`.

    Raises:
        ValueError: there is no such accelerator here.
        RuntimeError: it does something that a graph cannot.
    """
    make = graph_maker(device, graph)
    if make is None:
        raise ValueError(f"graphs are recorded on an accelerator; this runs on {device}")
    made = make(device, None)
    synchronise([device])
    with without_cached_casts(), torch.Stream(device) if is_here(device) else nullcontext():
        for _ in range(WARM_RUNS):
            run()
        synchronise([device])
        with no_garbage(), recorded(made):
            outputs = run()
        synchronise([device])

    def replay() -> Any:
        made.replay()
        return outputs

    return replay


@contextmanager
def without_cached_casts() -> Iterator[None]:
    """Disable the cache of autocast, whose memory ends with its context, while a graph may still read it."""
    was_enabled = torch.is_autocast_cache_enabled()
    torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(was_enabled)


@contextmanager
def timing_on(device: torch.device) -> Iterator[None]:
    """Make a new stream of the device the current one, on which graphs can be recorded, and keep no gradients. Raises
    as `check_here`."""
    check_here(device)
    with torch.no_grad(), no_garbage(), torch.Stream(device) if is_here(device) else nullcontext():
        yield


def check_here(device: torch.device) -> None:
    """Raise ValueError for a device that is not here."""
    if device.type != "cpu" and not is_here(device):
        raise ValueError(f"there is no {device} here to take times on")


def repeated(call: Callable[[], object], count: int) -> None:
    """Call `count` times and keep no value."""
    for _ in range(count):
        call()


WAITING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""Tags of operators for which the host waits for values of a tensor."""
WRITERS = {torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default}


def event_times_us(
    program: Program, device: torch.device, repetitions: int = 5, batch: int = 10, graph: NewGraph | None = None
) -> Float64[np.ndarray, " nodes"]:
    """Return the time of each operation alone on a device, in microseconds: 0 for inputs and constants, infinite where
    an operation cannot run. One that cannot be recorded is timed with its launch; operations that are alike are timed
    once (`signature_of`).

    Args:
        program: the program, which runs in its order.
        repetitions, batch: see `call_us`.
        graph: makes an empty graph, see `graph_maker`.

    Raises:
        ValueError: there is no such device here, or an operation runs neither on it nor on the host.
        RuntimeError: memory is short.

    Examples:
        >>> from gst.programs import capture_module
        >>> program = capture_module(torch.nn.ReLU(), (torch.zeros(1000),))
        >>> (event_times_us(program, torch.device("cpu")) > 0).tolist()  # the input, and relu
        [False, True]
    """
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
    """Run each operation of a program once on a device, in order. Yield its node, its call, the values that are still
    read, and the reason why it cannot run there, empty if it can; then its value comes from the host. Errors are those
    of `event_times_us`."""
    values: Values = [None if value is None else copied(value.detach(), device) for value in fixed_values(program)]
    for node, call, dead in in_program_order(program, device):
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
    """True if recording an operation may be tried: the host draws no random numbers for it and waits for no values of
    its tensors, which would end a recording.

    Examples:
        >>> from gst.programs import Step, capture
        >>> program = capture(Step("masked", lambda a: a.index_put((a > 0,), torch.zeros(())), (torch.ones(2),)))
        >>> names = [str(each.target) for each in program.operations]
        >>> [can_be_recorded(program, names.index(f"aten.{name}")) for name in ("gt.Scalar", "index_put.default")]
        [True, False]
    """
    operation = program.operations[node]
    if getattr(operation.target, "namespace", "") == "gst":  # `gst.programs.step`
        return False
    if operation.target in WRITERS:  # at positions of which the host knows the number, or by masks
        read = {dtype for each in references(operation.args[1]) for dtype in program.operations[each].dtypes}
        return not read & {torch.bool, torch.uint8}
    is_gather = operation.target is torch.ops.aten.index.Tensor  # a program has none by masks: its shapes are fixed
    return is_gather or WAITING.isdisjoint(getattr(operation.target, "tags", ()))


def signature_of(operation: Operation, values: Values) -> Hashable:
    """Return a key that is equal for operations that take equally long: operator, shapes, strides and types of tensors,
    and all other arguments."""
    leaves, form = pytree.tree_flatten((operation.args, operation.kwargs))
    arguments = [values[leaf.node] if isinstance(leaf, Reference) else leaf for leaf in leaves]
    return operation.target, repr(form), tuple(map(_described, arguments))


def _described(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype
    return tuple(map(_described, value)) if isinstance(value, list | tuple) else repr(value)


def _on_host(program: Program, node: int, values: Values, device: torch.device, reason: str) -> Any:
    """Return the value of an operation that failed on a device, computed on the host and copied to the device."""
    second_reason = reason
    if device != HOST:
        try:
            arguments = {each: _moved(values[each], HOST) for each in program.operations[node].producers}
            return _moved(bind(program, HOST)[node](arguments), device)  # type: ignore[misc, arg-type]
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


SIZES = (4, 1 << 12, 1 << 16, 1 << 20, 1 << 23)
"""Bytes of copies that are timed."""
REPETITIONS = 5  # of each, of which the median counts

MOST_GB_PER_S = 1e6  # where larger copies take no longer, by chance: JSON knows no infinite speed


def fitted(num_bytes: Sequence[float], times_us: Sequence[float]) -> tuple[float, float]:
    """Fit latency and bandwidth to times of copies: least squares of relative errors, neither negative.

    Args:
        num_bytes: of each copy; at least two sizes.
        times_us: of each, all above 0.

    Returns:
        latency_us; gb_per_s, at most `MOST_GB_PER_S`.

    Examples:
        >>> latency_us, gb_per_s = fitted([0, 1_000_000, 10_000_000], [20.0, 120.0, 1020.0])
        >>> round(latency_us, 3), round(gb_per_s, 3)
        (20.0, 10.0)
    """
    from scipy.optimize import nnls  # its import takes long

    size, time = np.asarray(num_bytes, np.float64), np.asarray(times_us, np.float64)
    largest = size.max()
    (latency, slope), _ = nnls(np.stack([1 / time, size / largest / time], axis=1), np.ones(len(time)))
    gb_per_s = largest / slope / 1e3 if slope > 0 else MOST_GB_PER_S
    return max(float(latency), LEAST_US), min(float(gb_per_s), MOST_GB_PER_S)


def copy_rate(source: torch.device, destination: torch.device, is_pinned: bool = False) -> tuple[float, float]:
    """Measure copies from one device to another, and return the latency in microseconds and GB per second.

    Args:
        source, destination: the CPU, or accelerators of this process.
        is_pinned: memory of the host is pinned.
    """
    return fitted(SIZES, [_copy_us(each, source, destination, is_pinned) for each in SIZES])


def _copy_us(size: int, source: torch.device, destination: torch.device, is_pinned: bool) -> float:
    """Return median microseconds of a copy of `size` bytes, into a pageable tensor that exists, or a pinned one."""
    lane = Lane(source, 0)
    value = torch.zeros(size, dtype=torch.uint8, device=source)
    buffer = torch.zeros(size, dtype=torch.uint8, device=destination)
    if is_pinned:
        value, buffer = (each.pin_memory() if each.device.type == "cpu" else each for each in (value, buffer))
    times = []
    for _ in range(REPETITIONS + 1):
        synchronise([source, destination])
        start = perf_counter()
        with lane.stream or nullcontext():
            if is_pinned or source.type != destination.type == "cpu":
                lane.refill(buffer, value)
            else:
                lane.copy(value, destination)
        synchronise([source, destination])
        times.append((perf_counter() - start) * 1e6)
    return float(np.median(times[1:]))


def measured_links(devices: Sequence[Device]) -> Links:
    """Return latency in microseconds and bytes per microsecond from each device (row) to each (column); 0 and infinite
    within a memory. Links to a host are those to pinned memory."""
    count = len(devices)
    latency_us, bytes_per_us = np.zeros((count, count)), np.full((count, count), np.inf)
    rates: dict[tuple[torch.device, torch.device], tuple[float, float]] = {}
    for a, source in enumerate(devices):
        for b, destination in enumerate(devices):
            ends = source.torch_device, destination.torch_device
            if source.memory == destination.memory or (ends[0] == ends[1] and ends[0].type != "cpu"):
                continue
            if ends not in rates:
                rates[ends] = copy_rate(*ends, is_pinned=ends[1].type == "cpu" != ends[0].type)
            latency_us[a, b], gb_per_s = rates[ends]
            bytes_per_us[a, b] = gb_per_s * 1e3
    return latency_us, bytes_per_us
