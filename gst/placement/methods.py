"""Methods of placement by name: one record of each, for searches, help texts, results and reports.

This module imports nothing that takes time, so that a help text can be made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from gst.util.process import import_from_here

if TYPE_CHECKING:
    from gst.placement.proposers import Proposer
    from gst.placement.task import Task


@dataclass(frozen=True)
class Method:
    """A method that proposes plans beyond the baselines.

    Args:
        make: makes its proposer for a task, a seed and the decisions (`placement`, `schedule`).
        words: a description for `gst place --help`.
        is_local: True if it compares a plan with its neighbours. Such a method is rewarded by predictions alone, also
            for plans that were measured.
        cost: plans that other methods ask about in the time of one of its plans; it gets so many times fewer.
    """

    make: Callable[[Task, int, Sequence[str]], Proposer]
    words: str
    is_local: bool = False
    cost: int = 1


def _annealing(task: Task, seed: int, tasks: Sequence[str]) -> Proposer:
    from gst.placement.proposers import Annealing

    return Annealing(seed)


def _go(task: Task, seed: int, tasks: Sequence[str]) -> Proposer:
    from gst.placement.policies.go import GoTraining
    from gst.placement.proposers import Learned

    return Learned(GoTraining(task, seed, tasks))


METHODS: dict[str, Method] = {
    "annealing": Method(_annealing, "small changes of the fastest plans", is_local=True),
    "go": Method(_go, "a policy that learns by PPO"),
}
"""All methods. Add one by `METHODS["mine"] = Method(...)`, before it is named."""


def registered(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of methods; of `MODULE:NAME` the module is imported, which registers `NAME`.

    Raises:
        ValueError: the module cannot be imported, or does not register this method.

    Examples:
        >>> registered(["annealing", "gst.placement.methods:go"])
        ('annealing', 'go')
    """
    result = []
    for each in names:
        module, colon, name = each.rpartition(":")
        if colon:
            import_from_here()
            try:
                import_module(module)
            except (ImportError, ValueError) as error:
                raise ValueError(f"cannot import {module!r} of the method {each!r} ({error})") from error
            if name not in METHODS:
                raise ValueError(
                    f"module {module!r} registers no method {name!r}, as by METHODS[{name!r}] = Method(...)"
                )
        result.append(name)
    return tuple(result)
