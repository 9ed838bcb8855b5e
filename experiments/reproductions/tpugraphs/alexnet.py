"""Layouts of AlexNet from 200, 1,000 and all but 1,000 measured configurations, compared with usual regressors.

    python -m experiments.reproductions.tpugraphs.alexnet --seeds 5 --json experiments/results/tpugraphs_alexnet.json

Each seed holds out 1,000 of the 23,905 unique configurations, for all methods and numbers of labels alike, and the
target is the mean runtime. `tau` is of `tpugraphs.states.StateModel`; ridge regression (of runtimes, their logarithms
or ranks, the target and the penalty chosen on a fifth of the labels), gradient boosting (of ranks) and an MLP with a
linear term and a pairwise logistic loss see the state of each configurable node one-hot. `paired` is the gain of `tau`
over each, seed by seed. `ceiling`: the tau of a model that knows the true means (`tpugraphs.ceiling`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.stats import rankdata
from tqdm import tqdm

from experiments.reproductions.tpugraphs.ceiling import noise_ceiling
from experiments.reproductions.tpugraphs.plain_models import mlp, one_hot_states, ridge
from experiments.reproductions.tpugraphs.states import StateModel
from gst.cost.metrics import kendall_tau, slowdown_at_k
from gst.data.tpugraphs import read
from gst.graphs.graph import Graph
from gst.machine.devices import machine_record

FILE = "../shared/data/tpugraphs/layout/xla/random/train/alexnet_train_batch_32.npz"
LABELS = {"200": 200, "1000": 1000, "all": None}
HELD_OUT = 1000
MLP_EPOCHS = {"200": 4000, "1000": 100, "all": 12}
PENALTIES = (1e-4, 1e-2, 1.0, 10.0)
TARGETS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "runtime": lambda y: y / y.mean(), "log": np.log, "rank": lambda y: rankdata(y) / len(y)
}  # fmt: skip


def states(graph: Graph, train: np.ndarray, seed: int, labels: str) -> np.ndarray:
    return StateModel().fit(graph, np.sort(train), seed).predict()


def tuned_ridge(graph: Graph, train: np.ndarray, seed: int, labels: str) -> np.ndarray:
    x, held, rest = one_hot_states(graph), train[: len(train) // 5], train[len(train) // 5 :]
    choices = [(target, penalty) for target in TARGETS for penalty in PENALTIES]
    taus = [kendall_tau(_ridge(graph, x, rest, *choice)[held], graph.targets[held]) for choice in choices]
    return _ridge(graph, x, train, *choices[int(np.argmax(taus))])


def _ridge(graph: Graph, x: np.ndarray, train: np.ndarray, target: str, penalty: float) -> np.ndarray:
    y = np.zeros(graph.num_configs)
    y[train] = TARGETS[target](graph.targets[train])
    return ridge(x, y, train, penalty)


def boosting(graph: Graph, train: np.ndarray, seed: int, labels: str) -> np.ndarray:
    from sklearn.ensemble import HistGradientBoostingRegressor

    leaf = 20 if len(train) > 1000 else 5
    model = HistGradientBoostingRegressor(max_iter=300, learning_rate=0.1, min_samples_leaf=leaf, random_state=seed)
    x = one_hot_states(graph)
    return model.fit(x[train], rankdata(graph.targets[train]) / len(train)).predict(x)


def network(graph: Graph, train: np.ndarray, seed: int, labels: str) -> np.ndarray:
    return mlp(one_hot_states(graph), graph.targets, train, seed, MLP_EPOCHS[labels], learning_rate=3e-3)


METHODS = {"": states, "ridge_": tuned_ridge, "gbdt_": boosting, "mlp_": network}


def run(graph: Graph, seeds: int) -> dict[str, dict[str, object]]:
    """For each number of labels the figures over `seeds` splits."""
    figures: dict[str, dict[str, list[float]]] = {labels: {} for labels in LABELS}
    with tqdm(total=seeds * len(LABELS) * len(METHODS), dynamic_ncols=True) as bar:
        for seed in range(seeds):
            order = np.random.default_rng(seed).permutation(graph.num_configs)
            test, rest = order[:HELD_OUT], order[HELD_OUT:]
            ceiling = noise_ceiling(graph, test).tau
            for labels, count in LABELS.items():
                found = figures[labels]
                found.setdefault("ceiling", []).append(ceiling)
                for prefix, method in METHODS.items():
                    bar.set_description(f"seed {seed}, {labels} labels, {method.__name__}")
                    started = time.perf_counter()
                    scores = method(graph, rest[:count], seed, labels)[test]
                    found.setdefault(f"{prefix}seconds", []).append(time.perf_counter() - started)
                    found.setdefault(f"{prefix}tau", []).append(kendall_tau(scores, graph.targets[test]))
                    for k in (1, 10):
                        error = slowdown_at_k(scores, graph.targets[test], k)
                        found.setdefault(f"{prefix}error_at_{k}", []).append(error)
                    bar.update()
    return {labels: summary(found) for labels, found in figures.items()}


def summary(found: dict[str, list[float]]) -> dict[str, object]:
    means: dict[str, object] = {key: statistics.mean(values) for key, values in found.items() if key != "tau"}
    paired = {
        name.removesuffix("_tau"): [ours - theirs for ours, theirs in zip(found["tau"], values, strict=True)]
        for name, values in found.items()
        if name.endswith("_tau")
    }
    return {
        "tau_mean": statistics.mean(found["tau"]),
        "tau_sd": statistics.stdev(found["tau"]) if len(found["tau"]) > 1 else 0.0,
        **means,
        "paired": {name: {"mean": statistics.mean(gains), "each": gains} for name, gains in paired.items()},
        "taus": found["tau"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--file", default=FILE)
    parser.add_argument("--json", type=Path, default=Path("experiments/results/tpugraphs_alexnet.json"))
    options = parser.parse_args()
    labels = run(read(options.file), options.seeds)
    command = f"python -m experiments.reproductions.tpugraphs.alexnet --seeds {options.seeds}"
    result = {"labels": labels, "seeds": options.seeds, "machine": machine_record(), "command": command}
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    for name, figures in labels.items():
        print(name, {key: round(value, 4) for key, value in figures.items() if isinstance(value, float)})


if __name__ == "__main__":
    main()
