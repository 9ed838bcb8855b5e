"""Exchange of rows between processes that share a table: which of them move in a training step, and how.

All draws of a step follow from the seed and the number of the step, so each process computes those of all others, and
the rows they need, without communication.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from embedding_cache.sharded import Pulled, Pushed, ShardedTable
from gst.method.draws import Draw, Peers
from gst.method.estimates import Part
from gst.method.rows import ModelKeys, parts_of, report


@dataclass(frozen=True, eq=False)
class Traffic:
    """Rows that move between processes and the sharded table in one step.

    Args:
        keys, process: key of each entry, and the process of its graph. A segment whose embedding does not depend on the
            configuration has one entry.
        wanted, fresh: True for rows that are pulled, and that are pushed.
        own: the entry of each segment and configuration of this process, counted among its entries; -1 at padding.
    """

    rank: int
    keys: Int64[np.ndarray, " entries"]
    process: Int64[np.ndarray, " entries"]
    wanted: Bool[np.ndarray, " entries"]
    fresh: Bool[np.ndarray, " entries"]
    own: Int64[Tensor, "segments configs"]

    @staticmethod
    def of(
        peers: Peers,
        keys: Int64[Tensor, "segments configs"],
        graph: Int64[Tensor, " segments"],
        configurable: Bool[Tensor, " segments"],
        wanted: Bool[Tensor, " segments"],
        fresh: Bool[Tensor, " segments"],
    ) -> Traffic:
        """Collect the traffic of a step from the draws of all processes; `keys` are -1 at padding."""
        counted = keys >= 0
        counted[:, 1:] &= configurable[:, None]
        process = (graph % peers.world_size)[:, None]
        mine = torch.isin(graph, torch.tensor(peers.mine))
        own = torch.full((int(mine.sum()), keys.shape[1]), -1)
        if not peers.idle:
            here = counted[mine]
            own[here] = torch.arange(int(here.sum()))
            alike = ~configurable[mine]
            own[alike] = torch.where(keys[mine][alike] >= 0, own[alike][:, :1], -1)

        def entries(values: Tensor) -> np.ndarray:
            return values.expand_as(keys)[counted].numpy()

        return Traffic(
            peers.rank, entries(keys), entries(process), entries(wanted[:, None]), entries(fresh[:, None]), own
        )


class SharedRows:
    """`gst.method.rows.StepRows` of a table over several processes.

    Args:
        draw: this process's part of a draw for all processes.
        all_rows: pull the rows of all segments, not only of those that dropout keeps.

    Raises:
        ValueError: the draw is of one process, or a graph has no keys yet.
    """

    are_of_now = False

    def __init__(self, keys: ModelKeys, draw: Draw, like: Callable[[], Tensor], all_rows: bool) -> None:
        table, whole = keys.table, draw.whole
        assert isinstance(table, ShardedTable)
        if draw.peers is None or whole is None:
            raise ValueError(
                "a ShardedTable needs the graphs of all processes in every step: draw(graphs, configs, peers=...), "
                "then load; or give each process an EmbeddingTable of its own"
            )
        registered = table.ranges.num_keys
        every = keys.of(whole.catalogue, whole.configs)
        if table.ranges.num_keys != registered:
            raise ValueError("a step holds graphs without keys; register(graphs) on every process before the first")
        wanted = torch.ones_like(whole.fresh) if all_rows else ~whole.fresh & whole.kept
        catalogue = whole.catalogue
        self._traffic = Traffic.of(draw.peers, every, catalogue.graph, catalogue.configurable, wanted, whole.fresh)
        self._table, self._draw, self._like = table, draw, like
        self._mine = self._traffic.process == self._traffic.rank
        self._pulled: Pulled | None = None

    def begin(self) -> None:
        """Begin an asynchronous pull of the wanted rows."""
        self._pulled = self._table.request(self._traffic.keys, self._traffic.process, self._traffic.wanted)

    def ages(self) -> Int64[Tensor, "segments configs"]:
        written = torch.cat([self._arrived[1], torch.tensor([-1])])[self._traffic.own]  # -1, padding, is the last
        return torch.where(written >= 0, (self._draw.number - written).clamp(min=0), -1)

    def parts(self, is_read: Bool[Tensor, " segments"]) -> Iterator[Part]:
        return parts_of(self, is_read, self._traffic.own.shape[1])

    def of(self, segments: Int64[Tensor, " chosen"]) -> Float[Tensor, "chosen configs channels"]:
        """Return rows of wanted segments; zeros where there is none and in an idle process, any row at padding."""
        like, own = self._like(), self._traffic.own[segments]
        rows = self._arrived[0].to(like.device, torch.promote_types(like.dtype, torch.float32))
        if not len(rows):
            return rows.new_zeros(*own.shape, self._table.channels)
        return rows[self._place[own.clamp(min=0)].to(rows.device, non_blocking=True)]

    def push(self, embedded: Float[Tensor, "chosen configs channels"], segments: Int64[Tensor, " chosen"]) -> Pushed:
        """Send the rows of the fresh segments of this process, which its owner writes after the step."""
        return self._push(self._traffic.fresh, embedded, segments)

    def push_missing(self, embedded: Sequence[Tensor], segments: Int64[Tensor, " chosen"]) -> None:
        """Send the rows that the table lacks; every process takes part, also one without any."""
        empty = torch.zeros(0, self._traffic.own.shape[1], self._table.channels, device=self._like().device)
        _ = self._arrived
        assert self._pulled is not None
        self._push(self._pulled.unknown, torch.cat([*embedded] or [empty]), segments)

    def summed(self, values: Float64[Tensor, " numbers"]) -> Float64[Tensor, " numbers"]:
        """Return the sum over the processes, without those that are idle."""
        values = values * bool(self._mine.any())
        dist.all_reduce(values, group=self._table.group)
        return values

    def _push(self, chosen: Bool[np.ndarray, " entries"], embedded: Tensor, segments: Tensor) -> Pushed:
        entry = self._traffic.own[segments].flatten().numpy()
        row = np.full(int(self._mine.sum()) + 1, -1)  # of `embedded`, for each entry; padding writes the last
        row[entry[::-1]] = np.arange(len(entry))[::-1]  # where one entry is there more than once, the first
        sent = torch.from_numpy(row[:-1][chosen[self._mine]])
        rows = embedded.detach().flatten(0, 1)[sent.to(embedded.device, non_blocking=True)]
        draw, keys, process = self._draw, self._traffic.keys[chosen], self._traffic.process[chosen]
        refused = partial(report, draw.catalogue, segments[sent // embedded.shape[1]], draw.number)
        return self._table.submit(keys, process, rows, draw.number, refused)

    @cached_property
    def _arrived(self) -> tuple[Tensor, Tensor]:
        assert self._pulled is not None, "begin() comes first"
        return self._pulled.wait()

    @cached_property
    def _place(self) -> Int64[Tensor, " entries"]:
        """Position of each entry of this process among the rows that arrive."""
        return torch.from_numpy(self._traffic.wanted[self._mine].cumsum() - 1)
