"""Tables of HLSyn: models against their controls, on families never seen, on programs whose relatives are known, and on
random designs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.reproductions.hlsyn.designs import Designs, chains
from experiments.reproductions.hlsyn.model import Settings, folds_of, scores, train
from experiments.reproductions.hlsyn.network import predict, train_network
from experiments.reproductions.hlsyn.splits import by_group
from experiments.reproductions.trees import train_trees
from gst.cost.hlsyn.cycles import PROGRAM_FEATURES
from gst.files.writing import write_json
from gst.process.progress import bar

Prediction = tuple[np.ndarray, np.ndarray | None]
SUMS = [PROGRAM_FEATURES.index(name) for name in ("narrow_load", "loops", "operations", "is_new_tool", "log_parallel",
                                                  "log_flattened", "arrays", "most_elements")]  # fmt: skip
COMMAND = "python -m experiments.reproductions.hlsyn compare"
SPLITS = ("families", "programs", "random")


def _mean_of_program(learned: Designs, rest: Designs, seed: int) -> Prediction:
    """An oracle: the mean of the very program that is predicted."""
    sums = np.bincount(rest.group, rest.log_cycles) / np.maximum(np.bincount(rest.group), 1)
    return sums[rest.group], None


def _analytical(learned: Designs, rest: Designs, seed: int) -> Prediction:
    return rest.program[:, 0].astype(np.float64), None


def _boosting(
    columns: Callable[[Designs], np.ndarray], corrects: bool
) -> Callable[[Designs, Designs, int], Prediction]:
    def run(learned: Designs, rest: Designs, seed: int) -> Prediction:
        weight = 1 / np.sqrt(np.bincount(learned.group)[learned.group])
        known = learned.program[:, 0] if corrects else 0.0
        trees = train_trees(columns(learned), learned.log_cycles - known, weight, seed)
        return trees.predict(columns(rest)) + (rest.program[:, 0] if corrects else 0.0), None

    return run


def _network(is_composed: bool) -> Callable[[Designs, Designs, int], Prediction]:
    def run(learned: Designs, rest: Designs, seed: int) -> Prediction:
        arrays = learned.program, learned.loops, learned.parents, learned.log_cycles, learned.group
        network = train_network(*arrays, seed=seed, is_composed=is_composed)
        return predict(network, rest.program, rest.loops, rest.parents)[0].astype(np.float64), None

    return run


def _ours(learned: Designs, rest: Designs, seed: int) -> Prediction:
    mean, width = train(learned, Settings(), seed).predict(rest)
    return mean, width


ROWS: dict[str, Callable[[Designs, Designs, int], Prediction]] = {
    "the program's own mean (oracle)": _mean_of_program,
    "analytical estimate alone": _analytical,
    "boosting on aggregates": _boosting(lambda designs: designs.program[:, SUMS], corrects=False),
    "boosting on the costliest loops": _boosting(chains, corrects=False),
    "boosting of the estimate's residual": _boosting(chains, corrects=True),
    "network without composition": _network(is_composed=False),
    "network over the loop tree": _network(is_composed=True),
    "ours: networks and residual trees": _ours,
}


def splits(designs: Designs, name: str, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(designs to learn from, designs to judge by) of each fold of a split.

    `families`: five folds of families; `programs`: five folds of programs and tool versions, whose relatives may be
    learned from; `random`: one design in five, twins on one side.
    """
    if name == "families":
        folds = folds_of(designs, 5, seed)
    elif name == "programs":
        folds = by_group([str(each) for each in designs.group], 5, seed)
    else:
        folds = by_group([str(each) for each in designs.twins], 5, seed)
    for fold in range(1 if name == "random" else 5):
        yield folds != fold, folds == fold


def compare(designs: Designs, names: Sequence[str], seeds: int, path: Path | None) -> dict[str, Any]:
    """Scores of every row on the splits named, and their means over seeds; written to `path` after each row. Rows that
    stand there with as many seeds are not made again."""
    result: dict[str, Any] = {"command": COMMAND, "designs": len(designs), "programs": len(designs.names), "splits": {}}
    if path and path.exists():
        result["splits"] = json.loads(path.read_text())["splits"]
    done = {
        (split, row) for split, rows in result["splits"].items() for row in rows if len(rows[row]["seeds"]) >= seeds
    }
    todo = [(split, row) for split in names for row in ROWS if (split, row) not in done]
    for split, row in bar(todo, desc="rows"):
        runs = []
        for seed in range(seeds):
            mean, width, judged = np.zeros(len(designs)), np.full(len(designs), np.nan), np.zeros(len(designs), bool)
            for learned, rest in splits(designs, split, seed):
                found, interval = ROWS[row](designs.where(learned), designs.where(rest), seed)
                mean[rest], judged[rest] = found, True
                if interval is not None:
                    width[rest] = interval
            given = None if np.isnan(width[judged]).any() else width[judged]
            score = scores(designs.where(judged), mean[judged], given)
            runs.append({key: score[key] for key in ("rmse", "tau", "coverage")})
        means = {key: None if runs[0][key] is None else float(np.mean([run[key] for run in runs])) for key in runs[0]}
        result["splits"].setdefault(split, {})[row] = means | {"seeds": runs}
        print(f"{split:10} {row:40} rmse {means['rmse']:.2f}, tau {means['tau'] or 0:.3f}", flush=True)
        if path:
            write_json(path, result)
    return result
