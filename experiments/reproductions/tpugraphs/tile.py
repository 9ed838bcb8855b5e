"""error@K of tile sizes on unseen kernels: leave one kernel out, late fusion compared with ridge and boosted trees.

    python -m experiments.reproductions.tpugraphs.tile --json experiments/results/tpugraphs_tile.json

The figures are means over the kernels; `_deviation` is over the seeds. All rows of a file are scored; where scores are
equal, the row is drawn, and the expectation over such draws is counted. `ours` is the mean score of an ensemble.

Ten kernels are few, four of them have more than five configurations, and the loss, the number of steps and the size of
the ensemble were chosen among a few on these very kernels: on others expect more error than here.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from experiments.reproductions.tpugraphs.late_fusion import Settings, fit_late_fusion
from experiments.reproductions.tpugraphs.tile_features import tile_features
from gst.data.tpugraphs import merge_repeats, read
from gst.graphs.graph import Graph, groups_of_equals
from gst.machine.devices import machine_record

FOLDER = Path("../shared/data/tpugraphs/tile/xla/train")
KS = (1, 5)
MEMBERS = 3
Scores = Float64[np.ndarray, " configs"]


@dataclass(frozen=True, eq=False)
class Kernel:
    """A tile kernel.

    Args:
        graph: its distinct configurations, with the mean of their ratios runtime / normaliser.
        ratios: of every row of its file.
        group: which of the distinct configurations each row is.
        features: of each distinct configuration, see `tile_features`.
    """

    graph: Graph
    ratios: Float64[np.ndarray, " rows"]
    group: Int64[np.ndarray, " rows"]
    features: Float64[np.ndarray, "configs features"]

    @staticmethod
    def of(path: Path) -> Kernel:
        rows = read(path, merge=False)
        graph = merge_repeats(rows)
        return Kernel(graph, rows.targets, groups_of_equals(rows.config_features)[1], tile_features(graph))


Method = Callable[[Sequence[Kernel], Kernel, int], Scores]
"""Scores of the configurations of a kernel, from other kernels and a seed."""


def expected_slowdown(scores: Scores, targets: Scores, k: int) -> float:
    """error@K, (best of the top K - best) / best, in expectation over the order of equal scores: all scores being equal
    it is that of a random choice.

    The best of m drawn from n with targets t_1 <= .. <= t_n is t_i with probability C(n - i, m - 1) / C(n, m)."""
    k = min(k, len(scores))
    last = np.sort(scores)[k - 1]
    sure, drawn = targets[scores < last], np.sort(targets[scores == last])
    n, m = len(drawn), k - int((scores < last).sum())
    chance = np.array([comb(n - 1 - i, m - 1) for i in range(n)], float) / comb(n, m)
    best = np.minimum(drawn, sure.min()) if len(sure) else drawn
    return float(chance @ best / targets.min() - 1)


def network(settings: Settings) -> Method:
    """One network of late fusion, trained once for each kernel and seed."""
    kept: dict[tuple[str, int], Scores] = {}

    def scores(known: Sequence[Kernel], held_out: Kernel, seed: int) -> Scores:
        key = held_out.graph.name, seed
        if key not in kept:
            graphs, features = [kernel.graph for kernel in known], [kernel.features for kernel in known]
            kept[key] = fit_late_fusion(graphs, features, settings, seed).score(held_out.graph, held_out.features)
        return kept[key]

    return scores


def ensemble(member: Method, members: int) -> Method:
    """The mean score of `members` seeds."""

    def scores(known: Sequence[Kernel], held_out: Kernel, seed: int) -> Scores:
        return np.mean([member(known, held_out, seed * members + i) for i in range(members)], axis=0)

    return scores


def regression(make: Callable[[int], Any], inputs: Callable[[Kernel], np.ndarray]) -> Method:
    """A regressor of scikit-learn on the logarithm of the ratio, less its mean over the kernel."""

    def scores(known: Sequence[Kernel], held_out: Kernel, seed: int) -> Scores:
        logs = [np.log(kernel.graph.targets) for kernel in known]
        model = make(seed)
        model.fit(np.vstack([inputs(kernel) for kernel in known]), np.hstack([log - log.mean() for log in logs]))
        return np.asarray(model.predict(inputs(held_out)), float)

    return scores


def raw_features(kernel: Kernel) -> np.ndarray:
    """Return raw features of the files: the 24 numbers, the sums of node features, and counts of opcodes."""
    graph = kernel.graph
    bounds = np.log1p(graph.config_features[:, 0].astype(float))
    nodes = np.log1p(np.abs(graph.node_features)).sum(0)
    kernel_row = np.hstack([nodes, np.bincount(graph.opcodes, minlength=128)])
    return np.hstack([bounds, np.tile(kernel_row, (len(bounds), 1))])


def methods() -> dict[str, Method]:
    """Return the compared methods by name."""
    scaled = lambda seed: make_pipeline(StandardScaler(), Ridge(alpha=1.0))  # noqa: E731
    boosted = lambda seed: GradientBoostingRegressor(subsample=0.8, random_state=seed)  # noqa: E731
    one = network(Settings())
    return {
        "ours": ensemble(one, MEMBERS),
        "ours, one network": one,
        "ours, one network without the graph": network(Settings(graph=False)),
        "ridge, raw features": regression(scaled, raw_features),
        "ridge, tile features": regression(scaled, lambda kernel: kernel.features),
        "gradient boosting, raw features": regression(boosted, raw_features),
        "gradient boosting, tile features": regression(boosted, lambda kernel: kernel.features),
        "random": lambda known, held_out, seed: np.zeros(held_out.graph.num_configs),
    }


def leave_one_out(kernels: Sequence[Kernel], method: Method, seeds: int) -> dict[str, Any]:
    """error@K of every kernel from the others, with its mean over kernels and seeds."""
    errors = np.zeros((2, seeds, len(kernels), len(KS)))  # of all rows, of distinct configurations
    for seed in range(seeds):
        for i, kernel in enumerate(kernels):
            scores = np.zeros(kernel.graph.num_configs)
            if kernel.graph.num_configs > 1:  # else there is nothing to choose, and nothing to learn from either
                others = [other for j, other in enumerate(kernels) if j != i and other.graph.num_configs > 1]
                scores = method(others, kernel, seed)
            for c, k in enumerate(KS):
                errors[0, seed, i, c] = expected_slowdown(scores[kernel.group], kernel.ratios, k)
                errors[1, seed, i, c] = expected_slowdown(scores, kernel.graph.targets, k)
    return _summary(kernels, errors)


def _summary(kernels: Sequence[Kernel], errors: Float64[np.ndarray, "scorings seeds kernels ks"]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for c, k in enumerate(KS):
        by_seed = errors[0, :, :, c].mean(1)
        result |= {
            f"error_at_{k}": float(by_seed.mean()), f"error_at_{k}_deviation": float(by_seed.std(ddof=1)),
            f"error_at_{k}_seeds": by_seed.tolist(), f"error_at_{k}_distinct": float(errors[1, :, :, c].mean()),
            f"error_at_{k}_kernels": dict(
                zip([kernel.graph.name for kernel in kernels], errors[0, :, :, c].mean(0).tolist(), strict=True)
            ),
        }  # fmt: skip
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=FOLDER, help="a folder of tile files")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=Path("experiments/results/tpugraphs_tile.json"))
    options = parser.parse_args()
    if options.seeds < 2:
        raise SystemExit(f"--seeds is {options.seeds}; a spread needs two or more")
    files = sorted(options.data.glob("*.npz"))
    if len(files) < 2:
        raise SystemExit(f"{options.data} holds {len(files)} tile files; give a folder with two or more by --data")
    kernels = [Kernel.of(path) for path in files]
    compared = {}
    for name, method in methods().items():
        compared[name] = leave_one_out(kernels, method, options.seeds)
        print(name, *(f"error@{k} {compared[name][f'error_at_{k}']:.4f}" for k in KS), flush=True)
    ours, chance = compared["ours"], compared["random"]
    result = {f"error_at_{k}": ours[f"error_at_{k}"] for k in KS} | {
        f"random_at_{k}": chance[f"error_at_{k}"] for k in KS
    }
    oracle = np.mean([[expected_slowdown(k.graph.targets[k.group], k.ratios, n) for n in KS] for k in kernels], axis=0)
    result |= {
        **{f"best_possible_at_{k}": float(value) for k, value in zip(KS, oracle, strict=True)},
        "seeds": options.seeds, "members": MEMBERS, "methods": compared,
        "machine": machine_record(),
        "command": f"python -m experiments.reproductions.tpugraphs.tile --seeds {options.seeds}",
    }  # fmt: skip
    options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
