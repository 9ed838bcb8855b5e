"""CP-SAT of OR-tools as exact searches use it, and what such a search ends with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gst.lowering.plan import Plan


@dataclass(frozen=True, eq=False)
class Optimum:
    """Result of an exact search.

    Args:
        plan: the best found; None if there was none in time.
        objective_ms: what it takes; infinite without a plan.
        bound_ms: no plan takes less.
        proved: whether the plan is the best there is, up to rounding.
    """

    plan: Plan | None
    objective_ms: float
    bound_ms: float
    proved: bool


def solver_library() -> Any:
    """OR-tools' CP-SAT.

    Raises:
        ValueError: it is not installed.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise ValueError(
            "exact plans need OR-tools, which is not installed; pip install graph-segment-training[experiments]"
        ) from None
    return cp_model


def solve(cp: Any, model: Any, time_limit_s: float, seed: int, callback: Any = None) -> tuple[Any, Any]:
    """Solver and status, with one thread; the same for the same seed if the time suffices."""
    solver = cp.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit_s
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed % 2**31
    solver.parameters.linearization_level = 2  # its bound comes from the linear program
    return solver, solver.solve(model, callback)


def first_come(model: Any, placed: Sequence[Sequence[Any]]) -> None:
    """Of devices that are alike, only the first may be used by a group that comes before all groups of the others: one
    of many plans that differ in names alone is left.

    Args:
        placed: for each group a literal for each of the devices that are alike.
    """
    for device in range(1, len(placed[0])):
        used = 0
        for group in placed:
            model.add(group[device] <= used)
            used = used + group[device - 1]
