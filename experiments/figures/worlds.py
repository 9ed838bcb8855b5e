"""Searches in hidden worlds: the tables of experiments/results/worlds*.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from experiments.figures.documents import result, table
from experiments.worlds.rows import ratio_of

WORLDS = {
    "streams": "kernels on four streams",
    "eight": "eight accelerators of three speeds, slow links",
    "memory": "a program larger than the accelerator",
    "giant": "10,000 to 80,000 operations on four devices",
}
WAYS = {
    "random at 50": "any of the proposed plans",
    "linear at 50": "linear regression",
    "ten parameters at 50": "simulator, ten parameters fitted",
    "fitted at 50": "**simulator, all costs fitted**",
    "fitted without gaps at 50": "the same without the time between operations",
    "fitted at 20": "all costs fitted, 20 measurements with and without",
    "fitted at 50, none at 200": "all costs fitted, over none with 200",
    "fitted at 50, as long as fitted at 50": "all costs fitted, over none with twice the questions, about as long",
    "true costs at 50": "costs of the world itself, which no search knows",
    "gst at 50": "GST network on fitted costs, a quarter of the questions",
    "gst at 50, as few as gst at 50": "the same, over fitted costs with as few questions",
}
PROPOSERS = {
    "go at 50, go simulated at 50": "GO / GO without a cost model",
    "go at 50, untrained go at 50": "GO / GO not trained",
    "go at 50, uniform at 50": "GO / plans drawn uniformly",
    "go at 50, fitted at 50": "GO / annealing, as many questions",
    "go at 50, as long as go at 50": "GO / annealing, as much time",
    "pretrained go at 50, go at 50": "GO that has learned on other programs, fine-tuned / GO",
    "zero-shot go at 50, go at 50": "GO that has learned on other programs and learns no more / GO",
    "zero-shot go at 50, untrained go at 50": "the same / GO not trained",
}


WARM = {
    "warm at 0, cold at 0": "none / none",
    "warm at 0, cold at 20": "none / 20",
    "warm at 0, cold at 50": "none / 50",
    "warm at 20, cold at 20": "20 / 20",
    "warm at 20, cold at 50": "20 / 50",
    "warm at 50, cold at 50": "50 / 50",
}
MODELS = {
    "simulator": "simulator as it is",
    "regression": "ridge regression on plans of other programs",
    "network": "GST network, the same plans",
    "learned costs": "**costs learned from the same plans**",
    "repeats": "other runs of the same plans",
}


def worlds() -> str:
    """Return the table of runtimes of the plans found, over those found without a cost model."""
    found = result("worlds")
    head = ["50 measurements; runtime over that without a cost model", *(WORLDS[name] for name in found["over_none"])]
    rows = [
        [label, *(_interval(ways.get(way), _count(ways)) for ways in found["over_none"].values())]
        for way, label in WAYS.items()
    ]  # fmt: skip
    rows.append(["without measurements", *(_over(found["rows"], name, "start") for name in found["over_none"])])
    rows.append(["searches compared, if no cell says another number",
                 *(str(_count(ways)) for ways in found["over_none"].values())])  # fmt: skip
    return table(head, rows)


def proposers() -> str:
    """Return the table of annealing from list schedules, and GO, compared with other proposers."""
    found = {name: result("worlds")["over_none"][name] for name in ("eight", "giant")}
    listed = [_interval(_with_list_starts(name), 0) for name in found]
    rows = [["annealing that starts from HEFT by fitted costs, too / without", *listed]]
    rows += [[label, *(_interval(ways.get(way), 0) for ways in found.values())] for way, label in PROPOSERS.items()]
    head = "50 measurements, fitted costs; runtime with the one / with the other, searches"
    return table([head, WORLDS["eight"], "10,000 operations on four devices"], rows)


def _with_list_starts(name: str) -> list[float]:
    """Return `ratio_of` searches that start from list schedules, too, and the same searches without. `gst place` starts
    so on giant programs alone: their searches without are among the other starts."""
    files = ("worlds_other_starts", "worlds")
    ms = [
        {_search(row): row["ms"] for row in result(file)["rows"] if row["world"] == name and row["budget"]}
        for file in (files if name != "giant" else files[::-1])
    ]
    return ratio_of((mine, ms[1].get(search)) for search, mine in ms[0].items())


def _search(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["program"], row["seed"], row["budget"], row["way"]


def sequence() -> str:
    """Return the table of searches that begin with learned costs, over those that do not."""
    found = result("worlds_sequence")["compared"]
    head = ["measurements, with learned costs / without", *(WORLDS[name] for name in found)]
    rows = [[label, *(_interval(cells.get(pair)) for cells in found.values())] for pair, label in WARM.items()]
    rows.append(["searches compared", *(str(int(cells["warm at 0, cold at 0"][3])) for cells in found.values())])
    return table(head, rows)


def unseen() -> str:
    """Return the table of predictions of plans of programs that no model has seen."""
    found = {WORLDS[name]: cells for name, cells in result("worlds_sequence")["compared"].items()}
    found["two real cores"] = result("unseen")["compared"]
    rows = [[label, *(_model(cells, name) for cells in found.values())] for name, label in MODELS.items()]
    return table(["Spearman's rank correlation, mean error", *found], rows)


def _model(cells: Mapping[str, list[float]], name: str) -> str:
    if f"spearman of {name}" not in cells:
        return ""
    order, error = cells[f"spearman of {name}"], cells[f"error of {name}"]
    return f"{order[0]:.3f} ({order[1]:.3f}..{order[2]:.3f}), {100 * error[0]:.1f} %"


def _interval(each: list[float] | None, usual: int | None = None) -> str:
    if not each:
        return ""
    count = "" if usual in (None, each[3]) else f", {int(each[3])}"
    return f"{each[0]:.3f}" + (f" ({each[1]:.3f}..{each[2]:.3f})" if each[3] > 1 else "") + count


def _count(ways: Mapping[str, list[float]]) -> int:
    return int(ways["fitted at 50"][3])


def _over(rows: list[dict[str, Any]], name: str, way: str) -> str:
    """Return the geometric mean of runtimes over those without a cost model, where the plan ran."""
    ms = {(row["way"], row["program"], row["seed"]): row["ms"] for row in rows
          if row["world"] == name and row["budget"] in (0, 50)}  # fmt: skip
    logs = [
        math.log(one / ms["none", *key[1:]])
        for key, one in ms.items()
        if key[0] == way and one and ms.get(("none", *key[1:]))
    ]
    total = sum(key[0] == way and ("none", *key[1:]) in ms for key in ms)
    failed = f", {total - len(logs)} of {total} do not run" if len(logs) < total else ""
    return (f"{math.exp(sum(logs) / len(logs)):.3f}" if logs else "-") + failed


TABLES = {"worlds": worlds, "proposers in worlds": proposers, "sequence": sequence, "unseen programs": unseen}
