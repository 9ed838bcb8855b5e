"""One training step of several processes: which process takes which graph, and which rows of the sharded table move.

All draws of a step follow from the seed and the number of the step, so each process computes those of all others, and
the rows they need, without communication. With the same global step (`graphs_per_step` times the number of processes)
any number of processes draws the same graphs, configurations, segments and dropouts, and follows the same gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from embedding_cache.sharded import Pushed, ShardedTable
from gst.graphs.segments import SegmentedGraph

Warn = Callable[[Tensor, int, Tensor], None]  # the segment of each row, the step, and which rows are not finite


@dataclass(frozen=True, eq=False)
class Peers:
    """The graphs of one step over all processes, in the order of a single process: graph i belongs to process
    i % world_size. An idle rank recomputes graph 0 with zero loss weight.

    Args:
        graphs, configs, targets: as in `gst.data.loader.Step`.
    """

    rank: int
    world_size: int
    graphs: tuple[SegmentedGraph, ...]
    configs: Int64[Tensor, "graphs configs"]
    targets: Float64[Tensor, "graphs configs"]

    @property
    def idle(self) -> bool:
        return self.rank >= len(self.graphs)

    @property
    def mine(self) -> list[int]:
        """Positions of this process's graphs in `graphs`."""
        return [0] if self.idle else list(range(self.rank, len(self.graphs), self.world_size))


@dataclass(frozen=True, eq=False)
class Traffic:
    """Rows that move between processes and the sharded table in one step. Entries are the keys of all segments of the
    step, in order; a segment whose embedding does not depend on the configuration has one entry.

    Args:
        rank: of this process.
        keys: of each entry.
        process: the process that its graph belongs to.
        wanted: whether its row is pulled.
        fresh: whether a new row is pushed.
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
        """The traffic of a step, from the draws of all processes.

        Args:
            keys: -1 at padding.
            graph: the position of each segment's graph in the step.
        """
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

    def request(self, table: ShardedTable) -> PendingRows:
        """Begin an asynchronous pull of the wanted rows."""
        return PendingRows(self, table)


class PendingRows:
    """Handle of an asynchronous pull: rows of the segments of this process, and the push of new ones."""

    def __init__(self, traffic: Traffic, table: ShardedTable) -> None:
        self._traffic, self._table = traffic, table
        self._mine = traffic.process == traffic.rank
        self._pulled = table.request(traffic.keys, traffic.process, traffic.wanted)
        self._arrived: tuple[Tensor, Tensor] | None = None

    @property
    def channels(self) -> int:
        return self._table.shard.channels

    def is_known(self) -> Bool[Tensor, "segments configs"]:
        """Whether there is a row; False at padding."""
        own, is_known = self._traffic.own, torch.cat([self._wait()[1], torch.zeros(1, dtype=torch.bool)])
        return is_known[own]  # -1 is the last

    def rows(self, segments: Int64[Tensor, " chosen"], like: Tensor) -> Float[Tensor, "chosen configs channels"]:
        """Rows of wanted segments; zeros where there is none and in an idle process, any row at padding."""
        place = torch.from_numpy(self._traffic.wanted[self._mine].cumsum() - 1)
        rows = self._wait()[0].to(like.device, torch.promote_types(like.dtype, torch.float32))
        if not len(rows):
            return rows.new_zeros(*self._traffic.own[segments].shape, self.channels)
        return rows[place[self._traffic.own[segments].clamp(min=0)].to(rows.device, non_blocking=True)]

    def push_fresh(self, embedded: Tensor, segments: Int64[Tensor, " chosen"], step: int, warn: Warn) -> Pushed:
        """Push the rows of the fresh segments; `embedded` are those of this process, its `segments`. They are written
        after the step, unless a condition of what is returned fails in one of the processes; `warn` hears of those
        that are not finite."""
        return self._push(self._traffic.fresh, embedded, segments, step, warn)

    def push_unknown(self, embedded: Tensor, segments: Int64[Tensor, " chosen"], step: int, warn: Warn) -> None:
        """Push the rows that the table lacks; `embedded` holds at least those of this process."""
        self._wait()
        self._push(self._pulled.unknown, embedded, segments, step, warn)

    def summed(self, values: Float64[Tensor, " numbers"]) -> Float64[Tensor, " numbers"]:
        """The sum of `values` over the processes, without those that are idle."""
        values = values * bool(self._mine.any())
        dist.all_reduce(values, group=self._table.group)
        return values

    def _push(
        self, chosen: Bool[np.ndarray, " entries"], embedded: Tensor, segments: Tensor, step: int, warn: Warn
    ) -> Pushed:
        entry = self._traffic.own[segments].flatten().numpy()
        row = np.full(int(self._mine.sum()) + 1, -1)  # of `embedded`, for each entry; padding writes the last
        row[entry[::-1]] = np.arange(len(entry))[::-1]  # where one entry is there more than once, the first
        sent = torch.from_numpy(row[:-1][chosen[self._mine]])
        rows = embedded.detach().flatten(0, 1)[sent.to(embedded.device, non_blocking=True)]
        refused = partial(warn, segments[sent // embedded.shape[1]], step)
        return self._table.submit(self._traffic.keys[chosen], self._traffic.process[chosen], rows, step, refused)

    def _wait(self) -> tuple[Tensor, Tensor]:
        self._arrived = self._arrived or self._pulled.wait()
        return self._arrived
