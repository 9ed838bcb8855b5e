"""Zero-shot: cost models that learned from other programs order the layouts of an unseen U-Net.

    python -m experiments.reproductions.tpugraphs.across --seeds 5

Trained on AlexNet's layouts, and on those and tile sizes, whose different columns `common_columns` joins.

`gnn` is SAGE under Graph Segment Training with ListMLE, alternately on graphs of each kind. `few columns` leaves a
node its opcode and degrees, and without `messages` each node reads its own configuration alone. `ridge` and
`boosting` (scikit-learn) see the means of a configuration's columns over its nodes and learn ranks, both less their
means over the configurations of a graph; in `ridge, sums` the columns that are not shares are summed instead, which
was tried first: how graphs of other sizes compare is a choice that no AlexNet tells right from wrong. Each seed holds
out 1,000 configurations of AlexNet, on which `known` is the tau.

`ceiling` is the tau of a model that knows the true means (`tpugraphs.ceiling`), `chance` what a random order
exceeds, up or down, with a probability of 5 %, and `ridge_on_itself` what ridge regression learns from four fifths of
U-Net's own configurations of the others. `interval` is of the mean over seeds (95 %, Student's t): it says nothing of
other programs than this one.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64
from scipy import stats
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from tqdm import tqdm

from experiments.reproductions.tpugraphs.ceiling import noise_ceiling
from experiments.reproductions.tpugraphs.common_columns import DEGREES, pooled, read_all
from experiments.reproductions.tpugraphs.common_gnn import Lessons, Scores, gnn
from gst.cost import kendall_tau
from gst.graphs.segments import SegmentedGraph
from gst.machine.devices import machine_record
from gst.util.process import keep_freed_memory

HELD_OUT, FOLDS = 1000, 5
Graphs = dict[str, list[SegmentedGraph]]
Found = dict[str, dict[str, dict[str, list[float]]]]
"""By what was learned from and by model: one number for each seed."""


def regression(kinds: Sequence[Lessons], seed: int, make: Callable[[int], Any], sums: bool = False) -> Scores:
    """A regressor of scikit-learn on `pooled` columns, as differences within a graph."""
    lessons = [lesson for kind in kinds for lesson in kind]
    columns = [pooled(graph, sums)[known] for graph, known in lessons]
    model = make(seed).fit(
        np.vstack([each - each.mean(0) for each in columns]),
        np.hstack([ranks(graph.targets[known]) for graph, known in lessons]),
    )
    return lambda graph: np.asarray(model.predict((x := pooled(graph, sums)) - x.mean(0)), float)


def ridge(seed: int = 0) -> Pipeline:
    """Ridge regression whose penalty is chosen on its training data, one measurement left out at a time."""
    return make_pipeline(StandardScaler(), RidgeCV(10.0 ** np.arange(-2, 5)))


def ranks(targets: Float64[np.ndarray, " configs"]) -> Float64[np.ndarray, " configs"]:
    """From -0.5 to 0.5, 0 on average."""
    return (stats.rankdata(targets) - 0.5) / len(targets) - 0.5


def models(steps: int) -> dict[str, Callable[[Sequence[Lessons], int], Scores]]:
    return {
        "gnn": partial(gnn, steps=steps), "gnn, few columns": partial(gnn, steps=steps, columns=DEGREES),
        "gnn, few columns, no messages": partial(gnn, steps=steps, columns=DEGREES, layers=0),
        "ridge": partial(regression, make=ridge), "ridge, sums": partial(regression, make=ridge, sums=True),
        "boosting": partial(regression, make=lambda seed: HistGradientBoostingRegressor(random_state=seed)),
    }  # fmt: skip


def trainings(kinds: Graphs) -> dict[str, list[str]]:
    """Each with one kind more than the one before."""
    names = list(kinds)
    return {" + ".join(["alexnet", *names[1:end]]): names[:end] for end in range(1, len(names) + 1)}


def run(kinds: Graphs, unet: SegmentedGraph, seeds: int, steps: int) -> Found:
    """Train every model on every training; return the taus of the U-Net and of what is held out of AlexNet."""
    compared, taught, alexnet = models(steps), trainings(kinds), kinds["layout"][0]
    found: Found = {names: {model: {"taus": [], "known": []} for model in compared} for names in taught}
    for seed, names, model in tqdm(list(product(range(seeds), taught, compared)), dynamic_ncols=True):
        lessons, held = split(kinds, taught[names], seed)
        scores = compared[model](lessons, seed)
        found[names][model]["taus"].append(kendall_tau(scores(unet), unet.targets))
        found[names][model]["known"].append(kendall_tau(scores(alexnet)[held], alexnet.targets[held]))
    return found


def split(kinds: Graphs, names: Sequence[str], seed: int) -> tuple[list[Lessons], np.ndarray]:
    """Return the training lessons of the named kinds, and the held-out part of AlexNet, the first graph."""
    alexnet = kinds["layout"][0]
    order = np.random.default_rng(seed).permutation(alexnet.num_configs)
    held, rest = np.split(order, [min(HELD_OUT, len(order) // 2)])
    everything = [[(graph, np.flatnonzero(np.isfinite(graph.targets))) for graph in kinds[name]] for name in names]
    return [[(alexnet, rest)], *everything[1:]], held


def summary(found: dict[str, list[float]]) -> dict[str, Any]:
    taus, known = found["taus"], found["known"]
    half = stats.t.ppf(0.975, len(taus) - 1) * stats.sem(taus) if len(taus) > 1 else float("nan")
    means = {"tau_mean": statistics.mean(taus), "interval": float(half), "known_mean": statistics.mean(known)}
    return {**means, "taus": taus, "known": known}


def on_itself(unet: SegmentedGraph, seeds: int) -> float:
    """tau of ridge regression on the other folds of the same graph, over all folds at once."""
    x, y = pooled(unet), ranks(unet.targets)
    folds = [KFold(FOLDS, shuffle=True, random_state=seed) for seed in range(seeds)]
    return statistics.mean(kendall_tau(cross_val_predict(ridge(), x, y, cv=each), unet.targets) for each in folds)


def chance(configs: int) -> float:
    """1.96 standard deviations of the tau of a random order (Kendall 1938)."""
    return 1.96 * (2 * (2 * configs + 5) / (9 * configs * (configs - 1))) ** 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300, help="of the networks, on each kind of graphs")
    parser.add_argument("--data", type=Path, default=Path("../shared/data/tpugraphs"), help="a folder as of TpuGraphs")
    parser.add_argument("--json", type=Path, default=Path("experiments/results/tpugraphs_across.json"))
    options = parser.parse_args()
    keep_freed_memory()
    kinds, unet = read_all(options.data)
    found = run(kinds, unet, options.seeds, options.steps)
    rows = {names: {model: summary(each) for model, each in row.items()} for names, row in found.items()}
    ceiling = noise_ceiling(unet)
    command = f"python -m experiments.reproductions.tpugraphs.across --seeds {options.seeds} --steps {options.steps}"
    result = {
        "trained_on": rows, "ceiling": ceiling.tau, "ceiling_error": ceiling.standard_error,
        "chance": chance(unet.num_configs), "ridge_on_itself": on_itself(unet, options.seeds),
        "configs": unet.num_configs, "seeds": options.seeds, "steps": options.steps, "machine": machine_record(),
        "command": command,
    }  # fmt: skip
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    for names, row in rows.items():
        print(names, {model: round(each["tau_mean"], 3) for model, each in row.items()})


if __name__ == "__main__":
    main()
