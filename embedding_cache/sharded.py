"""One table over many processes: each keeps the rows of its own keys, and rows move in one collective a step.

Key k belongs to process k % world_size, as its key k // world_size. Every process knows all keys of a step, so that no
list of keys is sent: pull and push are one `all_to_all_single` of rows each, and an `all_reduce` decides the write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor, nn
from torch.nn.functional import pad

from embedding_cache.storage import OnHost, finite_rows
from embedding_cache.table import EmbeddingTable, KeyRanges, check_state

STEP_BYTES = 4
WORD = 8  # bytes; blocks begin at multiples of it, so that they can be read as rows of any dtype
Entries = Int64[np.ndarray, " entries"]
Chosen = Bool[np.ndarray, " entries"]


class ShardedTable(nn.Module):
    """An `EmbeddingTable` of which this process keeps the rows of its own keys. Unless it says otherwise a
    method is collective: all processes call it, in the same order and with the same arguments but for rows.

    Args:
        shard: an empty table for the rows of this process; `capacity` bounds these alone.
        group: the processes; all if not given.

    Attributes:
        sent_bytes: that this process has sent to others, by `pull`, `push` and `state`.
    """

    def __init__(self, shard: EmbeddingTable, group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        object.__setattr__(self, "shard", shard)  # no submodule: the state of this table holds all rows
        self.shard: EmbeddingTable
        self.group, self.rank, self.world_size = group, dist.get_rank(group), dist.get_world_size(group)
        self.num_keys, self.ranges = 1, KeyRanges()
        self._device = torch.device("cpu") if dist.get_backend(group) == "gloo" else shard.device
        self.sent_bytes = {"pull": 0, "push": 0, "state": 0}
        self._written: Pushed | None = None

    @property
    def step(self) -> int:
        """The greatest one pushed, 0 at first."""
        return self.shard.step

    @property
    def channels(self) -> int:
        """Width of a row."""
        return self.shard.channels

    @property
    def row_bytes(self) -> int:
        return self.channels * self.shard.dtype.itemsize

    def request(self, keys: Entries, asker: Entries, wanted: Chosen) -> Pulled:
        """Begin to fetch the steps of the `keys` with this rank in `asker`, and rows of those `wanted`."""
        self.wait()
        owner = keys % self.world_size
        asked = _of(owner, self.rank, asker)
        here = torch.from_numpy(keys[asked] // self.world_size)
        written = self.shard.written(here)
        rows = self.shard.pull(here[torch.from_numpy(wanted[asked])])[0]
        sent = self._packed(rows, written, asker[asked], wanted[asked])
        mine = _of(asker, self.rank, owner)
        sizes = [self._block_bytes(*each) for each in self._counts(owner[mine], wanted[mine])]
        buffer, work = self._exchange("pull", sent, sizes)
        unknown = np.zeros(len(keys), np.bool_)
        unknown[asked] = written.numpy() < 0
        return Pulled(self, buffer, work, mine, owner[mine], wanted[mine], unknown)

    def submit(
        self, keys: Entries, sender: Entries, rows: Float[Tensor, "sent channels"], step: int,
        refused: Callable[[Tensor], None] = lambda places: None,
    ) -> Pushed:  # fmt: skip
        """Begin to write a row per key, without its gradient; the next `request`, or `wait`, finishes it.

        Nothing is written if a condition of the result has failed in any process by then. Of a key that comes more
        than once the first row is written.

        Args:
            keys: of all processes, or at least those that this process sends or keeps.
            sender: process that has the row of each key.
            rows: those of this process, in the order of its keys.
            refused: called with the positions of its rows that are not finite, which are not written.
        """
        self.wait()
        owner = keys % self.world_size
        mine = _of(sender, self.rank, owner)
        place = np.empty(len(keys), np.int64)
        place[np.flatnonzero(sender == self.rank)] = np.arange(len(mine))
        rows = rows.detach().to(self.shard.dtype)
        ordered = rows[torch.from_numpy(place[mine]).to(rows.device)].to(self._device)
        counts = np.bincount(owner[mine], minlength=self.world_size) * self.row_bytes
        blocks = list(_bytes(ordered).split(counts.tolist()))
        kept = _of(owner, self.rank, sender)
        sizes = np.bincount(sender[kept], minlength=self.world_size) * self.row_bytes
        buffer, work = self._exchange("push", blocks, sizes.tolist())
        finite = OnHost(finite_rows(rows))
        self._written = Pushed(buffer, work, kept, keys[kept] // self.world_size, step, finite, refused)
        return self._written

    def wait(self) -> None:
        """Finish what was submitted: write it if all of its conditions hold in all processes."""
        pushed, self._written = self._written, None
        if pushed is None:
            return
        rows = pushed.rows(self.shard.dtype, self.shard.channels)
        finite = pushed.finite.value()
        if not finite.all():
            pushed.refused((~finite).nonzero().squeeze(1))
        if not self._holds_everywhere(pushed.conditions):
            return
        in_order = np.argsort(pushed.places)
        first = in_order[np.sort(np.unique(pushed.keys[in_order], return_index=True)[1])]
        chosen = torch.from_numpy(first)
        self.shard.push(torch.from_numpy(pushed.keys[first]), rows[chosen.to(rows.device)], pushed.step)

    def resize(self, num_keys: int) -> None:
        """Make room for keys 0..num_keys-1. Not collective."""
        self.shard.resize(max(self.shard.num_keys, -(-num_keys // self.world_size)))
        self.num_keys = num_keys

    def clear(self) -> None:
        """Forget every row and set the clock to 0. Not collective."""
        self._revoke()
        self.shard.clear()

    def statistics(self) -> dict[str, float]:
        """As of an `EmbeddingTable`, over all processes; `bytes` are the sum."""
        self.wait()
        own = self.shard.statistics()
        every: list[dict[str, float]] = [{}] * self.world_size
        dist.all_gather_object(every, own, self.group)
        rows = sum(each["rows_in_use"] for each in every)
        return {
            "age_mean": sum(each["age_mean"] * each["rows_in_use"] for each in every) / rows if rows else -1.0,
            "age_max": max(each["age_max"] for each in every),
            "share_unknown": 1 - rows / self.num_keys,
            "rows_in_use": rows,
            "bytes": sum(each["bytes"] for each in every),
        }

    def get_extra_state(self) -> dict[str, Any]:
        """Return the state of a single table with all rows on the first process, without rows on the others."""
        self.wait()
        state = self.shard.get_extra_state()
        keys = state["keys"] * self.world_size + self.rank
        parts = [self._gathered(each) for each in (keys, state["rows"].cpu(), state["written"])]
        # Rows of one step by key, for any number of processes; with a capacity as written, since that order evicts.
        ties = parts[0] if self.shard.capacity is None else torch.arange(len(parts[0]))
        order = torch.from_numpy(np.lexsort((ties.numpy(), parts[2].numpy())))
        gathered = dict(zip(("keys", "rows", "written"), (part[order] for part in parts), strict=True))
        settings = {"num_keys": self.num_keys, "step": self.step}
        return settings | gathered | self.ranges.state()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Keep this process's rows of a whole table, however many processes saved it. Not collective.

        Raises:
            ValueError: `EmbeddingTable` refuses the state.
        """
        check_state(state, self.shard.channels, self.shard.dtype)
        self._revoke()
        self.ranges.load({"slots": 0, "ranges": {}} | state)
        chosen = (state["keys"] % self.world_size == self.rank).nonzero().squeeze(1)
        part = {name: state[name][chosen] for name in ("keys", "rows", "written")}
        part["keys"] = part["keys"] // self.world_size
        self.num_keys = max(self.num_keys, state["num_keys"])
        self.shard.set_extra_state(state | part | {"num_keys": -(-self.num_keys // self.world_size)})

    def _revoke(self) -> None:
        """Leave what was submitted unwritten. `wait` still asks all processes, since others may not have revoked it."""
        if self._written is not None:
            self._written.require(torch.tensor(False))

    def _holds_everywhere(self, conditions: list[Tensor]) -> bool:
        """True if the conditions of all processes hold, also of those without any."""
        own = [torch.tensor(True), *conditions]
        flag = torch.stack([each.to(self._device) for each in own]).all().to(torch.uint8)
        dist.all_reduce(flag, dist.ReduceOp.MIN, group=self.group)
        return bool(flag)

    # How rows travel -------------------------------------------------------------------------------------------------

    def _counts(self, peers: np.ndarray, wanted: np.ndarray) -> list[tuple[int, int]]:
        """Rows and keys from or for each process."""
        rows = np.bincount(peers[wanted], minlength=self.world_size)
        return list(zip(rows.tolist(), np.bincount(peers, minlength=self.world_size).tolist(), strict=True))

    def _block_bytes(self, num_rows: int, num_keys: int) -> int:
        return _padded(num_rows * self.row_bytes) + _padded(num_keys * STEP_BYTES)

    def _packed(self, rows: Tensor, written: Tensor, askers: np.ndarray, wanted: np.ndarray) -> list[Tensor]:
        """A block for each process: its rows, then the step of each of its keys."""
        counts = zip(*self._counts(askers, wanted), strict=True)
        parts = (rows.to(self._device), written.to(self._device, torch.int32))
        by_process = zip(*(part.split(each) for part, each in zip(parts, map(list, counts), strict=True)), strict=True)
        return [torch.cat([pad(_bytes(each), (0, -each.nbytes % WORD)) for each in pair]) for pair in by_process]

    def _exchange(self, what: str, blocks: list[Tensor], sizes: list[int]) -> tuple[UInt8[Tensor, " bytes"], Any]:
        """Begin to send a block to each process and to receive so many bytes from each."""
        sent = torch.cat(blocks)
        buffer = torch.empty(sum(sizes), dtype=torch.uint8, device=self._device)
        lengths = [len(block) for block in blocks]
        self.sent_bytes[what] += sum(lengths) - lengths[self.rank]
        work = dist.all_to_all_single(buffer, sent, sizes, lengths, group=self.group, async_op=True)
        return buffer, (work, sent)

    def _gathered(self, part: Tensor) -> Tensor:
        """The parts of all processes one after another, on the first process; nothing on the others."""
        every: list[int] = [0] * self.world_size
        dist.all_gather_object(every, part.nbytes, self.group)
        own = _bytes(part.to(self._device))
        blocks = [own if rank == 0 else own[:0] for rank in range(self.world_size)]
        buffer, (work, _) = self._exchange("state", blocks, every if self.rank == 0 else [0] * self.world_size)
        work.wait()
        return buffer.cpu().view(part.dtype).view(-1, *part.shape[1:])


class Pulled:
    """Requested rows on their way to this process. After `wait`, `unknown` marks the keys without a row."""

    def __init__(
        self, table: ShardedTable, buffer: Tensor, work: Any, mine: Entries, owner: Entries, wanted: Chosen,
        unknown: Chosen,
    ) -> None:  # fmt: skip
        self._table, self._buffer, self._work = table, buffer, work
        self._mine, self._owner, self._wanted, self.unknown = mine, owner, wanted, unknown

    def wait(self) -> tuple[Float[Tensor, "wanted channels"], Int64[Tensor, " keys"]]:
        """Return rows of the wanted keys of this process (zeros if unknown), and the steps at which its keys were
        written (-1 if unknown), both in the order of keys."""
        self._work[0].wait()
        table = self._table
        counts = table._counts(self._owner, self._wanted)
        lengths = [n for num_rows, num_keys in counts for n in (num_rows * table.row_bytes, num_keys * STEP_BYTES)]
        pieces = zip(self._buffer.split(list(map(_padded, lengths))), lengths, strict=True)
        parts = [piece[:length] for piece, length in pieces]
        received = torch.cat(parts[::2]).view(table.shard.dtype).view(-1, table.shard.channels)
        written = torch.cat(parts[1::2]).cpu().view(torch.int32).numpy().astype(np.int64)
        self.unknown[self._mine] = written < 0
        places = torch.from_numpy(np.argsort(self._mine[self._wanted])).to(received.device)
        in_order = torch.from_numpy(written[np.argsort(self._mine)])
        return received[places].to(table.shard.device), in_order


class Pushed:
    """Rows on their way to this process, which keeps them at `places` among all keys of the push.

    The `conditions` of all processes have to hold; `finite` marks the sent rows that are, `refused` gets the others."""

    def __init__(
        self, buffer: Tensor, work: Any, places: Entries, keys: Entries, step: int, finite: OnHost,
        refused: Callable[[Tensor], None],
    ) -> None:  # fmt: skip
        self._buffer, self._work = buffer, work
        self.places, self.keys, self.step, self.finite, self.refused = places, keys, step, finite, refused
        self.conditions: list[Tensor] = []

    def require(self, condition: Bool[Tensor, ""]) -> None:
        """Write the rows, here and in the other processes, only if `condition` holds."""
        self.conditions.append(condition)

    def rows(self, dtype: torch.dtype, channels: int) -> Tensor:
        """A row for each of `places`, once all have arrived."""
        self._work[0].wait()
        return self._buffer.view(dtype).view(-1, channels)


def _of(which: Entries, rank: int, then_by: Entries) -> Entries:
    """Return the positions where `which` is `rank`, sorted by `then_by`, else in their order."""
    found = np.flatnonzero(which == rank)
    return found[np.argsort(then_by[found], kind="stable")]


def _bytes(rows: Tensor) -> UInt8[Tensor, " bytes"]:
    flat = rows.contiguous().flatten()
    return flat.view(torch.uint8) if len(flat) else torch.empty(0, dtype=torch.uint8, device=rows.device)


def _padded(length: int) -> int:
    return -(-length // WORD) * WORD
