"""Reproductions of published systems: the table of all, and those of ColocRL, HDP and GO with list schedules beside."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from experiments.figures.documents import result, table

Columns = Mapping[str, tuple[str, ...]]

LISTS = ("heft", "etf", "sct")
COLUMNS: dict[str, Columns] = {
    "colocrl": {"single device": ("single",), "METIS": ("metis",), "expert": ("expert",), "list schedules": LISTS},
    "hdp": {
        "single device": ("single",), "METIS": ("metis",), "expert": ("expert",), "list schedules": LISTS,
        "ColocRL": ("colocrl",),
    },
    "go": {
        "expert": ("expert",), "METIS": ("metis",), "list schedules": LISTS, "HDP": ("hdp",),
        "annealing": ("annealing",), "guided search": ("guided_search",),
    },
}  # fmt: skip
NAMES = {"colocrl": "ColocRL", "hdp": "HDP", "go": "GO"}


def milliseconds(each: Mapping[str, Any], names: Iterable[str]) -> list[float]:
    """Return the least time of some baselines in one row, or the times of a method, one for each seed."""
    baselines = [ms for label, ms in each["portfolio_ms"].items() if label.partition(":")[0] in names]
    methods = [ms for name in names if name in each["methods_ms"] for ms in each["methods_ms"][name]]
    return methods or [min(baselines)]


def system(learner: str) -> str:
    """Return a line for each program and machine: times of others and of the learner, and their ratio."""
    lines = []
    for key, each in result(learner)["rows"].items():
        others = [statistics.median(milliseconds(each, names)) for names in COLUMNS[learner].values()]
        own = statistics.median(milliseconds(each, (learner,)))
        times = [f"{ms:.2f}" for ms in [each["lower_bound_ms"], *others, own]]
        lines.append([key, *times, f"{min(others) / own:.2f}x"])
    head = ["simulated ms", "lower bound", *COLUMNS[learner], f"**{NAMES[learner]}**", f"best other / {NAMES[learner]}"]
    return table(head, lines)


def generalize() -> str:
    """Return a line for each family of programs that was left out when GO learned."""
    rows = result("go_generalize")["rows"].values()
    families = {each["family"]: [one for one in rows if one["family"] == each["family"]] for each in rows}

    def mean(few: list[dict[str, Any]], over: str, under: str) -> str:
        ratios = [each[over] / each[under] for each in few]
        return f"{statistics.geometric_mean(ratios):.3f}x ({min(ratios):.3f}..{max(ratios):.3f})"

    def plans(few: list[dict[str, Any]], after: str) -> str:
        asked = [each[after] or math.inf for each in few]
        numbers = (statistics.median_low(asked), min(asked), max(asked))
        return "{} ({}..{})".format(*("never" if number == math.inf else number for number in numbers))

    return table(
        ["family left out", "programs and machines", "best baseline / one pass", "best baseline / fine-tuned",
         "GO-one / fine-tuned", "plans until HDP's best: HDP", "pretrained", "pretrained, no list schedules"],
        [[family, f"{len(few)}", mean(few, "portfolio_ms", "zero_shot_ms"), mean(few, "portfolio_ms", "fine_tuned_ms"),
          mean(few, "go_one_ms", "fine_tuned_ms"),
          *(plans(few, after) for after in ("hdp_plans", "as_good_as_hdp_after", "drawn_as_good_as_hdp_after"))]
         for family, few in families.items()],
    )  # fmt: skip


def over(learner: str, other: tuple[str, ...]) -> float:
    """Return the geometric mean over programs and machines of another's time over the learner's."""
    rows = result(learner)["rows"].values()
    times = ([statistics.median(milliseconds(each, names)) for names in (other, (learner,))] for each in rows)
    return statistics.geometric_mean(theirs / ours for theirs, ours in times)


# All reproductions ------------------------------------------------------------------------------------------------


def _segments() -> str:
    form = "tau {gst_tau:.2f}, whole graphs {full_tau:.2f}; {gst_peak_mib:.0f} MiB against {full_peak_mib:,.0f}"
    return form.format(**result("against_full"))


def _alexnet() -> str:
    form = "tau {tau_mean:.2f}, ridge regression {ridge_tau:.2f}, perfect {ceiling:.2f}"
    return form.format(**result("tpugraphs_alexnet")["labels"]["all"])


def _ablation() -> str:
    best = max(each["difference"] for each in result("tpugraphs_ablation")["techniques"].values())
    return f"the best single technique changes tau by {best:+.3f}"


def _policy(name: str) -> str:
    return f"{over(name, ('expert',)):.2f}x over the expert, {over(name, LISTS):.2f}x over list schedules"


def _circuits() -> str:
    variants = result("convergence_circuits")["variants"]
    ours, whole = (variants[name]["score_mean"] for name in ("GST+E, difference", "whole graph"))
    return f"tau {ours:.2f} with GST+E, difference, {whole:.2f} with whole graphs, on unseen designs"


def _binaries() -> str:
    scores = {name: each["score_mean"] for name, each in result("convergence_elf-language")["variants"].items()}
    ours = scores["GST+E, difference"]
    return f"accuracy {ours:.2f} with GST+E, difference, {scores['whole graph']:.2f} with whole graphs"


def _certificates() -> str:
    rows = result("public_graphs")["graphs"].values()
    gaps = [each["annealing"] / max(each["chains"], each["branches"]) - 1 for each in rows]
    proved = sum(each["proved"] for each in rows)
    return f"{proved} of {len(gaps)} plans proved optimal, median gap {100 * statistics.median(gaps):.1f} %"


REPRODUCTIONS: tuple[tuple[str, str, Callable[[], str], str], ...] = (
    ("Graph Segment Training (2023)", "bench step --against full", _segments, "2026-11-21"),
    ("TpuGraphs (2023), AlexNet's layouts", "reproductions.tpugraphs.alexnet --seeds 5", _alexnet, "2026-11-22"),
    ("Kaggle 2023 and TGraph (2024)", "reproductions.kaggle.ablation --seeds 5", _ablation, "2026-11-22"),
    ("ColocRL (2017), simulated GPUs", "reproductions.colocrl", partial(_policy, "colocrl"), "2026-11-23"),
    ("HDP (2018), simulated GPUs", "reproductions.hdp", partial(_policy, "hdp"), "2026-11-23"),
    ("GO (2020), simulated GPUs", "reproductions.go --evaluations 500 --seeds 2", partial(_policy, "go"), "2026-11-22"),
    ("OpenABC-D (2021), circuits", "variants.compare --tasks circuits --seeds 5", _circuits, "2026-12-01"),
    ("call graphs of ELF binaries", "variants.compare --tasks elf-language --seeds 2", _binaries, "2026-11-30"),
    ("MSR's cost graphs, certificates", "reproductions.public_problems.table", _certificates, "2026-11-29"),
)


def reproductions() -> str:
    """Return the table: system, command, figure, date."""
    rows = [(system, f"`{command}`", figure(), date) for system, command, figure, date in REPRODUCTIONS]
    return table(("system", "`python -m experiments.`", "figure", "date"), rows)


TABLES: dict[str, Callable[[], str]] = {
    **{name: partial(system, name) for name in COLUMNS}, "go generalize": generalize, "reproductions": reproductions,
}  # fmt: skip
