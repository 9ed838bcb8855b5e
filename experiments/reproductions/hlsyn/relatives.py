"""Designs of other versions and sizes of a kernel, and labels of its own: what they say that the estimate does not."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Float64

from experiments.reproductions.hlsyn.cycles.cycles import PROGRAM_FEATURES
from experiments.reproductions.hlsyn.designs import Designs
from experiments.reproductions.hlsyn.splits import by_group

FEWEST = 20  # designs of relatives from which trees learn
TREES = 60
OF_OTHERS = 0.3  # weight of a design of a relative, next to a label of the program itself
LEAST_SPREAD = 0.05  # of trees, in powers of two
OF_RELATIVES = 0.5  # weight of what relatives say, next to the model of all programs


class Relatives(NamedTuple):
    """Designs that are known, for whatever program looks like theirs.

    Args:
        columns: settings and estimates of each.
        residual: log2 cycles less the analytical estimate.
        programs: label of the program of each, `v18/atax`.
        skeletons: of the program of each.
        width: half width of an interval where designs of the very program are known, in units of the spread of trees.
    """

    columns: Float32[np.ndarray, "designs columns"]
    residual: Float64[np.ndarray, " designs"]
    programs: tuple[str, ...]
    skeletons: tuple[str, ...]
    width: float = 1.0

    def blend(
        self, designs: Designs, base: Float64[np.ndarray, " designs"], width: Float64[np.ndarray, " designs"]
    ) -> tuple[Float64[np.ndarray, " designs"], Float64[np.ndarray, " designs"]]:
        """`base` where no program is like that of a design; else the mean of it and of trees on the relatives. Where
        designs of the very program are known, trees alone, which learn its cycles instead of what the estimate gets
        wrong; half of them know other versions and sizes too.

        Args:
            width: half widths of intervals of `base`; those of programs that are known are set anew.
        """
        result, width = base.astype(np.float64), width.copy()
        names, skeletons = np.array(self.programs), np.array(self.skeletons)
        columns = columns_of(designs)
        size = min(columns.shape[1], self.columns.shape[1])
        known, columns = self.columns[:, -size:], columns[:, -size:]
        labels = self.residual + known[:, -len(PROGRAM_FEATURES)]
        asked_skeletons = np.array(designs.skeletons)[designs.group]
        for skeleton in sorted(set(designs.skeletons)):
            rows, asked = skeletons == skeleton, asked_skeletons == skeleton
            if rows.sum() < FEWEST or not asked.any():
                continue
            said = designs.program[asked, 0] + extra_trees(known[rows], self.residual[rows], columns[asked])
            result[asked] = OF_RELATIVES * said + (1 - OF_RELATIVES) * result[asked]
            for program in np.unique(designs.group[asked]):
                own, mine = names == designs.names[program], designs.group == program
                if own.sum() >= FEWEST:
                    parts = [spread_trees(known[each], labels[each], columns[mine]) for each in (own, rows)]
                    result[mine], spread = np.mean(parts, axis=0)
                    width[mine] = self.width * np.hypot(spread, LEAST_SPREAD)
        return result, width


def relatives_of(designs: Designs, width: float = 1.0) -> Relatives:
    """The designs, one of each group whose pragmas are equal as they are written.

    Args:
        width: of intervals; see `Relatives`.
    """
    columns = columns_of(designs)
    _, first = np.unique(np.column_stack([designs.group, columns]), axis=0, return_index=True)
    first = np.sort(first)
    programs = tuple(designs.names[each] for each in designs.group[first])
    skeletons = tuple(designs.skeletons[each] for each in designs.group[first])
    residual = designs.log_cycles - designs.program[:, 0]
    return Relatives(columns[first], residual[first], programs, skeletons, width)


def width_of_own(designs: Designs, covered: float, seed: int) -> float:
    """Half width of intervals that hold a share of designs, in units of the spread of trees, by designs of the same
    programs that are left out: one group of twins in five."""
    folds = by_group([str(each) for each in designs.twins], 5, seed)
    learned, rest = designs.where(folds != 0), designs.where(folds == 0)
    none = np.full(len(rest), np.nan)
    mean, spread = relatives_of(learned).blend(rest, rest.program[:, 0].astype(np.float64), none)
    ratio = np.abs(mean - rest.log_cycles) / spread
    ratio = ratio[np.isfinite(ratio)]
    return float(np.quantile(ratio, covered)) if len(ratio) else 1.0


def columns_of(designs: Designs) -> Float32[np.ndarray, "designs columns"]:
    """Settings of the loops, the last first, and estimates of whole designs."""
    return np.column_stack([designs.settings[:, ::-1], designs.program])


def extra_trees(
    columns: np.ndarray, target: np.ndarray, asked: np.ndarray, seed: int = 0, share: float = 1.0
) -> Float64[np.ndarray, " asked"]:  # fmt: skip
    """Predictions of extremely randomised trees.

    Args:
        share: of the columns, drawn anew at every node.

    Raises:
        ValueError: scikit-learn is missing.
    """
    result: np.ndarray = _forest(columns, target, seed, share).predict(asked)
    return result


def spread_trees(
    columns: np.ndarray, target: np.ndarray, asked: np.ndarray, seed: int = 0
) -> tuple[Float64[np.ndarray, " asked"], Float64[np.ndarray, " asked"]]:  # fmt: skip
    """Predictions of `extra_trees`, and the standard deviation over the trees."""
    forest = _forest(columns, target, seed, 1.0)
    each = np.stack([tree.predict(asked.astype(np.float32)) for tree in forest.estimators_])
    return each.mean(0), each.std(0)


def _forest(
    columns: np.ndarray, target: np.ndarray, seed: int, share: float, weight: np.ndarray | None = None
) -> Any:  # fmt: skip
    try:
        from sklearn.ensemble import ExtraTreesRegressor
    except ImportError as error:
        raise ValueError("relatives need scikit-learn: pip install 'graph-segment-training[experiments]'") from error
    return ExtraTreesRegressor(TREES, max_features=share, random_state=seed).fit(columns, target, weight)


def adapt(
    designs: Designs, base: Float64[np.ndarray, " designs"], given: Bool[np.ndarray, " designs"], seed: int = 0,
    relatives: Relatives | None = None,
) -> Float64[np.ndarray, " designs"]:  # fmt: skip
    """`base`, corrected by the labels of the designs that are `given`, program by program: the mean of trees that
    learn what `base` gets wrong, of trees that learn the program from scratch with `base` as a column, and, where the
    program has relatives, of two that learn cycles and residuals of these too.
    """
    result = base.astype(np.float64)
    columns = columns_of(designs)
    own = np.column_stack([columns, base]).astype(np.float32)
    for program in np.unique(designs.group[given]):
        rows = designs.group == program
        known = rows & given
        parts = [
            base[rows] + extra_trees(own[known], (designs.log_cycles - base)[known], own[rows], seed, 0.5),
            extra_trees(own[known], designs.log_cycles[known], own[rows], seed),
        ]
        if relatives is not None:
            parts += _with_relatives(designs, columns, rows, known, relatives, seed)
        result[rows] = np.mean(parts, axis=0)
    return result


def _with_relatives(
    designs: Designs, columns: np.ndarray, rows: np.ndarray, known: np.ndarray, relatives: Relatives, seed: int
) -> list[np.ndarray]:
    """Predictions of trees on the labels of a program and on designs of its relatives, which weigh less."""
    program = int(designs.group[rows][0])
    near = np.array(relatives.skeletons) == designs.skeletons[program]
    near &= np.array(relatives.programs) != designs.names[program]
    if near.sum() < FEWEST:
        return []
    size = min(columns.shape[1], relatives.columns.shape[1])
    theirs, mine = relatives.columns[near][:, -size:], columns[:, -size:]
    weight = np.concatenate([np.ones(known.sum()), np.full(near.sum(), OF_OTHERS)])
    is_own = np.concatenate([np.ones(known.sum()), np.zeros(near.sum())])[:, None]
    every = np.hstack([np.concatenate([mine[known], theirs]), is_own]).astype(np.float32)
    asked = np.hstack([mine[rows], np.ones((rows.sum(), 1))]).astype(np.float32)
    estimate = designs.program[:, 0].astype(np.float64)
    residual = np.concatenate([(designs.log_cycles - estimate)[known], relatives.residual[near]])
    cycles = np.concatenate([designs.log_cycles[known], relatives.residual[near] + theirs[:, -len(PROGRAM_FEATURES)]])
    return [
        base + _forest(every, target, seed, 1.0, weight).predict(asked)
        for base, target in ((0.0, cycles), (estimate[rows], residual))
    ]
