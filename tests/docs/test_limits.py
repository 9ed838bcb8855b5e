"""The figures that the page of limits quotes are those of the recorded results."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pytest

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
    ratios = [each["speedup"] for each in found["seconds_to"].values()]
    memory = f"({found['gst_peak_mib']:.0f} MiB against {found['full_peak_mib']:,.0f})"
    return [" and whole graphs at ".join(scores), f"{min(ratios):.1f} to {max(ratios):.1f} times less until", memory]


def largest_graph() -> list[str]:
    found = recorded("memory_largest")
    train, evaluate = ([f"{each:.0f}" for each in found[f"{name}_peak_mib"]] for name in ("train", "eval"))
    prepare = found["prepare_peak_mib"][1] + found["prepare_workers_mib"][1]
    return [
        f"{train[0]} MiB at 10<sup>5</sup> nodes, {train[1]} MiB at 10<sup>8</sup> ({found['segments'][1]:,} segments)",
        f"{evaluate[0]} and {evaluate[1]} MiB",
        f"took {found['prepare_seconds'][1]:.0f} s on busy cores and {prepare:,.0f} MiB",
    ]


def many_graphs() -> list[str]:
    last = recorded("many_graphs")["rows"][-1]
    return [f"takes {last['use_cpu_s']:.0f} s of processor time and {last['use_mib']:.0f} MiB"]


def variants() -> list[str]:
    alexnet, synthetic, tile = (recorded(f"convergence_{task}") for task in ("alexnet", "synthetic", "tile"))
    table, whole = (tile["variants"][name]["score_mean"] for name in ("GST+E, difference", "whole graph"))
    (score, seconds), (ours, took) = (
        (alexnet["variants"][name]["score_mean"], alexnet["variants"][name]["seconds"])
        for name in ("whole graph", "GST+E, difference")
    )
    many = {name: f"{each['score_mean']:.2f} after {each['seconds']:.0f} s"
            for name, each in synthetic["variants"].items() if each["score_mean"] is not None}  # fmt: skip
    assert alexnet["controls"]["gradient boosting on sums"]["score_mean"] > ours and "whole graph" not in many
    return [
        f"ends at {100 * ours / score:.1f} % of the score of whole graphs after {100 * took / seconds:.0f} % of their",
        f"Whole graphs are that good after {alexnet['variants']['whole graph']['seconds_to_goal']:.0f} s, the table "
        f"after {alexnet['variants']['GST+E, composite']['seconds_to_goal']:.0f} s",
        f"{table:.2f} against {whole:.2f} of whole graphs",
        "linear regression on sums has the best accuracy, "
        f"{recorded('convergence_elf-language')['controls']['ridge on sums']['score_mean']:.2f}",
        f"the default ends at {many['GST+E, difference']} and GST at {many['GST']}",
    ]


def cost_models() -> list[str]:
    labels, found = recorded("tpugraphs_alexnet")["labels"], recorded("tpugraphs_across")
    keys = ("tau_mean", "ridge_tau", "gbdt_tau", "mlp_tau")
    several = [labels[size][key] for size in ("1000", "all") for key in keys]
    across = {name: f"{each['tau_mean']:.3f}" for name, each in found["trained_on"]["alexnet"].items()}
    orders = recorded("unseen")["compared"]
    return [
        f"tau {spread(min(several), max(several))}; repeats leave a perfect model {labels['all']['ceiling']:.3f}",
        f"our network with messages {across['gnn']}, without {across['gnn, few columns, no messages']}",
        f"ridge regression on what layouts mean {across['ridge']}",
        f"gradient boosting {across['boosting']}, where a perfect model reaches {found['ceiling']:.3f}",
        f"rank correlation of {orders['spearman of learned costs'][0]:.3f}, by the simulator as it is with "
        f"{orders['spearman of simulator'][0]:.3f}, and by other runs of the same plans with "
        f"{orders['spearman of repeats'][0]:.3f}",
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
    "figures", [against_whole_graphs, largest_graph, many_graphs, variants, cost_models, placement, simulator]
)
def test_the_page_says_what_the_results_hold(figures: Any) -> None:
    missing = [words for words in figures() if words not in PAGE]
    assert not missing, f"docs/explanation/limits.md no longer says: {missing}"
