"""W&B's sweep files: which parameters to try, and the command that tries them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

from gst.files.untrusted import check_yaml, plain, shown

METHODS = ("grid", "random", "bayes")
Goal = Literal["minimize", "maximize"]
MACROS = ("${args}", "${interpreter}", "${env}")
MISSING = "Optuna is not installed; pip install 'graph-segment-training[sweep]'"


@dataclass(frozen=True, eq=False)
class Sweep:
    """What a file says.

    Args:
        name: of the sweep; that of the file unless it gives one.
        method: grid, random or bayes.
        metric: its name in the result (`--json`) of the command.
        goal: minimize or maximize.
        parameters: an Optuna distribution for each, by the name of its flag.
        command: with `${args}`, and other macros of W&B, where flags go.
        most: trials, or None if the file does not say.
        early_terminate: whether W&B is to end poor trials early.
    """

    name: str
    method: str
    metric: str
    goal: Goal
    parameters: dict[str, Any]
    command: tuple[str, ...]
    most: int | None
    early_terminate: bool

    def words(self, values: Mapping[str, Any]) -> list[str]:
        """The command with these values, as W&B's agent makes it."""
        macros = {
            "${args}": [f"--{name}={values[name]}" for name in self.parameters],
            "${interpreter}": ["python"],
            "${env}": ["/usr/bin/env"],
        }
        return [word for each in self.command for word in macros.get(each, [each])]

    def grid(self) -> list[dict[str, Any]]:
        """Every combination of values, those of the last parameter fastest.

        Raises:
            ValueError: a parameter has infinitely many.
        """
        every = [_values(name, each) for name, each in self.parameters.items()]
        return [dict(zip(self.parameters, values, strict=True)) for values in product(*every)]


def read_sweep(path: Path) -> Sweep:
    """Read a file that `wandb sweep` takes.

    Raises:
        ValueError: it is not YAML, or asks for what `gst sweep --local` does not do; the message names the file and the
            key. Also if Optuna is not installed.
    """
    import yaml  # type: ignore[import-untyped]

    check_yaml(path)
    content = yaml.safe_load(path.read_bytes())
    try:
        if not isinstance(content, dict):
            raise ValueError("a sweep file has keys: method, metric, parameters, command")
        return _sweep(path.stem, content)
    except ValueError as error:
        raise ValueError(f"{path}: {plain(error)}") from error


def metric_of(result: Mapping[str, Any], name: str) -> float:
    """Its value in the result of a command: in the best epoch, where a checkpoint is kept for it, else in the last
    one, else that of the result itself.

    Raises:
        ValueError: it is not there, or not finite.
    """
    places = [part for part in (result.get("best"), result.get("metrics"), result) if isinstance(part, dict)]
    for each in places:
        if isinstance(value := each.get(name), int | float) and math.isfinite(value):
            return float(value)
    there = sorted({key for each in places for key, value in each.items() if isinstance(value, int | float)})
    raise ValueError(f"the result has no finite {name!r}; it has {', '.join(there) or 'no numbers'}")


def _sweep(stem: str, content: dict[str, Any]) -> Sweep:
    method, metric = content.get("method"), content.get("metric")
    if method not in METHODS:
        raise ValueError(f"method is {shown(method)}; want one of {', '.join(METHODS)}")
    if not isinstance(metric, dict) or not isinstance(metric.get("name"), str):
        raise ValueError("metric has no name; want metric: {name: val/tau, goal: maximize}")
    if (goal := metric.get("goal", "minimize")) not in get_args(Goal):
        raise ValueError(f"metric.goal is {shown(goal)}; want one of {', '.join(get_args(Goal))}")
    parameters, command, most = content.get("parameters"), content.get("command"), content.get("run_cap")
    if not isinstance(parameters, dict) or not parameters:
        raise ValueError("there are no parameters to try")
    if most is not None and (not isinstance(most, int) or most < 1):
        raise ValueError(f"run_cap is {shown(most)}; want 1 or more")
    return Sweep(
        str(content.get("name", stem)), method, metric["name"], goal,
        {str(name): _distribution(name, each) for name, each in parameters.items()}, _command(command), most,
        "early_terminate" in content,
    )  # fmt: skip


def _command(command: Any) -> tuple[str, ...]:
    if not isinstance(command, list) or "${args}" not in command:
        raise ValueError("command is to be a list of words, '${args}' among them, where the parameters go")
    words = tuple(map(str, command))
    if unknown := [each for each in words if "${" in each and each not in MACROS]:
        raise ValueError(f"command has {shown(unknown[0])}; known here are {', '.join(MACROS)}")
    return words


def _distribution(name: Any, given: Any) -> Any:
    """An Optuna distribution; a constant is a choice of one."""
    try:
        from optuna import distributions as optuna
    except ImportError as error:
        raise ValueError(MISSING) from error
    given = dict(given) if isinstance(given, dict) else {}
    kind = given.pop("distribution", _usual(given))
    kinds: dict[str, Callable[..., Any]] = {
        "constant": lambda value: optuna.CategoricalDistribution([_plain(value)]),
        "categorical": lambda values: optuna.CategoricalDistribution([_plain(each) for each in values]),
        "int_uniform": lambda min, max: optuna.IntDistribution(min, max),
        "uniform": lambda min, max: optuna.FloatDistribution(min, max),
        "log_uniform_values": lambda min, max: optuna.FloatDistribution(min, max, log=True),
    }
    if kind not in kinds:
        raise ValueError(f"{name} has distribution {shown(kind)}; known here are {', '.join(kinds)}")
    try:
        return kinds[kind](**given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {shown(given)} is no {kind} ({plain(error)})") from error


def _usual(given: Mapping[str, Any]) -> str:
    """What W&B takes a parameter for that names no distribution."""
    if given.keys() >= {"min", "max"}:
        return "int_uniform" if all(isinstance(given[end], int) for end in ("min", "max")) else "uniform"
    return "constant" if "value" in given else "categorical"


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"a value is {json.dumps(value, default=str)}; write lists as text")


def _values(name: str, distribution: Any) -> list[Any]:
    if hasattr(distribution, "choices"):
        return list(distribution.choices)
    if isinstance(distribution.low, int):
        return list(range(distribution.low, distribution.high + 1))
    raise ValueError(f"{name} has infinitely many values; a grid takes values: [...], or method: random")
