"""Exchange of rows between processes that share a table: which of them move in a training step, and how.

All draws of a step follow from the seed and the number of the step, so each process computes those of all others, and
the rows they need, without communication.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from embedding_cache.sharded import Pulled, Pushed, ShardedTable
from gst.method import origins
from gst.method.draws import Draw
from gst.method.rows import Chosen, Embedded, IsKnown, Kept, ModelKeys, StepRows, report


class SharedRows(StepRows):
    """Rows of a table over several processes.

    Args:
        draw: this process's part of a draw for all processes.
        all_rows: pull the rows of all segments, not only of those that dropout keeps.

    Raises:
        ValueError: the draw is of one process, or a graph has no keys yet.
    """

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
        self.num_configs = draw.configs.shape[1]
        if table.ranges.num_keys != registered:
            raise ValueError("a step holds graphs without keys; register(graphs) on every process before the first")
        self._table, self._draw, self._like = table, draw, like
        self._pulled: Pulled | None = None
        catalogue, peers = whole.catalogue, draw.peers
        counted = every >= 0  # not padding; a segment whose embedding depends on no configuration has one entry
        counted[:, 1 : self.num_configs] &= catalogue.configurable[:, None]

        def entries(values: Tensor) -> np.ndarray:
            return values.expand_as(every)[counted].numpy()

        # Of each entry its key, the process of its graph, and whether its row is pulled, and pushed.
        self._keys, self._process = entries(every), entries((catalogue.graph % peers.world_size)[:, None])
        wanted = torch.ones_like(whole.fresh) if all_rows else ~whole.fresh & whole.kept
        self._wanted, self._fresh = entries(wanted[:, None]), entries(whole.fresh[:, None])
        self._mine = self._process == peers.rank
        # The entry of each segment and configuration of this process, counted among its entries; -1 at padding.
        mine = torch.isin(catalogue.graph, torch.tensor(peers.mine))
        self._own = torch.full((int(mine.sum()), every.shape[1]), -1)
        if not peers.idle:
            here = counted[mine]
            self._own[here] = torch.arange(int(here.sum()))
            alike = ~catalogue.configurable[mine]
            pairs = self._own[alike, : self.num_configs]
            self._own[alike, : self.num_configs] = torch.where(
                every[mine][alike][:, : self.num_configs] >= 0, pairs[:, :1], -1
            )

    def begin(self) -> None:
        """Begin an asynchronous pull of the wanted rows."""
        self._pulled = self._table.request(self._keys, self._process, self._wanted)

    def has_origins(self) -> bool:
        return self._own.shape[1] > self.num_configs

    def ages(self) -> Int64[Tensor, "segments configs"]:
        written = torch.cat([self._arrived[1], torch.tensor([-1])])[self._own]  # -1, padding, is the last
        return origins.ages(written, self._own >= 0, self.num_configs, self._draw.number)

    def origin_keys(self, segments: Chosen) -> Chosen:
        own = self._own[segments, -1]
        keys = torch.from_numpy(np.append(self._keys[self._mine], -1))
        return keys[own]

    def kept(self, segments: Chosen) -> Kept:
        """Return rows of wanted segments; zeros where there is none and in an idle process, any row at padding."""
        like, own = self._like(), self._own[segments]
        rows = self._arrived[0].to(like.device, torch.promote_types(like.dtype, torch.float32))
        if not len(rows):
            return rows.new_zeros(*own.shape, self._table.channels)
        place = torch.from_numpy(self._wanted[self._mine].cumsum() - 1)  # of each entry among the rows that arrive
        rows = rows[place[own.clamp(min=0)].to(rows.device, non_blocking=True)]
        return origins.without_absent(rows, own >= 0, self.num_configs)

    def push(self, embedded: Embedded, segments: Chosen, is_known: IsKnown) -> Pushed:
        """Send the rows of the fresh segments of this process, which its owner writes after the step."""
        return self._push(self._fresh, self.to_keep(embedded, segments, is_known), segments)

    def push_missing(self, embedded: Sequence[Tensor], segments: Chosen) -> None:
        """Send the rows that the table lacks; every process takes part, also one without any."""
        empty = torch.zeros(0, self.num_configs, self._table.channels, device=self._like().device)
        _ = self._arrived
        assert self._pulled is not None
        new = torch.cat([*embedded] or [empty])
        kept = self.to_keep(new, segments, torch.zeros(new.shape[:2], dtype=torch.bool))
        self._push(self._pulled.unknown, kept, segments)

    def summed(self, values: Float64[Tensor, " numbers"]) -> Float64[Tensor, " numbers"]:
        """Return the sum over the processes, without those that are idle."""
        values = values * bool(self._mine.any())
        dist.all_reduce(values, group=self._table.group)
        return values

    def _push(self, chosen: Bool[np.ndarray, " entries"], kept: Tensor, segments: Tensor) -> Pushed:
        entry = self._own[segments].flatten().numpy()
        row = np.full(int(self._mine.sum()) + 1, -1)  # of `kept`, for each entry; padding writes the last
        row[entry[::-1]] = np.arange(len(entry))[::-1]  # where one entry is there more than once, the first
        sent = torch.from_numpy(row[:-1][chosen[self._mine]])
        rows = kept.flatten(0, 1)[sent.to(kept.device, non_blocking=True)]
        draw, keys, process = self._draw, self._keys[chosen], self._process[chosen]
        refused = partial(report, draw.catalogue, segments[sent // kept.shape[1]], draw.number)
        return self._table.submit(keys, process, rows, draw.number, refused)

    @cached_property
    def _arrived(self) -> tuple[Tensor, Tensor]:
        assert self._pulled is not None, "begin() comes first"
        return self._pulled.wait()
