"""Plans that were run for real, as a `Graph`: the program is the graph, a plan is a configuration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from gst.devices.plan import Plan
from gst.graph import Graph
from gst.programs import Program


def plans_graph(
    program: Program,
    times_us: Float64[np.ndarray, "devices nodes"],
    plans: Sequence[Plan],
    runtimes_ns: Float64[np.ndarray, " plans"] | None = None,
) -> Graph:
    """The program with every operation configurable and one configuration per plan.

    Node features are those of the program and the logarithm of the profiled time of the operation on each device. A
    configuration gives each node, for each device, whether it runs there and its share of the program's time there
    (1 = an average operation), then how many of its inputs come from another device and the logarithm of their bytes.

    Args:
        times_us: profiled time of each operation on each device of the plans.
        runtimes_ns: measured runtimes of the plans.
    """
    devices = np.arange(len(times_us))
    share = times_us / max(times_us.mean(), 1e-9)
    producers, consumers = program.graph.edges
    output_bytes = program.output_bytes.astype(np.float64)
    features = np.empty((len(plans), program.num_nodes, 2 * len(devices) + 2), np.float32)
    for row, plan in zip(features, plans, strict=True):
        here = plan.placement[:, None] == devices
        crossing = plan.placement[producers] != plan.placement[consumers]
        received = np.bincount(consumers[crossing], output_bytes[producers[crossing]], program.num_nodes)
        row[:, : len(devices)] = here
        row[:, len(devices) : -2] = here * share.T
        row[:, -2] = np.bincount(consumers[crossing], minlength=program.num_nodes)
        row[:, -1] = np.log1p(received)
    return Graph(
        node_features=np.hstack([program.graph.node_features, np.log1p(times_us.T)]).astype(np.float32),
        edges=program.graph.edges,
        opcodes=program.graph.opcodes,
        config_nodes=np.arange(program.num_nodes),
        config_features=features,
        targets=np.full(len(plans), np.nan) if runtimes_ns is None else runtimes_ns,
    )
