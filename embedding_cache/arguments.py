"""What a table refuses, and what it says then."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

MAX_KEYS = 2**31 - 2  # slots are int32, and slot 0 is taken


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


def check_resize(now: int, wanted: int) -> None:
    if not now <= wanted <= MAX_KEYS:
        raise ValueError(f"num_keys is {wanted}; wanted {now}..{MAX_KEYS}: tables only grow")


def check_now(step: int, last: int) -> None:
    if step < last:
        raise ValueError(f"step is {step}; wanted at least {last}, the last pushed: pass a later one")


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


def check_state(state: Any, channels: int, dtype: torch.dtype, dataset: str) -> None:
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
    other = state.get("dataset", "")
    if dataset and other and dataset != other:
        raise ValueError(
            f"saved table is of the dataset {other!r}; wanted {dataset!r}: its keys number other things; "
            "resume with the data it was made from, or start with a new table"
        )
