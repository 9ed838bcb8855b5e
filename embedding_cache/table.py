"""Historical embedding table: key -> row, with the step it was written at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
import torch
from jaxtyping import Bool, Float, Int32, Int64
from torch import Tensor, nn

from embedding_cache.index import DenseIndex, KeyIndex
from embedding_cache.storage import AcceleratorRows, HostRows, OnHost, Tier, finite_rows, rows_for

MOVED_ROWS = 1 << 20  # at once, while a table becomes dense
MAX_KEYS = 2**31 - 2  # slots are int32, and slot 0 is taken


class KeyRanges:
    """Consecutive keys of a table, allocated by name to each of its users. A user has a slot, a number that checkpoints
    keep.

    Examples:
        >>> class User: ...
        >>> ranges, user = KeyRanges(), User()
        >>> slot = ranges.slot(user)
        >>> [ranges.first_key(slot, name, size) for name, size in (("a", 3), ("b", 5), ("a", 3))]
        [0, 3, 0]
    """

    def __init__(self) -> None:
        self.num_keys = self.num_slots = 0
        self._ranges: dict[str, tuple[int, int, str]] = {}
        self._users: dict[int, ref[Any]] = {}

    def slot(self, user: object, last: int | None = None) -> int:
        """The slot of `user`: the `last` it had, unless another object has that now, otherwise a new one."""
        owner = None if last is None else self._users.get(last, lambda: None)()
        if last is None or owner not in (None, user):
            last = self.num_slots
        self._users[last] = ref(user)
        self.num_slots = max(self.num_slots, last + 1)
        return last

    def first_key(self, slot: int, name: str, size: int, about: str = "") -> int:
        """Return the first of `size` keys that belong to `name` in `slot` alone.

        Raises:
            ValueError: the name has another size, or is one of another thing (`about`).
        """
        first, *known = self._ranges.setdefault(f"{slot} {name}", (self.num_keys, size, about))
        if known != [size, about]:
            raise ValueError(
                f"{name!r} has {known[0]} table rows ({known[1]}), and now asks for {size} ({about}): two graphs have "
                "one fingerprint, or the rows were saved under another `estimate`; change a feature of one of the "
                "graphs, or make the table anew"
            )
        self.num_keys = max(self.num_keys, first + size)
        return first

    def has(self, slot: int, name: str) -> bool:
        """Return True if keys of `name` are allocated in `slot`."""
        return f"{slot} {name}" in self._ranges

    def state(self) -> dict[str, Any]:
        return {"slots": self.num_slots, "ranges": {name: list(each) for name, each in list(self._ranges.items())}}

    def load(self, state: dict[str, Any]) -> None:
        self._ranges = {name: (first, size, about) for name, (first, size, about) in state["ranges"].items()}
        self.num_keys = max((first + size for first, size, _ in self._ranges.values()), default=0)
        self.num_slots = max(state["slots"], self.num_slots)


class EmbeddingTable(nn.Module):
    """Historical embedding table: key -> row, with the step each row was written at.

    Memory is taken for the keys in use, not for all that may be, until `dense` is called. A module, so that
    `state_dict` carries it in checkpoints; it has no parameters and no buffers, so `.to()`, `.half()` and
    DistributedDataParallel leave it as it was made.

    The clock is the caller's step: `step` is the greatest one pushed (0 at first), and a row's age is the step asked
    about minus the step the row was written at.

    Args:
        num_keys: keys are 0..num_keys-1.
        channels: length of a row.
        dtype: of the rows kept and returned; rows pushed in another one are converted.
        device: where rows are returned.
        tier: where rows are kept. "device": on `device`; "pinned": in memory of the host that the accelerator reads
            directly (ordinary memory where there is none); "disk": in a file that the system maps into memory.
        path: the directory for that file, which has no name there and is gone with the table.
        capacity: most rows kept; then a new one takes the place of the least recently written. None: one per key.

    Raises:
        ValueError: a size, a dtype or a tier is not possible, or `path` is given without the tier "disk".
        OSError: the file cannot be made.

    Examples:
        >>> table = EmbeddingTable(num_keys=3, channels=2)
        >>> table.push(torch.tensor([2]), torch.ones(1, 2), step=5)
        >>> rows, ages, is_known = table.pull(torch.tensor([0, 2]), step=7)
        >>> rows.tolist(), ages.tolist(), is_known.tolist()
        ([[0.0, 0.0], [1.0, 1.0]], [-1, 2], [False, True])
    """

    def __init__(
        self,
        num_keys: int,
        channels: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        *,
        tier: Tier = "device",
        path: Path | str | None = None,
        capacity: int | None = None,
    ) -> None:
        super().__init__()
        check_table(num_keys, channels, dtype, tier, path, capacity)
        self.num_keys, self.channels, self.dtype, self.device = num_keys, channels, dtype, torch.device(device)
        self.tier, self.path, self.capacity = tier, None if path is None else Path(path), capacity
        self.ranges = KeyRanges()
        self._staged: Staged | None = None
        self._index, self._rows = self._empty()

    @property
    def step(self) -> int:
        """The greatest one pushed, 0 at first."""
        self._settle()
        return self._index.step

    @property
    def rows_in_use(self) -> int:
        """Number of keys with a row."""
        self._settle()
        return self._index.rows_in_use

    def clear(self) -> None:
        """Forget every row, give its memory back and set the clock to 0: the table is as new."""
        self._staged = None
        self._index, self._rows = self._empty()

    def _empty(self) -> tuple[KeyIndex | DenseIndex, AcceleratorRows | HostRows]:
        rows = rows_for(self.tier, self.channels, self.dtype, self.device, self.path)
        return KeyIndex(self.num_keys, self.capacity), rows

    def dense(
        self, device: torch.device | None = None
    ) -> tuple[Float[Tensor, "slots channels"], Int64[Tensor, " slots"]]:
        """Return all rows, and the steps at which they were written: key k at slot 1 + k. Slot 0, and slots without a
        row, have the step -1.

        From then on every key has its own memory, and `embedding_cache.index.write_where` may write without the host.
        Both tensors are others after `clear`, `resize` or the loading of a state.

        Args:
            device: where the table is from now on; where it was if None.

        Raises:
            ValueError: rows are not kept on the device, or not for every key.
        """
        if self.tier != "device" or self.capacity is not None:
            raise ValueError(
                f"tier is {self.tier!r} and capacity is {self.capacity}; "
                "a table with a row for every key needs the tier 'device' and no capacity"
            )
        self._settle()
        device = self.device if device is None else device
        if not (isinstance(self._index, DenseIndex) and _are_same(device, self._index.steps.device)):
            index = DenseIndex(self.num_keys, device, self.step)
            rows = rows_for(self.tier, self.channels, self.dtype, device, self.path)
            rows.grow(1 + self.num_keys)
            keys, slots, written = self._index.in_use()
            places = (keys + 1).astype(np.int32)
            for some in (slice(start, start + MOVED_ROWS) for start in range(0, len(keys), MOVED_ROWS)):
                rows.scatter(places[some], self._rows.gather(slots[some]))
            if len(keys):
                index.stamp(places, written)
            self.device, self._index, self._rows = device, index, rows
        return self._rows.rows, self._index.steps

    def pull(
        self, keys: Int64[Tensor, " keys"], step: int | None = None, out: Tensor | None = None
    ) -> tuple[Float[Tensor, "keys channels"], Int64[Tensor, " keys"], Bool[Tensor, " keys"]]:
        """Return rows of `keys` (zeros if never written), their ages (-1 then) and known flags. Keys may repeat.

        Args:
            step: now, at least `self.step`, the default.
            out: written and returned as the rows. Pulls of many MB are faster into memory that is used again.

        Raises:
            ValueError: a key is out of range, `step` lies before the last push, or `out` does not fit.
        """
        slots, ages, is_known = self._look_up(keys, step, out)
        return self._rows.gather(slots, out), ages, is_known

    def is_known(self, keys: Int64[Tensor, " keys"]) -> Bool[Tensor, " keys"]:
        """Mark the `keys` that have a row: `pull(keys)[2]` without the rows."""
        return self.written(keys) >= 0

    def written(self, keys: Int64[Tensor, " keys"]) -> Int64[Tensor, " keys"]:
        """Return the steps at which the rows of `keys` were written; -1 without a row."""
        _, ages, is_known = self._look_up(keys)
        return torch.where(is_known, self._index.step - ages, -1)

    def push(self, keys: Int64[Tensor, " keys"], rows: Float[Tensor, "rows channels"], step: int) -> None:
        """Write one row per key, without its gradient, except rows that are not finite in the table's dtype.

        Args:
            keys: each 0..num_keys-1 and at most once. Beyond `capacity` keys the first are not kept.
            rows: exactly one row per key, nothing is broadcast.
            step: now, at least 0; `self.step` becomes the greater of the two.

        Raises:
            ValueError: a key is out of range or repeated, the rows do not fit, or `step` is negative.
            OSError: the disk is full. After an error the table is as it was.
        """
        self._settle(now=True)
        check_push(keys, rows, step, self.channels)
        rows = rows.detach().to(self.dtype)
        self._write(keys, rows, finite_rows(rows), step)

    def stage(
        self,
        keys: Int64[Tensor, " keys"],
        rows: Float[Tensor, "rows channels"],
        step: int,
        refused: Callable[[Tensor], None] = lambda places: None,
    ) -> Staged:
        """Push when the table is next looked at, unless a condition of the result has failed by then.

        `refused` gets the positions of rows that are not finite, which are not written."""
        check_push(keys, rows, step, self.channels)
        self._settle(now=True)
        rows = rows.detach().to(self.dtype)
        self._staged = Staged(keys, rows, step, OnHost(finite_rows(rows)), refused)
        return self._staged

    def resize(self, num_keys: int) -> None:
        """Make room for keys 0..num_keys-1, at least as many as now (ValueError); rows keep their keys."""
        if not self.num_keys <= num_keys <= MAX_KEYS:
            raise ValueError(f"num_keys is {num_keys}; wanted {self.num_keys}..{MAX_KEYS}: tables only grow")
        self._settle()
        if isinstance(self._index, DenseIndex) and self._index.slots_for(num_keys) > len(self._rows.rows):
            self._rows.grow(self._index.slots_for(num_keys))
        self._index.resize(num_keys)
        self.num_keys = num_keys

    def statistics(self) -> dict[str, float]:
        """Return mean and greatest age in steps (-1 without rows), the share of keys without a row, rows and bytes."""
        ages = self.step - self._index.in_use()[2]
        return {
            "age_mean": float(ages.mean()) if len(ages) else -1.0,
            "age_max": int(ages.max()) if len(ages) else -1,
            "share_unknown": 1 - len(ages) / self.num_keys,
            "rows_in_use": self.rows_in_use,
            "bytes": self._index.nbytes + self._rows.rows.nbytes,
        }

    def get_extra_state(self) -> dict[str, Any]:
        """For `state_dict`: tensors, numbers and text only, and no spare room. Whatever the tier, it is the same."""
        self._settle()
        keys, slots, written = self._index.by_write()
        return {
            "num_keys": self.num_keys, "step": self.step, "keys": torch.from_numpy(keys),
            "rows": self._rows.copied(slots), "written": torch.from_numpy(written), **self.ranges.state(),
        }  # fmt: skip

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Replace everything. The table keeps its tier, grows to the saved number of keys, and with a capacity keeps
        the rows written last.

        Raises:
            ValueError: the state is damaged or of other channels or dtype; the table is as it was.
        """
        check_state(state, self.channels, self.dtype)
        num_keys = max(self.num_keys, state["num_keys"])
        KeyIndex(num_keys, None).find(state["keys"].cpu().numpy())  # refuses what a damaged file may hold
        self.num_keys = num_keys
        self.clear()
        self.ranges.load({"slots": 0, "ranges": {}} | state)
        newest = slice(max(0, len(state["keys"]) - self._index.most_rows), None)
        keys, written = (state[name].cpu().numpy()[newest] for name in ("keys", "written"))
        slots = self._reserve(keys, state["step"])
        self._index.stamp(slots, written)
        self._rows.scatter(slots, state["rows"][newest])

    def __reduce__(self) -> tuple[Any, ...]:
        """For `copy` and `pickle`: the settings and the state; files stay behind."""
        settings = ("num_keys", "channels", "dtype", "device", "tier", "path", "capacity")
        return _made_anew, ({name: getattr(self, name) for name in settings}, self.get_extra_state())

    def extra_repr(self) -> str:
        return (
            f"num_keys={self.num_keys}, channels={self.channels}, dtype={self.dtype}, device={self.device}, "
            f"tier={self.tier}, capacity={self.capacity}"
        )

    def _look_up(
        self, keys: Tensor, step: int | None = None, out: Tensor | None = None
    ) -> tuple[Int32[np.ndarray, " keys"], Int64[Tensor, " keys"], Bool[Tensor, " keys"]]:
        """Slots on the host, ages and is_known where `keys` are."""
        check_keys(keys)
        self._settle()
        now = self.step if step is None else step
        if now < self.step:
            raise ValueError(f"step is {now}; wanted at least {self.step}, the last pushed: pass a later one")
        if out is not None:
            check_out(out, (len(keys), self.channels), self.dtype, self.device)
        slots, ages, is_known = self._index.look_up(keys.cpu().contiguous().numpy(), now)
        return slots, torch.from_numpy(ages).to(keys.device), torch.from_numpy(is_known).to(keys.device)

    def _settle(self, now: bool = False) -> None:
        """Write what is staged, unless one of its conditions has failed, or is still to come and need not be `now`."""
        if isinstance(self._rows, HostRows):
            self._rows.check_process()
        staged = self._staged
        if staged is None or (staged.is_awaited and not now):
            return
        self._staged = None
        finite = staged.finite.value()
        if not finite.all():
            staged.refused((~finite).nonzero().squeeze(1))
        if not all(bool(condition.value()) for condition in staged.conditions):
            return
        self._write(staged.keys, staged.rows, finite, staged.step)

    def _write(self, keys: Tensor, rows: Tensor, is_finite: Bool[Tensor, " keys"], step: int) -> None:
        """Write the finite rows, the last ones if there is no room for all."""
        numbers, is_finite = keys.cpu().contiguous().numpy(), is_finite.cpu()
        if not is_finite.all() or len(numbers) > self._index.most_rows:
            self._index.find(numbers)  # refuses what is wrong with the keys that are left out
            chosen = is_finite.nonzero().squeeze(1)[-self._index.most_rows :]
            numbers, rows = numbers[chosen.numpy()], rows[chosen.to(rows.device)]
        self._rows.scatter(self._reserve(numbers, step), rows)

    def _reserve(self, keys: Int64[np.ndarray, " keys"], step: int) -> Int32[np.ndarray, " keys"]:
        """Return the slots for writing `keys` at `step`. Storage grows by doubling: n pushes copy O(n) rows in all."""
        before, num_new = self._index.find(keys)
        needed = 1 + min(self.rows_in_use + num_new, self._index.most_rows)
        if needed > len(self._rows.rows):
            num_rows = min(max(needed, 2 * len(self._rows.rows)), 1 + self._index.most_rows)
            self._rows.grow(num_rows)
            self._index.grow(num_rows)
        return self._index.assign(keys, before, step)


def _are_same(named: torch.device, actual: torch.device) -> bool:
    """True if `named`, whose number may be left out, is the device `actual`."""
    return named.type == actual.type and named.index in (None, actual.index)


def _made_anew(settings: dict[str, Any], state: dict[str, Any]) -> EmbeddingTable:
    table = EmbeddingTable(**settings)
    table.set_extra_state(state)
    return table


class Staged:
    """Rows to be written when the table is next looked at, if all `conditions` hold."""

    def __init__(
        self, keys: Tensor, rows: Tensor, step: int, finite: OnHost, refused: Callable[[Tensor], None]
    ) -> None:
        self.keys, self.rows, self.step, self.finite, self.refused = keys, rows, step, finite, refused
        self.conditions: list[OnHost] = []
        self._source: Callable[[], object] = lambda: None

    @property
    def is_awaited(self) -> bool:
        """True while there is no condition yet, and the object that is to give it still exists."""
        return not self.conditions and self._source() is not None

    def await_condition(self, source: object) -> None:
        """Let the rows wait for `require`, until `source`, such as the hook that calls it, is gone."""
        self._source = ref(source)

    def require(self, condition: Bool[Tensor, ""]) -> None:
        """Write the rows only if `condition` holds."""
        self.conditions.append(OnHost(condition))


def check_table(num_keys: int, channels: int, dtype: torch.dtype, tier: str, path: Any, capacity: int | None) -> None:
    if not 1 <= num_keys <= MAX_KEYS:
        raise ValueError(f"num_keys is {num_keys}; wanted 1..{MAX_KEYS}: split the keys over tables")
    if channels < 1:
        raise ValueError(f"channels is {channels}; wanted at least 1: pass the length of a row")
    if not dtype.is_floating_point:
        raise ValueError(f"dtype is {dtype}; wanted a floating one: pass torch.float32")
    if tier not in ("device", "pinned", "disk"):
        raise ValueError(f"tier is {tier!r}; wanted 'device', 'pinned' or 'disk'")
    if (tier == "disk") != (path is not None):
        raise ValueError(f"tier is {tier!r} and path is {path!r}; wanted path= with the tier 'disk' and with no other")
    if capacity is not None and capacity < 1:
        raise ValueError(f"capacity is {capacity}; wanted at least 1 row, or None for one per key")


def check_keys(keys: Tensor) -> None:
    if keys.ndim != 1 or keys.dtype != torch.int64:
        raise ValueError(
            f"keys have shape {tuple(keys.shape)} and dtype {keys.dtype}; wanted one axis of int64: "
            "flatten and convert them"
        )


def check_push(keys: Tensor, rows: Tensor, step: int, channels: int) -> None:
    check_keys(keys)
    if step < 0:
        raise ValueError(f"step is {step}; wanted at least 0: count steps from 0")
    if rows.shape != (len(keys), channels):
        raise ValueError(
            f"rows have shape {tuple(rows.shape)}; wanted ({len(keys)}, {channels}): "
            "pass one row per key, expanded if they are meant to be equal"
        )
    if not rows.is_floating_point():
        raise ValueError(f"rows are {rows.dtype}; wanted floating numbers: convert with .float()")


def check_out(out: Tensor, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> None:
    if (out.shape, out.dtype, out.device.type) != (shape, dtype, device.type):
        raise ValueError(
            f"out is {tuple(out.shape)} of {out.dtype} on {out.device}; wanted {shape} of {dtype} on {device}: "
            "pass a tensor like the rows that are pulled"
        )


def check_state(state: Any, channels: int, dtype: torch.dtype) -> None:
    """Of another table, or of something else."""
    wanted = {"num_keys", "step", "keys", "rows", "written"}
    if not isinstance(state, dict) or not wanted <= state.keys():
        raise ValueError(
            f"saved state has {sorted(state) if isinstance(state, dict) else type(state).__name__}; "
            f"wanted {sorted(wanted)}: it is not of an EmbeddingTable"
        )
    keys, rows, written = state["keys"], state["rows"], state["written"]
    saved = (rows.shape[-1], rows.dtype)
    if saved != (channels, dtype):
        raise ValueError(
            "saved table has channels, dtype = {}, {}; ".format(*saved)
            + f"wanted {channels}, {dtype}: make the table like the saved one"
        )
    if not len(keys) == len(rows) == len(written):
        raise ValueError(
            f"saved table has {len(keys)} keys, {len(rows)} rows and {len(written)} steps; wanted as many of each: "
            "the file is damaged, take an earlier checkpoint"
        )
