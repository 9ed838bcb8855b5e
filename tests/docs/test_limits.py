"""The figures that the page of limits quotes are those of the recorded results."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from statistics import geometric_mean, mean
from typing import Any

import pytest

from experiments.reproductions.public_problems.giant import interval

ROOT = Path(__file__).parents[2]
PAGE = " ".join((ROOT / "docs" / "explanation" / "limits.md").read_text().split())


@cache
def recorded(name: str) -> Any:
    return json.loads((ROOT / "experiments" / "results" / f"{name}.json").read_text())


def spread(least: float, greatest: float, digits: int = 2) -> str:
    return f"{least:.{digits}f} to {greatest:.{digits}f}"


def against_whole_graphs() -> list[str]:
    found = recorded("against_full")
    scores = [f"{found[f'{each}_tau']:.3f} ± {found[f'{each}_tau_deviation']:.3f}" for each in ("gst", "full")]
    ratios = [each["speedup"] for score, each in found["seconds_to"].items() if float(score) <= 0.78]
    memory = f"({found['gst_peak_mib']:.0f} MiB against {found['full_peak_mib']:,.0f})"
    last = found["seconds_to"]["0.8"]
    end = f"none at 0.80 ({last['gst']:.1f} s against {last['full']:.1f})"
    return [" and ".join(scores), f"{min(ratios):.0f} to {max(ratios):.0f} times less until tau is 0.78", end, memory]


def variants() -> list[str]:
    tasks = ("alexnet", "tile", "hlsyn", "circuits")
    found = {task: recorded(f"variants_{task}")["variants"] for task in tasks}

    def mean(task: str, variant: str) -> str:
        return f"{found[task][variant]['score_mean']:.2f}"

    ours, theirs = ({task: mean(task, name) for task in tasks} for name in ("GST+E, difference", "GST+EFD"))
    others, images = {task: mean(task, "GST") for task in tasks}, recorded("variants_timm")["variants"]
    whole, composite = ({task: mean(task, name) for task in tasks} for name in ("whole graph", "GST+E, composite"))
    return [
        f"tau on AlexNet is {ours['alexnet']} with rows corrected by the fresh segments and {theirs['alexnet']} with",
        f"on tiles {ours['tile']} and {theirs['tile']}, on HLSyn {ours['hlsyn']} and {theirs['hlsyn']}",
        f"on circuits {ours['circuits']} and {theirs['circuits']}",
        f"gains on AlexNet ({composite['alexnet']}) and nothing on HLSyn ({composite['hlsyn']})",
        f"tau {whole['alexnet']} on AlexNet, {whole['tile']} on tiles, {whole['hlsyn']} on HLSyn",
        f"(GST {others['alexnet']}, {others['tile']}, {others['hlsyn']})",
        f"{images['whole graph']['score_mean']:.2f}, against {images['GST-One']['score_mean']:.2f} of GST-One",
    ]


def cost_models() -> list[str]:
    labels, found = recorded("tpugraphs_alexnet")["labels"], recorded("tpugraphs_across")
    keys = ("tau_mean", "ridge_tau", "gbdt_tau", "mlp_tau")
    several = [labels[size][key] for size in ("1000", "all") for key in keys]
    across = {name: f"{each['tau_mean']:.3f}" for name, each in found["trained_on"]["alexnet"].items()}
    plans = recorded("measured_plans")["unseen"]["mean"]
    return [
        f"tau {spread(min(several), max(several))}; repeats leave a perfect model {labels['all']['ceiling']:.3f}",
        f"our network with messages {across['gnn']}, without {across['gnn, few columns, no messages']}",
        f"ridge regression on what layouts mean {across['ridge']}",
        f"gradient boosting {across['boosting']}, where a perfect model reaches {found['ceiling']:.3f}",
        f"tau of {plans['tau']:.2f} (a linear model: {plans['linear_tau']:.2f}",
    ]


def placement() -> list[str]:
    found = recorded("placement")
    mean, programs = found["geomean"], found["workloads"].values()
    slower = sum(each["over_compile"] < 1 for each in programs)
    fused = [each["fused_over_compile"] for each in programs]
    words = {2: "two", 3: "three", 6: "six"}
    unmeasured = geometric_mean(each["annealing_ms"] / each["best_ms"] for each in programs)
    return [
        f"plans found are {mean['over_compile']:.2f} times as fast as `torch.compile`",
        f"slower than it on {words[slower]} of {words[len(programs)]} programs",
        f"with fusion {mean['fused_over_compile']:.2f} times ({spread(min(fused), max(fused))})",
        f"the search is {mean['over_heft'] - 1:.0%} ahead of it".replace("%", " %"),
        f"ended {100 * (1 - unmeasured):.1f} % ahead of the search with its 50 measurements",
        f"{recorded('go_generalize')['summary']['zero_shot_over_portfolio']:.3f} times as fast",
    ]


def pretrained_screen() -> list[str]:
    found = recorded("pretrained_screen")

    def regret(screen: str, measured: int) -> str:
        rows = [row for row in found["predictions"] if row["screen"] == screen and row["measured"] == measured]
        return f"{100 * mean(row['regret'] for row in rows):.1f}"

    searches = [
        f"{ratio:.3f} [{low:.3f}, {high:.3f}]"
        for ratio, low, high in (found["gains"][key] for key in ("chain", "both"))
    ]
    rows = found["searches"]
    slower = [geometric_mean([row[f"{key}_s"] / row["ridge_s"] for row in rows]) for key in ("chain", "both")]
    early, later = ([regret(screen, measured) for screen in ("ridge", "network", "chain")] for measured in (8, 24))
    return [
        f"{early[0]} % longer than the best of the promising plans by the regression, {early[1]} % by a network",
        f"{early[2]} % by ten named features of the critical chain",
        f"after 24 {later[0]}, {later[1]} and {later[2]} %",
        f"{searches[0]} times as fast by the named features, {searches[1]} by these and the network",
        f"{len(rows)} searches, 95 %",
        f"{slower[0]:.1f} and {slower[1]:.1f} times as long as by the regression",
    ]


def giant_problems() -> list[str]:
    found = recorded("giant_problems")
    ratios, bounds, seconds = [], [], []
    for row in found["rows"].values():
        unit, ours = row["methods"]["annealing"]["makespan"], row["methods"]["ours"]
        ratios.append(short(ours["makespan"] / unit))
        bounds.append(short(row["lower_bound"] / unit))
        seconds.append(ours["seconds"])

    def gain(nodes: str, digits: int) -> str:
        mean, low, high = (short(each, digits) for each in interval(found["equal"][nodes], "ours"))
        return f"{mean} [{low}, {high}]"

    small = [gain(nodes, 3) for nodes in ("1000", "2000", "5000")]
    counts = [str(len(found["equal"][nodes])) for nodes in ("1000", "2000", "5000")]
    methods = [row["methods"] for rows in found["equal"].values() for row in rows.values()]
    worst = max(each["ours"]["makespan"] / each["annealing"]["makespan"] for each in methods)
    return [
        f"take {ratios[0]}, {ratios[1]} and {ratios[2]} of the time of annealing's after ten minutes",
        f"in {min(seconds):.0f} to {max(seconds):.0f} s",
        f"bounds are at {bounds[0]}, {bounds[1]} and {bounds[2]}",
        f"{gain('10000', 2)} at 10,000 operations",
        f"{gain('40000', 2)} at 40,000 and {gain('80000', 2)} at 80,000",
        f"on {counts[0]}, {counts[1]} and {counts[2]} problems of the same shapes",
        f"{small[0]} at 1,000 operations, {small[1]} at 2,000 and {small[2]} at 5,000",
        f"worst single problem is at {worst:.3f}",
    ]


def short(ratio: float, digits: int = 2) -> str:
    """A ratio without the zero before its point."""
    return f"{ratio:.{digits}f}".removeprefix("0")


def simulator() -> list[str]:
    quiet, noisy = (recorded(name)["workloads"].values() for name in ("simulator", "simulator_noisy_hour"))
    ranks = [[each["spearman"] for each in those] for those in (quiet, noisy)]
    errors, worst = [each["mape"] for each in quiet], max(each["peak_error_worst"] for each in quiet)
    return [
        f"{spread(min(ranks[0]), max(ranks[0]))} by program on a quiet evening, "
        f"and {spread(min(ranks[1]), max(ranks[1]))} on a noisier one",
        f"mean errors are {100 * min(errors):.0f} to {100 * max(errors):.0f} %",
        f"off by {100 * worst:.0f} % at worst",
    ]


@pytest.mark.parametrize(
    "figures",
    [against_whole_graphs, variants, cost_models, placement, pretrained_screen, giant_problems, simulator],
)
def test_the_page_says_what_the_results_hold(figures: Any) -> None:
    missing = [words for words in figures() if words not in PAGE]
    assert not missing, f"docs/explanation/limits.md no longer says: {missing}"
