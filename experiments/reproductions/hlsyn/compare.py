"""Tables of HLSyn: models against their controls, on families never seen, on programs whose relatives are known, with a
few labels of these, and on random designs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.reproductions.hlsyn.cycles.cycles import PROGRAM_FEATURES
from experiments.reproductions.hlsyn.designs import Designs, chains
from experiments.reproductions.hlsyn.model import Settings, folds_of, scores, train
from experiments.reproductions.hlsyn.network import predict, train_network
from experiments.reproductions.hlsyn.relatives import adapt, columns_of, extra_trees
from experiments.reproductions.hlsyn.splits import by_group, few_labels
from experiments.reproductions.trees import train_trees
from gst.util.progress import bar
from gst.util.writing import write_json

SUMS = [PROGRAM_FEATURES.index(name) for name in ("narrow_load", "loops", "operations", "is_new_tool", "log_parallel",
                                                  "log_flattened", "arrays", "most_elements")]  # fmt: skip
COMMAND = "python -m experiments.reproductions.hlsyn compare"
LABELS = (5, 10, 20, 50, 100)
WITH_CONTROLS = (20, 50)  # numbers of labels at which all rivals are compared
SHARES = {"a quarter": 0.25, "half": 0.5}  # of the families to learn from
CONSTANT = 0.15  # powers of two; programs whose cycles deviate less say nothing of order
OURS = "ours"
POINTS = 10  # designs of each program that the picture of the estimate shows


class _Table:
    """Predictions of one split and seed, gathered over folds."""

    def __init__(self, designs: Designs) -> None:
        self.designs = designs
        self.rows: dict[tuple[str, str], tuple[np.ndarray, np.ndarray]] = {}

    def add(
        self, split: str, row: str, place: np.ndarray, mean: np.ndarray, width: np.ndarray | None = None
    ) -> None:  # fmt: skip
        """Predictions of the designs at `place`, and half widths of their intervals."""
        empty = np.full(len(self.designs), np.nan)
        means, widths = self.rows.setdefault((split, row), (empty, empty.copy()))
        means[place] = mean
        if width is not None:
            widths[place] = width

    def scores(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Split, row, and rmse, tau and coverage of the designs that have predictions."""
        for (split, row), (mean, width) in self.rows.items():
            judged = ~np.isnan(mean)
            given = None if np.isnan(width[judged]).any() else width[judged]
            score = scores(self.designs.where(judged), mean[judged], given)
            chosen = {key: score[key] for key in ("rmse", "tau", "coverage")}
            yield split, row, chosen | self._more(judged, mean[judged], score["programs"])

    def _more(self, judged: np.ndarray, mean: np.ndarray, programs: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """Mean over programs of their rmse, tau of programs that vary, and rmse without the program that holds most of
        the squared error."""
        rest = self.designs.where(judged)
        error = np.bincount(rest.group, (mean - rest.log_cycles) ** 2, len(rest.names))
        worst = int(error.argmax())
        others = rest.group != worst
        varied = [
            programs[rest.names[each]]["tau"] for each in np.unique(rest.group)
            if np.std(rest.log_cycles[rest.group == each]) > CONSTANT
        ]  # fmt: skip
        return {
            "program_rmse": float(np.mean([each["rmse"] for each in programs.values()])),
            "varied_tau": float(np.mean(varied)) if varied else None,
            "worst": rest.names[worst], "others_rmse": float(np.sqrt(error.sum() - error[worst]) / others.sum() ** 0.5),
        }  # fmt: skip


def _sums(designs: Designs) -> np.ndarray:
    return designs.program[:, SUMS]


def _boosted(columns: Callable[[Designs], np.ndarray], learned: Designs, rest: Designs, corrects: bool) -> np.ndarray:
    weight = 1 / np.sqrt(np.bincount(learned.group)[learned.group])
    known = learned.program[:, 0] if corrects else 0.0
    trees = train_trees(columns(learned), learned.log_cycles - known, weight, 0)
    return trees.predict(columns(rest)) + (rest.program[:, 0] if corrects else 0.0)


def _controls(table: _Table, split: str, learned: Designs, rest: Designs, place: np.ndarray, seed: int) -> None:
    sums = np.bincount(rest.group, rest.log_cycles) / np.maximum(np.bincount(rest.group), 1)
    table.add(split, "the program's own mean (oracle)", place, sums[rest.group])
    table.add(split, "boosting on aggregates", place, _boosted(_sums, learned, rest, False))
    table.add(split, "boosting on the costliest loops", place, _boosted(chains, learned, rest, False))
    table.add(split, "boosting of the estimate's residual", place, _boosted(chains, learned, rest, True))
    if split == "random":
        mean = np.zeros(len(rest))
        for program in np.unique(rest.group):
            rows, asked = learned.group == program, rest.group == program
            if rows.any():
                mean[asked] = extra_trees(learned.settings[rows], learned.log_cycles[rows], rest.settings[asked], seed)
        table.add(split, "ExtraTrees of each program on its pragmas", place, mean)
    arrays = learned.program, learned.loops, learned.parents, learned.log_cycles, learned.group
    flat = train_network(*arrays, seed=seed, is_composed=False)
    table.add(split, "network without composition", place, predict(flat, rest.program, rest.loops, rest.parents)[0])


def _ours(table: _Table, split: str, learned: Designs, rest: Designs, place: np.ndarray, seed: int) -> None:
    model = train(learned, Settings(), seed)
    table.add(split, "analytical estimate alone", place, rest.program[:, 0])
    networks = [predict(each, rest.program, rest.loops, rest.parents)[0] for each in model.networks]
    table.add(split, "networks over the loop tree", place, np.mean(networks, axis=0))
    base, scale = model.base(rest)
    table.add(split, "estimate and networks", place, base, model.width * scale)
    mean, width = model.predict(rest)
    table.add(split, OURS, place, mean, width)
    if split != "programs":
        return
    for count in LABELS:
        given = few_labels(rest.group, rest.twins, count, seed)
        judged = ~np.isin(rest.twins, rest.twins[given])
        name = f"{count} labels"
        table.add(name, "ours without them", place[judged], mean[judged])
        rows = {"ExtraTrees from scratch": _of_labels(rest, given, np.zeros(len(rest)))}
        if count in WITH_CONTROLS:
            rows["ExtraTrees on top of ours"] = _of_labels(rest, given, mean)
            rows["Gaussian process on top of ours"] = _process(rest, given, mean)
        rows[OURS] = adapt(rest, mean, given, seed, model.relatives)
        for row, found in rows.items():
            table.add(name, row, place[judged], found[judged])


def _shares(table: _Table, split: str, learned: Designs, rest: Designs, place: np.ndarray, seed: int) -> None:
    """Learn from some of the families only."""
    folds = folds_of(learned, 4, seed)
    for name, share in SHARES.items():
        model = train(learned.where(folds < 4 * share), Settings(), seed, calibrated=False)
        networks = [predict(each, rest.program, rest.loops, rest.parents)[0] for each in model.networks]
        table.add(split, f"networks, {name} of the families", place, np.mean(networks, axis=0))
        table.add(split, f"{OURS}, {name} of the families", place, model.base(rest)[0])


def _of_labels(designs: Designs, given: np.ndarray, base: np.ndarray) -> np.ndarray:
    result, columns = base.copy(), columns_of(designs)
    for program in np.unique(designs.group[given]):
        rows = designs.group == program
        known = rows & given
        result[rows] += extra_trees(columns[known], (designs.log_cycles - base)[known], columns[rows])
    return result


def _process(designs: Designs, given: np.ndarray, base: np.ndarray) -> np.ndarray:
    """Gaussian process on what `base` gets wrong: one scale of settings, a tenth of the variance is noise."""
    result = base.copy()
    for program in np.unique(designs.group[given]):
        rows = designs.group == program
        known = rows & given
        one, other = designs.settings[known], designs.settings[rows]
        near = [np.exp(-((each[:, None] - one[None]) ** 2).sum(2) / (2 * 3.0**2)) for each in (one, other)]
        residual = (designs.log_cycles - base)[known]
        weights = np.linalg.solve(near[0] + 0.1 * np.eye(len(one)), residual - residual.mean())
        result[rows] += residual.mean() + near[1] @ weights
    return result


def _points(designs: Designs) -> dict[str, list[list[float]]]:
    """log2 cycles as measured and as the estimate has them, of a few designs of each program."""
    rng = np.random.default_rng(0)
    result = {}
    for number, name in enumerate(designs.names):
        chosen = rng.permutation(np.flatnonzero(designs.group == number))[:POINTS]
        pairs = np.stack([designs.log_cycles[chosen], designs.program[chosen, 0]], axis=1)
        result[name] = [[round(float(each), 2) for each in pair] for pair in pairs]
    return result


def splits(designs: Designs, name: str, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(designs to learn from, designs to judge by) of each fold of a split.

    `families` and `shares`: five folds of families; `programs`: five folds of programs and tool versions, whose
    relatives may be learned from; `random`: one design in five, twins on one side.
    """
    if name in ("families", "shares"):
        folds = folds_of(designs, 5, seed)
    elif name == "programs":
        folds = by_group([str(each) for each in designs.group], 5, seed)
    else:
        folds = by_group([str(each) for each in designs.twins], 5, seed)
    for fold in range(1 if name == "random" else 5):
        yield folds != fold, folds == fold


def compare(
    designs: Designs, names: Sequence[str], seeds: int, path: Path | None, controls: bool = True
) -> dict[str, Any]:  # fmt: skip
    """Scores of every row on the splits named, and their means over seeds; written to `path` after each seed of a
    split. What stands there is not made again.

    Args:
        controls: make the rows that are no part of the model as well; else only ours and its parts.
    """
    result: dict[str, Any] = {"command": COMMAND, "designs": len(designs), "programs": len(designs.names), "splits": {}}
    if path and path.exists():
        result["splits"] = json.loads(path.read_text())["splits"]
    result["points"] = _points(designs)
    if path:
        write_json(path, result)
    jobs: list[tuple[Callable[..., None], str]] = [(_ours, "analytical estimate alone")]
    jobs += [(_controls, "boosting on aggregates")] * controls
    todo = [
        (seed, split, *job)
        for seed in range(seeds)
        for split in names
        for job in ([(_shares, f"{OURS}, half of the families")] if split == "shares" else jobs)
    ]
    for seed, split, job, row in bar(todo, desc="seeds of splits"):
        if len(result["splits"].get(split, {}).get(row, {"seeds": []})["seeds"]) > seed:
            continue
        table = _Table(designs)
        for learned, rest in splits(designs, split, seed):
            job(table, split, designs.where(learned), designs.where(rest), np.flatnonzero(rest), seed)
        for name, each, score in table.scores():
            rows = result["splits"].setdefault(name, {})
            runs = [*rows.get(each, {"seeds": []})["seeds"], score]
            rows[each] = {
                key: None if score[key] is None else float(np.mean([run[key] for run in runs]))
                for key in score
                if key != "worst"
            } | {"seeds": runs}
            print(f"{name:10} {each:42} rmse {score['rmse']:.2f}, tau {score['tau'] or 0:.3f}", flush=True)
        if path:
            write_json(path, result)
    return result
