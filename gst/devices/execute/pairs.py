"""Pairs of operations timed at once on two streams of one accelerator, beside the time of each alone.

Two kernels that each leave much of an accelerator idle run at once as fast as alone; two that each fill it take turns.
What a pair takes is fitted by `gst.devices.simulate.share_fit`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations_with_replacement, cycle
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64

from gst.devices.describe.machine import Device
from gst.devices.describe.rates import saved_rates
from gst.devices.execute.event_times import draws_on_host, first_runs
from gst.devices.execute.lanes import Lane, is_here, synchronise
from gst.devices.execute.recording import Graph, recorded
from gst.devices.execute.spans import NewGraph, graph_maker, graph_us, repeated, timing_on
from gst.programs import Program

NUM_PAIRS = 36
SPAN_US = 100.0  # that each of a pair takes alone, about, so that they run at once for most of it
MOST_CALLS = 64  # of an operation in a graph
LEAST_US = 0.5  # of an operation of a pair: what takes less is no kernel


@dataclass(frozen=True)
class Pair:
    """Two operations, each called several times on a stream of its own.

    Args:
        kilobytes: of the result of each.
        gb_per_s: that each reads and writes while it runs alone.
        alone_us: what the calls of each take alone.
        both_us: what the calls of both take at once.
    """

    kilobytes: tuple[float, float]
    gb_per_s: tuple[float, float]
    alone_us: tuple[float, float]
    both_us: float


@dataclass(frozen=True)
class Pairs:
    """Pairs of one accelerator.

    Args:
        threads: that it can run at once; None if it does not tell.
        peak_gb_per_s: the most that an operation reads and writes.
        pairs: that were timed.
    """

    threads: int | None
    peak_gb_per_s: float
    pairs: tuple[Pair, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON; `from_dict` reads it."""
        return asdict(self)

    @staticmethod
    def from_dict(record: dict[str, Any]) -> Pairs:
        """What `to_dict` gave, with lists for tuples as JSON has them.

        Examples:
            >>> pairs = Pairs(None, 900.0, (Pair((4.0, 8.0), (1.0, 2.0), (9.0, 10.0), 11.0),))
            >>> Pairs.from_dict(pairs.to_dict()) == pairs
            True
        """
        pairs = tuple(
            Pair(tuple(each["kilobytes"]), tuple(each["gb_per_s"]), tuple(each["alone_us"]), each["both_us"])
            for each in record["pairs"]
        )
        return Pairs(record["threads"], record["peak_gb_per_s"], pairs)


def pairs_of_lanes(
    program: Program, devices: Sequence[Device], times_us: Float64[np.ndarray, "devices nodes"], repetitions: int = 5
) -> Pairs | None:
    """Pairs of operations of a program on the first accelerator of which several devices are lanes; None where there is
    none in this process.

    Args:
        program: whose operations are sampled.
        devices: that plans name.
        times_us: of each operation alone on each device.
        repetitions: of each span, of which the median counts.
    """
    lanes = Counter(device.torch_device for device in devices if device.is_accelerator)
    shared = next((each for each, count in lanes.items() if count > 1 and is_here(each)), None)
    if shared is None:
        return None
    first = next(number for number, device in enumerate(devices) if device.torch_device == shared)
    return measured_pairs(program, shared, times_us[first], repetitions, rates_gb_per_s=_known_rate(devices[first]))


def measured_pairs(
    program: Program, device: torch.device, times_us: Float64[np.ndarray, " nodes"], repetitions: int = 5,
    count: int = NUM_PAIRS, graph: NewGraph | None = None, rates_gb_per_s: float = 0.0,
) -> Pairs:  # fmt: skip
    """Time pairs of operations of a program. Pairs that cannot be recorded are left out.

    Args:
        program: whose operations are sampled (`sampled_pairs`).
        device: an accelerator of this process, or with a `graph` any device.
        times_us: of each operation alone there; infinite where it cannot run.
        repetitions: of each span, of which the median counts.
        count: of pairs.
        graph: makes an empty graph; see `gst.devices.execute.spans.graph_maker`.
        rates_gb_per_s: of memory, where it was measured; the peak is at least that of the program's operations.

    Raises:
        ValueError: there is no such device here, or nothing can be recorded on it.
    """
    make = graph_maker(device, graph)
    if make is None:
        raise ValueError(f"pairs of operations are timed in graphs of an accelerator, {device} records none")
    traffic = traffic_bytes(program.graph.edges, program.output_bytes)
    can_be_paired = np.array([each.kind == "operation" and not draws_on_host(each) for each in program.operations])
    can_be_paired &= np.isfinite(times_us) & (times_us >= LEAST_US)
    rates = np.where(can_be_paired, traffic / np.where(can_be_paired, times_us, 1.0) / 1e3, 0.0)
    chosen = sampled_pairs(times_us, program.output_bytes.astype(np.float64), can_be_paired, count)
    with timing_on(device):
        runs = _held_calls(program, device, {node for pair in chosen for node in pair})
        lanes = [Lane(device, 0) for _ in range(3)]
        pairs = []
        for nodes in chosen:
            with suppress(Exception):  # whatever operators do that a graph cannot, and memory that is short
                calls = [(runs[node], _num_calls(times_us[node], times_us[list(nodes)].max())) for node in nodes]
                alone = [graph_us(_together([each], lanes, device, make), device, repetitions) for each in calls]
                both = graph_us(_together(calls, lanes, device, make), device, repetitions)
                one, other = nodes
                pairs.append(Pair(
                    (program.output_bytes[one] / 1e3, program.output_bytes[other] / 1e3),
                    (float(rates[one]), float(rates[other])), (alone[0], alone[1]), both,
                ))  # fmt: skip
    return Pairs(_threads(device), float(max(rates.max(initial=0.0), rates_gb_per_s)), tuple(pairs))


def sampled_pairs(
    times_us: Float64[np.ndarray, " nodes"], output_bytes: Float64[np.ndarray, " nodes"],
    can_be_paired: Bool[np.ndarray, " nodes"], count: int,
) -> list[tuple[int, int]]:  # fmt: skip
    """Pairs of nodes, the same for the same arguments: of short and long ones with small and large results each with
    each, in turns.

    Args:
        times_us: of each operation alone.
        output_bytes: of its result.
        can_be_paired: which may be sampled.
        count: of pairs; fewer if there are no operations.

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


def traffic_bytes(
    edges: Int64[np.ndarray, "2 edges"], output_bytes: Int64[np.ndarray, " nodes"]
) -> Float64[np.ndarray, " nodes"]:
    """Bytes that each node reads and writes: of its result, and of each value it reads.

    Examples:
        >>> traffic_bytes(np.array([[0], [1]]), np.array([4, 8])).tolist()
        [4.0, 12.0]
    """
    size = output_bytes.astype(np.float64)
    return np.bincount(edges[1], size[edges[0]], len(size)) + size


def _held_calls(program: Program, device: torch.device, nodes: set[int]) -> dict[int, partial[Any]]:
    """Calls of some operations on values that are held for them."""
    held = {}
    for node, call, values, _ in first_runs(program, device):
        if node in nodes:
            read: Any = {each: values[each] for each in program.operations[node].producers}  # as calls index values
            held[node] = partial(call, read)
    return held


def _num_calls(time_us: float, longer_us: float) -> int:
    return int(np.clip(round(max(longer_us, SPAN_US) / time_us), 1, MOST_CALLS))


def _together(
    calls: Sequence[tuple[partial[Any], int]], lanes: Sequence[Lane], device: torch.device, make: NewGraph
) -> Graph:
    """A graph of calls, each on a lane of its own, forked from the first lane and joined with it."""
    origin, *forks = lanes
    for lane, (call, _) in zip(forks, calls, strict=False):  # libraries take their workspaces for each stream
        with lane.stream or nullcontext():
            repeated(call, 2)
    synchronise([device])
    graph = make(device, None)
    with origin.stream or nullcontext(), recorded(graph):
        begun = origin.record()
        for lane, (call, times) in zip(forks, calls, strict=False):
            lane.wait(begun)
            with lane.stream or nullcontext():
                repeated(call, times)
            origin.wait(lane.record())
    return graph


def _threads(device: torch.device) -> int | None:
    """How many threads an accelerator can run at once, as far as its module in PyTorch tells."""
    if not is_here(device):
        return None
    properties = torch.get_device_module(device).get_device_properties(device)
    each = getattr(properties, "max_threads_per_multi_processor", None)
    count = getattr(properties, "multi_processor_count", None)
    return None if each is None or count is None else int(each) * int(count)


def _known_rate(device: Device) -> float:
    """GB/s of element-wise operations where this machine was measured (`gst devices --measure`), otherwise 0."""
    try:
        rates = saved_rates()
    except ValueError:  # a damaged file is no reason to place nothing
        return 0.0
    known = None if rates is None else rates.of(device)
    return 0.0 if known is None else known.elementwise_gb_per_s
