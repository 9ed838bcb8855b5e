"""Incremental prediction of runtimes: configurations that differ in few nodes encode only the changed segments.

The readout of a cost model decomposes over segments, and `CostModel` cuts programs without context nodes, so the
embedding of a segment depends on the configuration of its own nodes alone. Embeddings are stored by segment and content
of its configuration. None is stale: weights change in `fit` alone, after which everything is encoded again.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float32, Shaped

from gst.cost.model import CONFIGS_AT_ONCE, CostModel, Runtimes
from gst.graphs.graph import Graph
from gst.graphs.segments import SegmentedGraph, segment
from gst.method.batch import assemble
from gst.method.encoding import Call, embed_segments

MOST_STORED = 1 << 16  # embeddings of segments; beyond them all are forgotten
Cut = TypeVar("Cut", Graph, SegmentedGraph)
Features = Shaped[np.ndarray, "configs configurable channels"]


class Rescorer:
    """Predictor with the runtimes of `CostModel.predict` (to rounding) that encodes only segments with new content.

    Args:
        graph: its own configurations are not read.

    Examples:
        >>> from gst.data.synthetic import synthetic_program
        >>> graph, model = synthetic_program(num_nodes=60, num_configs=10), CostModel(max_nodes=20)
        >>> history = model.fit([graph], epochs=1)
        >>> rescorer = Rescorer(model, graph)
        >>> rescorer.predict(graph.config_features[:3]).shape  # as the `config_features` of the graph
        (3,)

    Attributes:
        num_encoded: (segment, content) pairs encoded so far.

    Raises:
        ValueError: the model has learned nothing yet.
    """

    def __init__(self, model: CostModel, graph: Graph) -> None:
        self.model, self.num_encoded = model, 0
        self._cut = cut = segment(_under(graph, graph.config_features[:1]), model.settings["max_nodes"])
        assert len(cut.config_columns) == len(graph.config_nodes), "without context no node stands in two segments"
        first_rows = np.repeat(cut.row_ptr[:-1], np.diff(cut.config_ptr))
        column = np.full(cut.num_nodes, -1)
        column[graph.config_nodes] = np.arange(len(graph.config_nodes))
        self._order = np.empty(len(graph.config_nodes), np.int64)  # the graph's column of each column of the segments
        self._order[cut.config_columns] = column[cut.node_ids[first_rows + cut.config_rows]]
        self._begin()

    @property
    def num_segments(self) -> int:
        return self._cut.num_segments

    def predict(self, features: Features) -> Runtimes:
        """Return the runtimes of these configurations, as `CostModel.predict`."""
        return np.exp(self.logs(features)[0])

    def logs(self, features: Features) -> tuple[Runtimes, Runtimes]:
        """Return mean and standard deviation over the members of the logarithm of each runtime.

        Raises:
            ValueError: the features are of other nodes or channels.
        """
        columns, width = self._cut.config_features.shape[1:]
        if features.shape[1:] != (columns, width):
            raise ValueError(f"features have shape {features.shape}; want (configs, {columns}, {width})")
        if self._members is not self.model.members:
            self._begin()
        graph = _under(self._cut, np.ascontiguousarray(features[:, self._order], np.float32))
        channels = int(self.model.settings["channels"])
        pooled = np.zeros((len(features), len(self._members) * channels))
        for number, share in enumerate(graph.owned_counts / graph.num_nodes if len(features) else ()):
            pooled += share * self._rows(graph, number)
        parts = torch.from_numpy(pooled).float().split(channels, dim=1)
        with torch.no_grad():
            rows = [member.head(part[None])[0] for member, part in zip(self._members, parts, strict=True)]
        scores = torch.stack(rows).double().numpy()
        return scores.mean(0) * self.model.deviation + self.model.mean, scores.std(0) * self.model.deviation

    def _begin(self) -> None:
        """Forget all embeddings."""
        self._members = self.model.members
        if any(member.is_new() for member in self._members):
            raise ValueError("this cost model has learned nothing yet; call fit() or load() first")
        self._stored: dict[tuple[int, bytes], np.ndarray] = {}

    @torch.no_grad()
    def _rows(self, graph: SegmentedGraph, number: int) -> Float32[np.ndarray, "configs width"]:
        """Return the embeddings of a segment, members concatenated, stored or encoded now."""
        low, high = graph.config_ptr[number : number + 2]
        digests = [blake2b(block.tobytes(), digest_size=16).digest() for block in graph.config_features[:, low:high]]
        contents = [(number, digest) for digest in digests]
        if len(self._stored) > MOST_STORED:
            self._stored.clear()
        new = {content: config for config, content in enumerate(contents) if content not in self._stored}
        places = list(new.values())
        for some in (places[start : start + CONFIGS_AT_ONCE] for start in range(0, len(places), CONFIGS_AT_ONCE)):
            batch = assemble([graph], [(0, number)], torch.tensor([some]))
            embedded = [embed_segments(member.encoder, batch, Call("batch"), "mean") for member in self._members]
            rows = torch.cat(embedded, dim=2)[0].numpy()
            self._stored.update(zip([contents[config] for config in some], rows, strict=True))
        self.num_encoded += len(new)
        return np.array([self._stored[content] for content in contents])


def _under(graph: Cut, features: np.ndarray) -> Cut:
    """Return the graph with other configurations."""
    count = len(features)
    return replace(
        graph, config_features=features, targets=np.full(count, np.nan), counts=np.ones(count, np.int64),
        spreads=np.zeros(count),
    )  # fmt: skip
