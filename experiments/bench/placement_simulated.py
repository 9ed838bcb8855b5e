"""Every method on simulated machines with equal budgets: distance from the lower bound, gain over the baselines, and
the number of plans that each evaluates.

    python -m experiments.bench placement_simulated --programs rnnlm,inception,gpt --machines cores:2,gpus:4

A row is written as soon as it is there, and taken over by the next call. `gap` is best / lower bound - 1, `gain` the
best of the portfolio / best - 1. `sooner` says how many times fewer plans GO asks about until it is as good as the best
that HDP, or ColocRL, finds with its whole budget (less than 1 if it needs more; None if it never is).
"""

from __future__ import annotations

import operator
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.reproductions.placement_tables import table
from gst.util.progress import Progress, no_progress

LEARNED = tuple(f"experiments.reproductions.{name}.method:{name}" for name in ("colocrl", "hdp"))


def summary(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Geometric means over programs, of each machine: of medians over seeds."""
    machines = sorted({key.partition(" on ")[2] for key in rows})
    return {name: _of([each for key, each in rows.items() if key.endswith(f" on {name}")]) for name in machines}


def _of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    told: dict[str, Any] = {"programs": len(rows)}
    bounds = [row["lower_bound_ms"] for row in rows]
    portfolio = [min(row["portfolio_ms"].values()) for row in rows]
    told["portfolio_gap"] = _over(portfolio, bounds)
    for name in rows[0]["methods_ms"]:
        medians = [statistics.median(row["methods_ms"][name]) for row in rows]
        told[name] = {"gap": _over(medians, bounds), "gain": _over(portfolio, medians)}
    for weaker in rows[0]["sooner"]:
        known = [value for row in rows for value in row["sooner"][weaker] if value is not None]
        told[f"sooner_than_{weaker}"] = statistics.median(known) if known else None
    return told


def _over(above: Sequence[float], below: Sequence[float]) -> float:
    """Geometric mean of the ratios, less 1."""
    return statistics.geometric_mean(map(operator.truediv, above, below)) - 1


HELP = {
    "machines": "simulated ones", "methods": "of placement", "evaluations": "plans of each search",
}  # fmt: skip


def run(
    programs: tuple[str, ...] = ("rnnlm", "gnmt", "wavenet", "inception", "gpt"),
    machines: tuple[str, ...] = ("cores:2", "cores:4", "gpus:2", "gpus:4"),
    methods: tuple[str, ...] = ("annealing", *LEARNED, "go"),
    evaluations: int = 2_000,
    seeds: int = 3,
    json: Path = Path("experiments/results/placement_simulated.json"),
    command: str = "",
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Plan every program on every machine; each row is written to `json` as soon as it is there.

    Raises:
        ValueError: the file has other settings.
    """
    return table(
        json, programs, machines, methods, evaluations, seeds, command,
        lambda rows: {"summary": summary(rows)}, progress,
    )  # fmt: skip
