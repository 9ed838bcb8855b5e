"""The line that `make gpu` prints of each row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]


def line(name: str, row: Row) -> str:
    """Return `passed` or `failed` with the reason, then all figures and the times of all variants.

    Examples:
        >>> line("capped", {"wrong": "", "speedup": 2.0, "ways": {"plan": {"median_ms": 1.5, "reason": ""}}})
        'capped           passed; speedup 2, plan 1.5 ms'
        >>> line("gpt", {"failed": "out of memory"})
        'gpt              failed: out of memory'
    """
    if "failed" in row:
        return f"{name:<16} failed: {row['failed']}"
    figures = [f"{key} {_figure(value)}" for key, value in row.items() if isinstance(value, int | float)]
    for group in ("ways", "variants", "plans"):
        if isinstance(row.get(group), Mapping):
            figures += [f"{way} {_time(each)}" for way, each in row[group].items()]
    late = f"; stopped before the rest: {row['unfinished']}" if "unfinished" in row else ""
    return f"{name:<16} {'failed: ' + row['wrong'] if row.get('wrong') else 'passed'}; {', '.join(figures)}{late}"


def _figure(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _time(each: Any) -> str:
    if not isinstance(each, Mapping):
        return f"{each:.4g} ms"
    if each.get("reason"):
        return f"failed ({each['reason'][:60]})"
    return f"{each.get('median_ms') or each.get('step_ms') or 0:.4g} ms"
