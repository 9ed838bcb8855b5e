"""What a node of a call graph knows of itself."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32

from gst.data.degree_profile import COLUMNS, degree_profile
from gst.data.elf.calls import CallGraph
from gst.data.elf.instructions import KINDS

NODE_FEATURES = (
    *(f"log_{column}" for column in COLUMNS), "log_callers", "log_callees", "log_bytes", "log_instructions", "imported",
    *(f"share_of_{kind}" for kind in KINDS),
)  # fmt: skip


def node_features(graph: CallGraph) -> Float32[np.ndarray, "nodes features"]:
    """The columns of `NODE_FEATURES`: the local degree profile, numbers of callers and callees, of bytes and
    instructions, all as log(1 + number); 1 for an imported function; the share of each kind among its instructions.

    What describes code is 0 for an imported function.
    """
    functions, instructions = len(graph.bounds), graph.instructions.sum(1)
    counts = np.zeros((graph.num_nodes, 4))
    counts[:, 0] = np.bincount(graph.edges[1], minlength=graph.num_nodes)
    counts[:, 1] = np.bincount(graph.edges[0], minlength=graph.num_nodes)
    counts[:functions, 2] = graph.bounds[:, 1] - graph.bounds[:, 0]
    counts[:functions, 3] = instructions
    imported = np.arange(graph.num_nodes) >= functions
    shares = np.zeros((graph.num_nodes, len(KINDS)))
    shares[:functions] = graph.instructions / np.maximum(instructions, 1)[:, None]
    profile = degree_profile(graph.edges, graph.num_nodes)
    return np.column_stack([np.log1p(profile), np.log1p(counts), imported, shares]).astype(np.float32)
