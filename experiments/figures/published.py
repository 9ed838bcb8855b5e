"""ColocRL, HDP and GO compared with the baselines of their papers and with list schedules: tables and numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from experiments.figures.documents import Number, result, table

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
FOLDER = "experiments/reproductions"
BESIDE = "{{:.2f}} times as fast as the expert, {{:.2f}} times as {} and {{:.2f}} times as the list"


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
        found = statistics.median(milliseconds(each, (learner,)))
        times = [f"{ms:.2f}" for ms in [*others, found]]
        lines.append([key, f"{each['lower_bound_ms']:.2f}", *times, f"{min(others) / found:.2f}x"])
    head = ["simulated ms", "lower bound", *COLUMNS[learner], f"**{NAMES[learner]}**", f"best other / {NAMES[learner]}"]
    return table(head, lines)


def generalize() -> str:
    rows = result("go_generalize")["rows"].values()
    families = {each["family"]: [one for one in rows if one["family"] == each["family"]] for each in rows}

    def mean(few: list[dict[str, Any]], over: str, under: str) -> str:
        ratios = [each[over] / each[under] for each in few]
        return f"{statistics.geometric_mean(ratios):.3f}x ({min(ratios):.3f}..{max(ratios):.3f})"

    def plans(few: list[dict[str, Any]], after: str) -> str:
        asked = [each[after] or math.inf for each in few]
        numbers = (statistics.median_low(asked), min(asked), max(asked))
        middle, least, most = ("never" if number == math.inf else f"{number}" for number in numbers)
        return f"{middle} ({least}..{most})"

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


def _beside(learner: str, other: str) -> list[float]:
    return [over(learner, ("expert",)), over(learner, (other,)), over(learner, LISTS)]


def _sooner() -> float:
    """Return the median ratio of HDP's plans to GO's until GO is as good as HDP; runs where it never is count as 0."""
    each = [ratio or 0.0 for row in result("go")["rows"].values() for ratio in row["sooner"]["hdp"]]
    return statistics.median(each)


def _zero_shot() -> list[float]:
    found = result("go_generalize")
    return [found["summary"]["zero_shot_over_portfolio"], len(found["rows"]), found["summary"]["zero_shot_worst"]]


def _transferred() -> list[float]:
    """Return the ratio of HDP's plans to those of a pretrained policy until it is as good: median, least, and the
    median without list schedules."""
    found = result("go_generalize")["summary"]
    return [found["sooner"], found["sooner_least"], found["drawn_sooner"]]


def _never() -> list[float]:
    """Return the number of cases where the policy without list schedules is never as good as HDP, and of all cases."""
    rows = result("go_generalize")["rows"].values()
    return [sum(each["drawn_as_good_as_hdp_after"] is None for each in rows), len(rows)]


def _baseline_over_hdp() -> list[float]:
    rows = result("go_generalize")["rows"].values()
    return [sum(each["portfolio_ms"] < each["hdp_ms"] for each in rows), len(rows)]


TABLES = {**{name: partial(system, name) for name in COLUMNS}, "go generalize": generalize}
NUMBERS: list[Number] = [
    (f"{FOLDER}/colocrl/README.md", BESIDE.format("METIS"), lambda: _beside("colocrl", "metis")),
    (f"{FOLDER}/hdp/README.md", BESIDE.format("ColocRL"), lambda: _beside("hdp", "colocrl")),
    (f"{FOLDER}/go/README.md", BESIDE.format("HDP"), lambda: _beside("go", "hdp")),
    (f"{FOLDER}/go/README.md", "{:.1f} times as soon as HDP", lambda: [_sooner()]),
    (f"{FOLDER}/go/README.md", "{:.3f} times as fast over {} cases, never below {:.3f}", _zero_shot),
    (f"{FOLDER}/go/README.md", "with {:.0f} times fewer plans (median; at least {:.0f}), and with {:.1f} times",
     _transferred),
    (f"{FOLDER}/go/README.md", "never as good in {:.0f} of {:.0f} cases", _never),
    (f"{FOLDER}/go/README.md", "faster than HDP's best in {:.0f} of {:.0f} cases", _baseline_over_hdp),
]  # fmt: skip
