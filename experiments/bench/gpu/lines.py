"""Lines that `make gpu` prints: one for each workload, plan of `gst place`, and model in little memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]


def workload(name: str, row: Row) -> str:
    """Times of all ways, how the best graph of lanes compares with the graph as written, and the simulator's ranks."""
    if "failed" in row:
        return f"{name:<16} failed: {row['failed']}"
    said = [_times(row["ways"])]
    if row["wrong"]:
        said.insert(0, f"failed on the accelerator: {row['wrong']}")
    if speedup := lanes_speedup(row["ways"]):
        said.append(f"lanes in one graph {speedup:.2f} times as fast as the graph as written")
    if rank := row.get("simulator"):
        said.append(f"{rank['plans']} of {rank['asked']} plans, Spearman {rank['spearman'] or 0:.2f}")
    if "operations_ms" in row:
        said.append(f"operations alone {row['operations_ms']:.3f} ms")
    return f"{name:<16} {'; '.join(said)}{_late(row)}"


def lanes_speedup(ways: Mapping[str, Row]) -> float | None:
    """Time of the step as written in one graph over that of the quickest graph of several lanes; None without both.

    Examples:
        >>> times = {"as written, graph": 3.0, "1 lanes, graph": 1.0, "2 lanes, graph": 2.0, "4 lanes, graph": 2.5}
        >>> lanes_speedup({way: {"median_ms": each} for way, each in times.items()})
        1.5
    """
    sequential = ways.get("as written, graph", {}).get("median_ms")
    lanes = [each["median_ms"] for way, each in ways.items()
             if way.endswith("lanes, graph") and not way.startswith("1 ") and each["median_ms"]]  # fmt: skip
    return sequential / min(lanes) if sequential and lanes else None


def kernels(name: str, row: Row) -> str:
    """Milliseconds of a step on streams and of PyTorch's ways, in a loop, and how far losses differ."""
    if "failed" in row:
        return f"{name:<16} failed: {row['failed']}"
    said = f"{row['kernels']} kernels, best on {row['best']} streams"
    if row.get("over_best"):
        said += f", {row['over_best']:.2f} times as fast as the best of PyTorch"
    times = "; ".join(f"{way} {each:.3f} ms" for way, each in row.get("ways", {}).items())
    off = max(row.get("losses_differ", {"": 0.0}).values())
    return f"{name:<16} {said}; {times}; losses within {off:.1e}{_late(row)}"


def place(row: Row) -> str:
    """The winner of `gst place`, and times of plans and ways, the quickest first."""
    if "failed" in row:
        return f"{'place':<16} failed: {row['failed']}"
    in_order = dict(sorted(row["plans"].items(), key=lambda each: each[1]["median_ms"] or math.inf))
    return f"{'place':<16} {row['winner']} wins; {_times(in_order)}; {len(row['eager'])} eager{_late(row)}"


def capped(row: Row) -> str:
    """Times of the ways to run a model in half of its memory, and what the plan takes of it."""
    if "failed" in row:
        return f"{'capped':<16} failed: {row['failed']}"
    sizes = f"{row['plan_bytes'] >> 20} of {row['limit_bytes'] >> 20} MiB"
    return f"{'capped':<16} {_times(row['ways'])}; {sizes}{_late(row)}"


def _late(row: Row) -> str:
    return f"; stopped before the rest: {row['unfinished']}" if "unfinished" in row else ""


def _times(ways: Mapping[str, Row]) -> str:
    """Milliseconds of each way, or why it failed."""
    return ", ".join(
        f"{way} failed ({each['reason'][:60]})" if each["reason"] else f"{way} {each['median_ms']:.3f} ms"
        for way, each in ways.items()
    )
