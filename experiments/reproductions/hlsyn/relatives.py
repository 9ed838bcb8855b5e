"""Designs of other versions and sizes of a kernel, and labels of its own: what they say that the estimate does not."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Float64

from experiments.reproductions.hlsyn.designs import Designs

FEWEST = 20  # designs of relatives from which trees learn
TREES = 60
OF_RELATIVES = 0.5  # weight of what relatives say, next to the model of all programs


class Relatives(NamedTuple):
    """Designs that are known, for whatever program looks like theirs.

    Args:
        columns: settings and estimates of each.
        residual: log2 cycles less the analytical estimate.
        programs: label of the program of each, `v18/atax`.
        skeletons: of the program of each.
    """

    columns: Float32[np.ndarray, "designs columns"]
    residual: Float64[np.ndarray, " designs"]
    programs: tuple[str, ...]
    skeletons: tuple[str, ...]

    def blend(self, designs: Designs, base: Float64[np.ndarray, " designs"]) -> Float64[np.ndarray, " designs"]:
        """`base` where no program is like that of a design; else the mean of it and of trees on the relatives, or the
        trees alone where designs of the very program are among them."""
        result = base.astype(np.float64)
        names, skeletons = np.array(self.programs), np.array(self.skeletons)
        columns = columns_of(designs)
        width = min(columns.shape[1], self.columns.shape[1])
        for skeleton in sorted(set(designs.skeletons)):
            rows = skeletons == skeleton
            asked = np.array([designs.skeletons[each] == skeleton for each in designs.group], bool)
            if rows.sum() < FEWEST or not asked.any():
                continue
            said = designs.program[asked, 0] + extra_trees(
                self.columns[rows][:, -width:], self.residual[rows], columns[asked][:, -width:]
            )
            known = {name for name in set(names[rows]) if (names[rows] == name).sum() >= FEWEST}
            is_own = np.array([designs.names[each] in known for each in designs.group[asked]])
            weight = np.where(is_own, 1.0, OF_RELATIVES)
            result[asked] = weight * said + (1 - weight) * result[asked]
        return result


def relatives_of(designs: Designs) -> Relatives:
    """The designs, one of each group of twins."""
    _, first = np.unique(designs.twins, return_index=True)
    programs = tuple(designs.names[each] for each in designs.group[first])
    skeletons = tuple(designs.skeletons[each] for each in designs.group[first])
    residual = designs.log_cycles - designs.program[:, 0]
    return Relatives(columns_of(designs)[first], residual[first], programs, skeletons)


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
    try:
        from sklearn.ensemble import ExtraTreesRegressor
    except ImportError as error:
        raise ValueError("relatives need scikit-learn: pip install 'graph-segment-training[tune]'") from error
    trees = ExtraTreesRegressor(TREES, max_features=share, random_state=seed).fit(columns, target)
    result: np.ndarray = trees.predict(asked)
    return result


def adapt(
    designs: Designs, base: Float64[np.ndarray, " designs"], given: Bool[np.ndarray, " designs"], seed: int = 0
) -> Float64[np.ndarray, " designs"]:
    """`base`, corrected by the labels of the designs that are `given`, program by program.

    Half of the correction stands on `base`, half learns the program from scratch with `base` as a column.
    """
    result = base.astype(np.float64)
    columns = np.column_stack([columns_of(designs), base]).astype(np.float32)
    for program in np.unique(designs.group[given]):
        rows = designs.group == program
        known = rows & given
        residual = extra_trees(columns[known], (designs.log_cycles - base)[known], columns[rows], seed, 0.5)
        anew = extra_trees(columns[known], designs.log_cycles[known], columns[rows], seed)
        result[rows] = (base[rows] + residual + anew) / 2
    return result
