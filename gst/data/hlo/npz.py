"""Writing a graph in the npz format of the TpuGraphs layout collections."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gst.graphs.graph import Graph


def write_npz(graph: Graph, path: Path | str) -> None:
    """Write `path` at once or not at all, so that `gst.data.tpugraphs.read` and the published readers read it.

    Edges are stored as (consumer, producer), runtimes as whole nanoseconds, one row for each configuration of the
    graph; an unknown runtime is 0. `node_splits`, which names the first node of each computation, is not written: no
    reader needs it.
    """
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    with partial.open("wb") as file:
        np.savez_compressed(
            file,
            node_feat=graph.node_features,
            node_opcode=graph.opcodes.astype(np.uint8 if graph.opcodes.max() < 256 else np.int64),
            edge_index=np.ascontiguousarray(graph.edges[::-1].T),
            node_config_ids=graph.config_nodes,
            node_config_feat=graph.config_features.astype(np.float32),
            config_runtime=np.rint(np.nan_to_num(graph.targets)).astype(np.int64),
        )
    partial.replace(path)
