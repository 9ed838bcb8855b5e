"""Reproductions of published systems, a row each: docs/reproductions.md."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from experiments.figures.documents import result, table
from experiments.figures.published import LISTS, over


def _segments() -> str:
    found = result("against_full")
    mib = f"{found['gst_peak_mib']:.0f} MiB against {found['full_peak_mib']:,.0f}"
    return f"tau {found['gst_tau']:.2f}, whole graphs {found['full_tau']:.2f}; {mib}"


def _alexnet() -> str:
    found = result("tpugraphs_alexnet")["labels"]["all"]
    return f"tau {found['tau_mean']:.2f}, ridge regression {found['ridge_tau']:.2f}, perfect {found['ceiling']:.2f}"


def _ablation() -> str:
    found = result("tpugraphs_ablation")["techniques"].values()
    best = max(each["difference"] for each in found)
    return f"the best single technique changes tau by {best:+.3f}"


def _policy(name: str) -> Callable[[], str]:
    return lambda: f"{over(name, ('expert',)):.2f}x over the expert, {over(name, LISTS):.2f}x over list schedules"


def _circuits() -> str:
    variants = result("variants_circuits")["variants"]
    ours, whole = (variants[name]["score_mean"] for name in ("GST+E, difference", "whole graph"))
    return f"tau {ours:.2f} with GST+E, difference, {whole:.2f} with whole graphs, on unseen designs"


def _binaries() -> str:
    found = result("variants_elf-language")["variants"]
    segments, whole = (found[name]["score_mean"] for name in ("GST", "whole graph"))
    return f"accuracy {segments:.2f} with GST, {whole:.2f} with whole graphs"


def _certificates() -> str:
    rows = result("public_graphs")["graphs"].values()
    gaps = [each["annealing"] / max(each["chains"], each["branches"]) - 1 for each in rows]
    proved = sum(each["proved"] for each in rows)
    return f"{proved} of {len(gaps)} plans proved optimal, median gap {100 * statistics.median(gaps):.1f} %"


ROWS: tuple[tuple[str, str, Callable[[], str], str], ...] = (
    ("Graph Segment Training (2023)", "bench step --against full", _segments, "2026-11-21"),
    ("TpuGraphs (2023), AlexNet's layouts", "reproductions.tpugraphs.alexnet --seeds 5", _alexnet, "2026-11-22"),
    ("Kaggle 2023 and TGraph (2024)", "reproductions.kaggle.ablation --seeds 5", _ablation, "2026-11-22"),
    ("ColocRL (2017), simulated GPUs", "reproductions.colocrl", _policy("colocrl"), "2026-11-23"),
    ("HDP (2018), simulated GPUs", "reproductions.hdp", _policy("hdp"), "2026-11-23"),
    ("GO (2020), simulated GPUs", "reproductions.go --evaluations 500 --seeds 2", _policy("go"), "2026-11-22"),
    ("OpenABC-D (2021), circuits", "variants.compare --tasks circuits", _circuits, "2026-11-25"),
    ("call graphs of ELF binaries", "variants.compare --tasks elf-language", _binaries, "2026-11-24"),
    ("MSR's cost graphs, certificates", "reproductions.public_problems.table", _certificates, "2026-11-29"),
)


def reproductions() -> str:
    """Return the table: system, command, figure, date."""
    rows = [(system, f"`{command}`", figure(), date) for system, command, figure, date in ROWS]
    return table(("system", "`python -m experiments.`", "figure", "date"), rows)


TABLES = {"reproductions": reproductions}
