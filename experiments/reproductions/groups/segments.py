"""Convex segments: groups of all kinds of operations, of bounded work. They do not pay, see the README."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64

from gst.lowering.fusion import Quotient, legalise, without_outer_views
from gst.placement.baselines.portfolio import portfolio
from gst.placement.fusion import contracted, numbered
from gst.placement.objectives import SimulatedObjective
from gst.placement.task import Task
from gst.programs import Program

NUM_SEGMENTS = 24  # of equal work


def convex_segments(
    program: Program, time_us: Float64[np.ndarray, " nodes"], num_segments: int
) -> Int64[np.ndarray, " nodes"]:
    """Group operations that exchange many bytes into legal groups, none of which exceeds its share of the time.

    Edges are contracted in the order of their bytes, heaviest first, unless the two groups together take more than
    `time_us.sum() / num_segments`, or another path leads from the one to the other. That is heavy-edge coarsening with
    acyclicity kept (Herrmann et al., Multilevel Algorithms for Acyclic Partitioning of Directed Acyclic Graphs, SIAM
    Journal on Scientific Computing 41(4), 2019, section 4.1). A reader waits for the whole group, so groups of bounded
    time keep waits short.

    Args:
        program: of the operations.
        time_us: of each operation.
        num_segments: number of segments of equal work; there are more groups, as a rule.

    Returns:
        `Plan.fusion` of operations on one device, as of `pointwise_chains`.

    Raises:
        ValueError: `num_segments` is below 1.

    Examples:
        >>> import torch
        >>> from gst.programs import capture_module
        >>> layers = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Sigmoid(), torch.nn.Tanh(), torch.nn.ReLU())
        >>> program = capture_module(layers, (torch.zeros(8),))
        >>> convex_segments(program, np.array([0.0, 1.0, 1.0, 1.0, 1.0]), num_segments=2).tolist()
        [-1, 0, 0, 1, 1]
    """
    if num_segments < 1:
        raise ValueError(f"num_segments is {num_segments}; want 1 or more")
    quotient, work, most = Quotient(program), time_us.tolist(), float(time_us.sum()) / num_segments
    producers, consumers = program.graph.edges.tolist()
    computed = np.array([each.kind == "operation" for each in program.operations])
    heaviest = np.argsort(-program.output_bytes[producers], kind="stable").tolist()
    edges = [(producers[each], consumers[each]) for each in heaviest if computed[producers[each]]]
    while True:
        joined = 0
        for producer, consumer in edges:
            a, b = sorted((quotient.of(producer), quotient.of(consumer)))
            if work[a] + work[b] <= most and quotient.join(a, b):
                work[a] += work[b]
                joined += 1
        if not joined:  # otherwise a path through others may be an edge now
            break
    groups = np.array([quotient.of(node) for node in range(program.num_nodes)], np.int64)
    groups = without_outer_views(program, np.where(computed, groups, -1))
    return legalise(program, groups, np.zeros(program.num_nodes, np.int64))


def segments(task: Task) -> Int64[np.ndarray, " nodes"]:
    """Cut a task's program into groups of all kinds of operations, see `convex_segments`.

    The work of an operation is its time on the device of fewest threads that can run all; if none can, on the device
    that takes least for it.
    """
    assert task.program is not None
    can_run_all = np.flatnonzero(np.isfinite(task.times_us).all(1)).tolist()
    fewest = min(can_run_all, key=lambda device: task.devices[device].threads, default=None)
    work_us = task.times_us.min(0) if fewest is None else task.times_us[fewest]
    return numbered(convex_segments(task.program, work_us, NUM_SEGMENTS))


def share_in_parallel(task: Task, groups: Int64[np.ndarray, " nodes"]) -> float:
    """Return the simulated time of the best of a few plans / the time of the fastest device for all operations.

    Each group is one operation that takes as long as its operations do. NaN if none of the plans can run. Nothing is
    compiled.
    """
    try:
        fused = contracted(task, groups, np.ones((len(task.devices), int(groups.max(initial=-1)) + 1))).task
    except ValueError:  # two operations of a group run on no device both
        return float("nan")
    expected_ms = SimulatedObjective(fused)(list(portfolio(fused).values()))
    best_ms = np.min(expected_ms[np.isfinite(expected_ms)], initial=np.inf)
    return float(best_ms * 1e3 / fused.least_alone_us) if np.isfinite(best_ms) else float("nan")
