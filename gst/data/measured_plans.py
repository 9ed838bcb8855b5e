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

    Node features are those of the program and the logarithm of the profiled time of the operation on each device, a
    configuration is the device of each node, one-hot.

    Args:
        times_us: profiled time of each operation on each device of the plans.
        runtimes_ns: measured runtimes of the plans.
    """
    num_devices = len(times_us)
    placements = np.stack([plan.placement for plan in plans])
    return Graph(
        node_features=np.hstack([program.graph.node_features, np.log1p(times_us.T)]).astype(np.float32),
        edges=program.graph.edges,
        opcodes=program.graph.opcodes,
        config_nodes=np.arange(program.num_nodes),
        config_features=(placements[..., None] == np.arange(num_devices)).astype(np.int8),
        targets=runtimes_ns,   # type: ignore[arg-type]
    )
