"""Pairs of operations timed at once on two streams of one accelerator, and the share of it that each operation takes.

Two kernels that each leave much of an accelerator idle run at once as fast as alone; two that each fill it alternate.
`gst.simulation.share_fit` fits the time of a pair.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import combinations_with_replacement, cycle
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64

from gst.execution.costs import Pair, Pairs, traffic_bytes
from gst.execution.event_times import (
    Graphs,
    NewGraph,
    can_be_recorded,
    first_line,
    first_runs,
    graph_maker,
    graph_us,
    repeated,
    signature_of,
    timing_on,
)
from gst.execution.lanes import Lane, is_here, synchronise
from gst.execution.recording import new_graph
from gst.machine.devices import Device
from gst.machine.rates import saved_rates
from gst.programs import Program
from gst.programs.features import flops

log = logging.getLogger("gst")


class Kernels:
    """Reads the kernels of calls until one query fails; a warning gives the reason.

    Args:
        graphs: records calls on the current stream of a CUDA device, as graphs that can be inspected (`is_kept`).
        driver: `cuda.bindings.driver`.
        num_multiprocessors: of the accelerator.
    """

    def __init__(self, graphs: Graphs, driver: Any, num_multiprocessors: int) -> None:
        self._graphs, self._driver, self._num_multiprocessors = graphs, driver, num_multiprocessors
        self._is_asked = True

    def part_of_threads(self, call: Callable[[], object]) -> float | None:
        """Return the share of threads that the largest kernel of a call wants; the call was made before."""
        if not self._is_asked or (graph := self._graphs.record(call)) is None:
            return None
        try:
            return part_of_threads(graph.raw_cuda_graph(), self._driver, self._num_multiprocessors)  # type: ignore[attr-defined]
        except Exception as error:  # whatever the bindings raise
            log.warning("threads of kernels are estimated from sizes of results: %s", first_line(error))
            self._is_asked = False
            return None


def kernels_of(device: torch.device) -> Kernels | None:
    """Return `Kernels` of a CUDA device of this process; None for others, and without `cuda.bindings`."""
    if device.type != "cuda" or not is_here(device):
        return None
    try:
        driver = import_module("cuda.bindings.driver")
    except ImportError:
        return None
    count = torch.cuda.get_device_properties(device).multi_processor_count
    return Kernels(Graphs(device, partial(new_graph, is_kept=True)), driver, count)


def part_of_threads(graph: int, driver: Any, num_multiprocessors: int) -> float:
    """Return the largest share of an accelerator's blocks that a kernel of a graph (address of a `CUgraph`) wants, at
    most 1.

    Raises:
        RuntimeError: the driver gives an error.
    """

    def told(result: Any, *values: Any) -> Any:
        if result != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"the driver of CUDA says {result}")
        return values[0] if len(values) == 1 else values

    handle = driver.CUgraph(graph)
    _, count = told(*driver.cuGraphGetNodes(handle))
    nodes = told(*driver.cuGraphGetNodes(handle, count))[0] if count else []
    most = 0.0
    for node in nodes[:count]:
        if told(*driver.cuGraphNodeGetType(node)) != driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL:
            continue
        kernel = told(*driver.cuGraphKernelNodeGetParams(node))
        blocks = kernel.gridDimX * kernel.gridDimY * kernel.gridDimZ
        threads = kernel.blockDimX * kernel.blockDimY * kernel.blockDimZ
        function = driver.CUfunction(int(kernel.func) or int(kernel.kern))  # the driver takes either here
        at_once = told(*driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, kernel.sharedMemBytes))
        most = max(most, blocks / max(at_once * num_multiprocessors, 1))
    return min(most, 1.0)


log = logging.getLogger("gst")

NUM_PAIRS = 36
SPAN_US = 100.0  # that each of a pair takes alone, about, so that they run at once for most of it
MOST_CALLS = 64  # of an operation in a graph
LEAST_US = 0.5  # of an operation of a pair: what takes less is no kernel
PEAK = 0.95  # quantile of the rates of operations: a gather reads less of a large table than its traffic says


def pairs_of_lanes(
    program: Program, devices: Sequence[Device], times_us: Float64[np.ndarray, "devices nodes"], repetitions: int = 5
) -> tuple[Pairs, ...]:
    """Time pairs of operations of a program on each accelerator that several devices share; of equal accelerators on
    the first. An operation that fails is left out, with a warning.

    Args:
        times_us: of each operation alone on each device.
        repetitions: of each span, of which the median counts.
    """
    lanes = Counter(device.torch_device for device in devices if device.is_accelerator)
    alike: dict[tuple[str, str], Pairs] = {}
    pairs = []
    for where in (each for each, count in lanes.items() if count > 1 and is_here(each)):
        number = next(number for number, device in enumerate(devices) if device.torch_device == where)
        kind = devices[number].kind, devices[number].description
        if kind in alike:
            pairs.append(replace(alike[kind], device=str(where), pairs=()))
            continue
        gb_per_s, gflops = _measured_rates(devices[number])
        try:
            alike[kind] = measured_pairs(
                program, where, times_us[number], repetitions, peak_gb_per_s=gb_per_s, peak_gflops=gflops
            )
        except ValueError as error:  # it records no graphs
            log.warning("no pairs of operations are timed on %s: %s", where, first_line(error))
            continue
        pairs.append(alike[kind])
    return tuple(pairs)


def measured_pairs(
    program: Program, device: torch.device, times_us: Float64[np.ndarray, " nodes"], repetitions: int = 5,
    count: int = NUM_PAIRS, graph: NewGraph | None = None, peak_gb_per_s: float = 0.0, peak_gflops: float = 0.0,
) -> Pairs:  # fmt: skip
    """Measure the demands of operations on an accelerator, and times of pairs of them. Pairs that fail, cannot be
    recorded or lack memory are left out.

    Args:
        program: its operations are sampled (`sampled_pairs`).
        device: an accelerator of this process, or with a `graph` any device.
        times_us: of each operation alone there; infinite where it cannot run.
        repetitions: of each span, of which the median counts.
        count: of pairs.
        graph: makes an empty graph; see `graph_maker`.
        peak_gb_per_s, peak_gflops: measured rates of memory and matrix products; if 0, quantiles of the operations'
            rates.

    Raises:
        ValueError: there is no such device here, or nothing can be recorded on it.
    """
    make = graph_maker(device, graph)
    if make is None:
        raise ValueError(f"pairs of operations are timed in graphs of an accelerator, {device} records none")
    can_be_paired = np.array(
        [each.kind == "operation" and can_be_recorded(program, node) for node, each in enumerate(program.operations)]
    )
    can_be_paired &= np.isfinite(times_us) & (times_us >= LEAST_US)
    traffic, arithmetic = traffic_bytes(program.graph.edges, program.output_bytes), flops(program.operations)
    pairs = Pairs(
        str(device), peak_gb_per_s or _quantile_of_rates(traffic, times_us, can_be_paired, PEAK),
        peak_gflops or _quantile_of_rates(arithmetic, times_us, can_be_paired, 1.0),
        _parts_of_threads(program, device), tuple(arithmetic.tolist()), (),
    )  # fmt: skip
    chosen = sampled_pairs(times_us, program.output_bytes.astype(np.float64), can_be_paired, count)
    timed: list[Pair] = []
    with timing_on(device):
        try:
            calls, threads = _calls_on_values(
                program, device, {node for pair in chosen for node in pair}, kernels_of(device)
            )
            synchronise([device])  # lanes read the values on streams of their own
        except RuntimeError as error:  # values of many operations are held at once
            log.warning("no pairs of operations are timed on %s: %s", device, first_line(error))
            return pairs
        pairs = replace(pairs, threads=tuple(threads.get(node, part) for node, part in enumerate(pairs.threads)))
        parts = pairs.parts(times_us, traffic)
        lanes, graphs = [Lane(device, 0) for _ in range(3)], Graphs(device, make)
        for nodes in chosen:
            both = [(calls[node], _num_calls(times_us[node], times_us[list(nodes)].max())) for node in nodes]
            try:
                one, other, together = (
                    _span_us(each, lanes, graphs, repetitions) for each in (both[:1], both[1:], both)
                )
            except RuntimeError as error:  # also one that the first calls raise, on a stream of their own
                names = " and ".join(str(program.operations[node].target) for node in nodes)
                log.warning("a pair of operations is left out, %s: %s", names, first_line(error))
                continue
            if one is not None and other is not None and together is not None:
                first, second = (tuple(parts[node].tolist()) for node in nodes)
                timed.append(Pair((first, second), (one, other), together))
    return replace(pairs, pairs=tuple(timed))


def sampled_pairs(
    times_us: Float64[np.ndarray, " nodes"], output_bytes: Float64[np.ndarray, " nodes"],
    can_be_paired: Bool[np.ndarray, " nodes"], count: int,
) -> list[tuple[int, int]]:  # fmt: skip
    """Return pairs of nodes, equal for equal arguments: alternately of short and long operations with small and large
    results; none without operations.

    Args:
        times_us: of each operation alone.
        output_bytes: of its result.
        can_be_paired: nodes that may be sampled.
        count: of pairs.

    Examples:
        >>> sampled_pairs(np.array([1.0, 9.0]), np.array([4.0, 4.0]), np.array([True, False]), 2)
        [(0, 0), (0, 0)]
    """
    nodes = np.flatnonzero(can_be_paired)
    if not len(nodes):
        return []
    is_long = times_us[nodes] > np.median(times_us[nodes])
    is_large = output_bytes[nodes] > np.median(output_bytes[nodes])
    classes = [nodes[(is_long == long) & (is_large == large)] for long in (False, True) for large in (False, True)]
    kinds = cycle(combinations_with_replacement([each for each in classes if len(each)], 2))
    rng = np.random.default_rng(0)
    return [
        (int(rng.choice(one)), int(rng.choice(other))) for _, (one, other) in zip(range(count), kinds, strict=False)
    ]


def _calls_on_values(
    program: Program, device: torch.device, nodes: set[int], kernels: Kernels | None
) -> tuple[dict[int, partial[Any]], dict[int, float]]:
    """Return calls of some operations by node, and the share of threads that each wants, if its kernels are known."""
    calls, threads, of_signature = {}, dict[int, float](), dict[Hashable, float | None]()
    for node, call, values, reason in first_runs(program, device):
        if node in nodes:
            arguments: Any = {each: values[each] for each in program.operations[node].producers}  # as calls index them
            calls[node] = partial(call, arguments)
        if kernels is None or reason or not can_be_recorded(program, node):
            continue
        signature = signature_of(program.operations[node], values)
        if signature not in of_signature:
            of_signature[signature] = kernels.part_of_threads(partial(call, values))
        if (part := of_signature[signature]) is not None:
            threads[node] = part
    return calls, threads


def _num_calls(time_us: float, longer_us: float) -> int:
    return int(np.clip(round(max(longer_us, SPAN_US) / time_us), 1, MOST_CALLS))


def _span_us(
    calls: Sequence[tuple[partial[Any], int]], lanes: Sequence[Lane], graphs: Graphs, repetitions: int
) -> float | None:
    """Return the median microseconds of calls, each on its own lane, in one graph; None if they cannot be recorded."""
    for lane, (call, _) in zip(lanes[1:], calls, strict=False):  # libraries take their workspaces for each stream
        with lane.stream or nullcontext():
            repeated(call, 2)
    synchronise([graphs.device])
    with lanes[0].stream or nullcontext():
        graph = graphs.record(partial(_fork, calls, lanes))
    return None if graph is None else graph_us(graph, graphs.device, repetitions)


def _fork(calls: Sequence[tuple[partial[Any], int]], lanes: Sequence[Lane]) -> None:
    """Launch calls, each on a lane of its own, forked from the first lane and joined with it."""
    origin, *forks = lanes
    begun = origin.record()
    for lane, (call, times) in zip(forks, calls, strict=False):
        lane.wait(begun)
        with lane.stream or nullcontext():
            repeated(call, times)
        origin.wait(lane.record())


def _parts_of_threads(program: Program, device: torch.device) -> tuple[float, ...]:
    """Estimate the share of an accelerator's threads that each operation wants: one for each 4 bytes of its result; 0
    if unknown."""
    properties = torch.get_device_module(device).get_device_properties(device) if is_here(device) else None
    each = getattr(properties, "max_threads_per_multi_processor", None)
    count = getattr(properties, "multi_processor_count", None)
    if each is None or count is None:
        return (0.0,) * program.num_nodes
    return tuple((program.output_bytes / 4 / (int(each) * int(count))).tolist())


def _quantile_of_rates(
    amount: Float64[np.ndarray, " nodes"], times_us: Float64[np.ndarray, " nodes"],
    is_counted: Bool[np.ndarray, " nodes"], quantile: float,
) -> float:  # fmt: skip
    """Return a quantile of amounts per microsecond in thousands: GB/s of bytes, GFLOP/s of operations."""
    return float(np.quantile(amount[is_counted] / times_us[is_counted] / 1e3, quantile)) if is_counted.any() else 0.0


def _measured_rates(device: Device) -> tuple[float, float]:
    """Return the measured GB/s of element-wise operations and GFLOP/s of matrix products here; 0 without them."""
    try:
        rates = saved_rates()
    except ValueError:  # a damaged file is no reason to place nothing
        return 0.0, 0.0
    of_device = None if rates is None else rates.of(device)
    return (0.0, 0.0) if of_device is None else (of_device.elementwise_gb_per_s, of_device.matrix_gflops)
