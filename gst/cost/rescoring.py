"""Incremental prediction of runtimes: configurations that differ in few nodes encode only the changed segments.

The readout of a cost model decomposes over segments, and `CostModel` cuts programs without context nodes, so the
embedding of a segment depends on the configuration of its own nodes alone. Embeddings are stored by segment and content
of its configuration. None is stale: weights change in `fit` alone, after which everything is encoded again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64

from gst.cost.model import CONFIGS_AT_ONCE, CostModel, Runtimes
from gst.graphs.graph import Graph
from gst.graphs.segments import SegmentedGraph, segment
from gst.method.batch import assemble
from gst.method.encoding import Call, embed_segments

PAIRS_AT_ONCE = 1 << 12  # (segment, configuration) pairs whose features are held in memory
ROWS_AT_ONCE = 1 << 18  # (node, configuration) pairs encoded together
MOST_STORED = 1 << 16  # embeddings of segments; beyond them all are forgotten

Block = Float32[np.ndarray, "configurable channels"]
"""Configuration features of the configurable nodes of one segment."""

Content = tuple[int, bytes]
"""A segment and a digest of its block."""


@dataclass(frozen=True, eq=False)
class Change:
    """The difference of a configuration from the base of a `Rescorer`: configurable nodes and their new features."""

    nodes: Int64[np.ndarray, " changed"]
    rows: Float32[np.ndarray, "changed channels"]


class Rescorer:
    """Predictor with the runtimes of `CostModel.predict` (to rounding) that encodes only segments with new content.

    When the model is fitted again, everything is encoded again.

    Examples:
        >>> from gst.data.synthetic import synthetic_program
        >>> graph, model = synthetic_program(num_nodes=60, num_configs=10), CostModel(max_nodes=20)
        >>> history = model.fit([graph], epochs=1)
        >>> rescorer = Rescorer(model, graph)           # the first configuration of the graph is the base
        >>> change = Change(graph.config_nodes[:1], graph.config_features[1, :1].astype(np.float32))
        >>> rescorer.predict([change]).shape            # each is the base with some rows changed
        (1,)
        >>> rescorer.rebase(change)                     # the move is accepted: the changed configuration is the base

    Attributes:
        num_encoded: (segment, content) pairs encoded so far, with those of bases.

    Raises:
        ValueError: the model has learned nothing yet.
    """

    def __init__(self, model: CostModel, graph: Graph) -> None:
        first = {name: getattr(graph, name)[:1] for name in ("config_features", "targets", "counts", "spreads")}
        cut = segment(replace(graph, **first), model.settings["max_nodes"])
        assert len(cut.config_columns) == len(graph.config_nodes), "without context no node stands in two segments"
        self.model, self.num_encoded = model, 0
        self._bounds = cut.config_ptr
        self._weights = cut.owned_counts / cut.num_nodes
        self._pieces = [_piece(cut, number) for number in range(cut.num_segments)]
        self._base = np.array(cut.config_features[0], np.float32)  # `rebase` writes to it
        first_rows = np.repeat(cut.row_ptr[:-1], np.diff(cut.config_ptr))
        self._column = np.full(cut.num_nodes, -1)
        self._column[cut.node_ids[first_rows + cut.config_rows]] = cut.config_columns
        self._begin()

    @property
    def num_segments(self) -> int:
        return len(self._pieces)

    @property
    def _width(self) -> int:
        return len(self._members) * int(self.model.settings["channels"])

    def predict(self, changes: Sequence[Change]) -> Runtimes:
        """Return the runtimes of these configurations, as `CostModel.predict`."""
        return np.exp(self.logs(changes)[0])

    def logs(self, changes: Sequence[Change]) -> tuple[Runtimes, Runtimes]:
        """Return mean and standard deviation over the members of the logarithm of each runtime.

        Raises:
            ValueError: a change names a node that is not configurable, or its rows do not fit.
        """
        if self._members is not self.model.members:
            self._begin()
        pooled = np.tile(self._pooled, (len(changes), 1))
        waiting: list[tuple[int, int, np.ndarray]] = []
        for number, change in enumerate(changes):
            waiting += [(number, place, block) for place, block in self._blocks(change)]
            if len(waiting) >= PAIRS_AT_ONCE:
                self._add_differences(pooled, waiting)
                waiting = []
        self._add_differences(pooled, waiting)
        return self._read_out(pooled)

    def rebase(self, change: Change) -> None:
        """Make a configuration the base of all further ones."""
        blocks = dict(self._blocks(change))
        for place, block in blocks.items():
            self._base[self._bounds[place] : self._bounds[place + 1]] = block
        if self._members is not self.model.members:
            self._begin()
        else:
            self._rebase_segments(blocks)

    def _begin(self) -> None:
        """Forget all embeddings and encode the base."""
        self._members = self.model.members
        if any(member.is_new() for member in self._members):
            raise ValueError("this cost model has learned nothing yet; call fit() or load() first")
        self._stored: dict[Content, np.ndarray] = {}
        self._base_rows = np.zeros((self.num_segments, self._width), np.float32)
        everything = zip(self._bounds[:-1], self._bounds[1:], strict=True)
        self._rebase_segments({place: self._base[low:high] for place, (low, high) in enumerate(everything)})

    def _rebase_segments(self, blocks: Mapping[int, np.ndarray]) -> None:
        """Replace the blocks of some segments of the base."""
        distinct = {(place, _digest(block)): block for place, block in blocks.items()}
        if distinct:
            self._base_rows[list(blocks)] = self._rows(distinct)
        self._pooled = self._weights @ self._base_rows.astype(np.float64)

    def _blocks(self, change: Change) -> Iterator[tuple[int, Block]]:
        """Yield the numbers of the segments that a change affects, and their changed blocks."""
        columns = self._column[change.nodes]
        if (columns < 0).any():
            node = int(change.nodes[int((columns < 0).argmax())])
            raise ValueError(f"a change names node {node}, which is not configurable; name configurable nodes only")
        if change.rows.shape != (len(columns), self._base.shape[1]):
            raise ValueError(
                f"a change of {len(columns)} nodes has rows of shape {change.rows.shape}; "
                f"want {(len(columns), self._base.shape[1])}"
            )
        order = np.argsort(columns, kind="stable")
        columns, rows = columns[order], change.rows[order]
        starts = np.searchsorted(columns, self._bounds)
        for place in np.flatnonzero(np.diff(starts)).tolist():
            low, high = self._bounds[place : place + 2]
            mine = slice(starts[place], starts[place + 1])
            block = self._base[low:high].copy()
            block[columns[mine] - low] = rows[mine]
            yield place, block

    def _add_differences(
        self, pooled: Float64[np.ndarray, "configs width"], waiting: Sequence[tuple[int, int, np.ndarray]]
    ) -> None:
        """Add to `pooled` the difference of each (configuration, segment, block) from the base."""
        if not waiting:
            return
        contents = [(place, _digest(block)) for _, place, block in waiting]
        distinct = {content: block for content, (_, _, block) in zip(contents, waiting, strict=True)}
        position = {content: number for number, content in enumerate(distinct)}
        rows = self._rows(distinct)[[position[content] for content in contents]]
        places = [place for _, place, _ in waiting]
        differences = rows.astype(np.float64) - self._base_rows[places]
        np.add.at(pooled, [number for number, _, _ in waiting], differences * self._weights[places, None])

    def _read_out(self, pooled: Float64[np.ndarray, "configs width"]) -> tuple[Runtimes, Runtimes]:
        parts = torch.from_numpy(pooled).float().split(self.model.settings["channels"], dim=1)
        with torch.no_grad():
            rows = [member.head(part[None])[0] for member, part in zip(self._members, parts, strict=True)]
        scores = torch.stack(rows).double().numpy()
        return scores.mean(0) * self.model.deviation + self.model.mean, scores.std(0) * self.model.deviation

    def _rows(self, blocks: Mapping[Content, np.ndarray]) -> Float32[np.ndarray, "contents width"]:
        """Return the embeddings of contents, members concatenated, stored or encoded now."""
        if len(self._stored) + len(blocks) > MOST_STORED:
            self._stored.clear()
        if new := [content for content in blocks if content not in self._stored]:
            rows = self._encode([(place, blocks[place, digest]) for place, digest in new])
            self._stored.update(zip(new, rows, strict=True))
        return np.array([self._stored[content] for content in blocks], np.float32).reshape(len(blocks), self._width)

    def _encode(self, blocks: Sequence[tuple[int, np.ndarray]]) -> Float32[np.ndarray, "contents width"]:
        """Encode (segment, block) pairs; segments with equally many blocks together, as graphs with these blocks."""
        of_segment: dict[int, list[int]] = defaultdict(list)
        for number, (place, _) in enumerate(blocks):
            of_segment[place].append(number)
        by_size: dict[int, list[tuple[int, list[int]]]] = defaultdict(list)
        for place, numbers in of_segment.items():
            for start in range(0, len(numbers), CONFIGS_AT_ONCE):
                part = numbers[start : start + CONFIGS_AT_ONCE]
                by_size[len(part)].append((place, part))
        rows = np.empty((len(blocks), self._width), np.float32)
        for size, lots in by_size.items():
            together = max(1, ROWS_AT_ONCE // (size * self.model.settings["max_nodes"]))
            for start in range(0, len(lots), together):
                few = lots[start : start + together]
                graphs = [_under(self._pieces[place], [blocks[number][1] for number in part]) for place, part in few]
                rows[[number for _, part in few for number in part]] = self._embed(graphs, size)
        self.num_encoded += len(blocks)
        return rows

    @torch.no_grad()
    def _embed(self, graphs: Sequence[SegmentedGraph], num_configs: int) -> Float32[np.ndarray, "contents width"]:
        """Encode one batch by all members, which share the search for equal states."""
        configs = torch.arange(num_configs).repeat(len(graphs), 1)
        batch = assemble(graphs, [(number, 0) for number in range(len(graphs))], configs)
        embedded = [embed_segments(member.encoder, batch, Call("batch"), "mean") for member in self._members]
        return torch.cat(embedded, dim=2).flatten(0, 1).numpy()


def _digest(block: Block) -> bytes:
    return blake2b(block.tobytes(), digest_size=16).digest()


def _piece(cut: SegmentedGraph, number: int) -> SegmentedGraph:
    """Return one segment as a graph."""
    pointers = (cut.row_ptr, cut.edge_ptr, cut.config_ptr)
    rows, edges, uses = (slice(*each[number : number + 2].tolist()) for each in pointers)
    row_ptr, edge_ptr, config_ptr = (np.array([0, part.stop - part.start]) for part in (rows, edges, uses))
    return SegmentedGraph(
        name=f"{cut.name}/{number}", num_nodes=int(cut.owned_counts[number]), edge_cut=0.0,
        owned_counts=cut.owned_counts[number : number + 1], row_ptr=row_ptr, edge_ptr=edge_ptr, config_ptr=config_ptr,
        node_ids=cut.node_ids[rows], node_features=cut.node_features[rows], opcodes=cut.opcodes[rows],
        edges=cut.edges[:, edges], config_rows=cut.config_rows[uses],
        config_columns=cut.config_columns[uses] - uses.start,
        config_features=np.zeros((1, uses.stop - uses.start, 0), np.float32), targets=np.full(1, np.nan),
        counts=np.ones(1, np.int64), spreads=np.zeros(1),
        node_data={name: array[rows] for name, array in cut.node_data.items()},
        edge_data={name: array[edges] for name, array in cut.edge_data.items()},
    )  # fmt: skip


def _under(piece: SegmentedGraph, blocks: Sequence[np.ndarray]) -> SegmentedGraph:
    """Return the segment with `blocks` as configurations."""
    count = len(blocks)
    return replace(
        piece, config_features=np.stack(blocks), targets=np.full(count, np.nan), counts=np.ones(count, np.int64),
        spreads=np.zeros(count),
    )  # fmt: skip
