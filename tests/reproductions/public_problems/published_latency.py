"""How long plans of published cost graphs take by the publication's own rules: the twin of `published`.

Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators" (NeurIPS 2020), and its code,
github.com/msr-fiddle/dnn-partitioning: `computeLatency` of latency-greedy/greedy.cpp, constraints of latency-ip/lip.py.
"""

from __future__ import annotations

from collections import defaultdict
from graphlib import CycleError, TopologicalSorter

import numpy as np
from jaxtyping import Int64

from experiments.reproductions.public_problems.cost_graphs import CostGraph, accelerators, refusal
from gst.lowering.plan import Plan


def latency(graph: CostGraph, plan: Plan) -> float:
    """Milliseconds of one sample under the published latency objective: slow, and obviously right.

    - A node on the CPU ends its `cpu_ms` after the last value it reads is there. Cores are never short, and moving
      values costs it nothing: the plan's order and which core it names do not matter.
    - An accelerator works by calls. A call computes a contiguous set of its nodes (no path leaves and comes back): it
      starts when everything read from outside is there, then reads each such value once, computes its nodes one
      after the other, and writes each value that is read outside, in that order, without overlap. All of its values
      are there at its end. A set that is not contiguous is cut at each return into as few calls as possible.

    `gst.simulation.simulator` on `graph.costs()` differs: an accelerator starts an operation as soon as its own
    values are there and its value leaves at once; transfers overlap with computation, and several with each other; a
    CPU core computes one node at a time, in the plan's order. So its makespan is the lesser for an accelerator with
    transfers, and the greater for many nodes on few cores.

    Raises:
        ValueError: the plan is not admitted (see `refusal`), the graph has a backward pass, or calls of several
            accelerators wait for each other.
    """
    if graph.backward.any():
        raise ValueError(f"{graph.name} has a backward pass; the latency objective is of inference")
    if why := refusal(graph, plan):
        raise ValueError(why)
    calls = _calls(graph, accelerators(plan))
    members: dict[int, list[int]] = defaultdict(list)
    read: dict[int, set[int]] = defaultdict(set)
    written: dict[int, set[int]] = defaultdict(set)
    for node, call in enumerate(calls):
        members[call].append(node)
    for producer, consumer in graph.edges.T.tolist():
        if calls[producer] != calls[consumer]:
            read[calls[consumer]].add(producer)
            written[calls[producer]].add(producer)
    waits = {call: {calls[node] for node in read[call]} for call in members}
    ends: dict[int, float] = {}
    try:
        for call in TopologicalSorter(waits).static_order():
            start = max((ends[other] for other in waits[call]), default=0.0)
            if plan.devices[plan.placement[members[call][0]]].startswith("cpu:"):
                ends[call] = start + graph.cpu_ms[call]
            else:
                moved = [*read[call], *written[call]]
                ends[call] = float(start + graph.accelerator_ms[members[call]].sum() + graph.transfer_ms[moved].sum())
    except CycleError as error:
        stuck = sorted({plan.devices[plan.placement[members[call][0]]] for call in error.args[1]})
        raise ValueError(f"calls of {', '.join(stuck)} wait for each other; no order of them exists") from None
    return float(max(ends.values()))


def _calls(graph: CostGraph, home: Int64[np.ndarray, " nodes"]) -> list[int]:
    """The first node of the call that each node is part of; itself on the CPU.

    A node belongs to call number k of its accelerator if k - 1 is the greatest number of returns to it on a path
    that ends at the node.
    """
    producers: dict[int, list[int]] = defaultdict(list)
    for producer, consumer in graph.edges.T.tolist():
        producers[consumer].append(producer)
    call = list(range(graph.num_nodes))
    for accelerator in np.unique(home[home >= 0]):
        here = home == accelerator
        number = [0] * graph.num_nodes
        first: dict[int, int] = {}
        for node in range(graph.num_nodes):
            entries = [number[each] + int(here[node] and not here[each]) for each in producers[node]]
            number[node] = max([int(here[node]), *entries])
            if here[node]:
                call[node] = first.setdefault(number[node], node)
    return call
