"""Put chosen segments of some graphs side by side for an encoder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from gst.graphs.segments import SegmentedGraph
from gst.method.batch import SegmentBatch


def assemble(
    graphs: Sequence[SegmentedGraph],
    picks: Sequence[tuple[int, int]],
    configs: Int64[Tensor, "graphs configs"],
) -> SegmentBatch:
    """Put segments side by side.

    Args:
        picks: (position in `graphs`, segment of that graph) of each segment of the batch.
        configs: configurations of each graph; -1 (padding) repeats the graph's first one.
    """
    chosen = configs.clamp(min=0).numpy()
    parts: dict[str, list[np.ndarray]] = {key: [] for key in ("x", "op", "edges", "rows", "config")}
    row_counts, owned_counts = [], []
    start = 0
    for g, j in picks:
        graph = graphs[g]
        rows = slice(graph.row_ptr[j], graph.row_ptr[j + 1])
        uses = slice(graph.config_ptr[j], graph.config_ptr[j + 1])
        columns = graph.config_columns[uses]
        parts["x"].append(graph.node_features[rows])
        parts["op"].append(graph.opcodes[rows])
        parts["edges"].append(graph.edges[:, graph.edge_ptr[j] : graph.edge_ptr[j + 1]].astype(np.int64) + start)
        parts["rows"].append(graph.config_rows[uses].astype(np.int64) + start)
        parts["config"].append(graph.config_features[chosen[g][None, :], columns[:, None]].astype(np.float32))
        row_counts.append(rows.stop - rows.start)
        owned_counts.append(graph.owned_counts[j])
        start += row_counts[-1]
    lengths, owned = np.array(row_counts), np.array(owned_counts)
    within = np.arange(start) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    segment_of_node = np.repeat(np.arange(len(picks)), lengths)
    tensor = torch.from_numpy
    return SegmentBatch(
        node_features=tensor(np.concatenate(parts["x"])),
        opcodes=tensor(np.concatenate(parts["op"]).astype(np.int64)),
        edge_index=tensor(np.concatenate(parts["edges"], axis=1)),
        segment_of_node=tensor(segment_of_node),
        owned=tensor(within < owned[segment_of_node]),
        node_counts=tensor(owned.astype(np.int64)),
        config_nodes=tensor(np.concatenate(parts["rows"])),
        config_features=tensor(np.concatenate(parts["config"])),
    )
