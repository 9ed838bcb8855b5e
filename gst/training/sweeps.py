"""W&B sweep files run on this machine: Optuna (Akiba et al., KDD 2019) draws the parameters, no service is needed.

The parameters of a trial depend on the seed and on earlier results, so that a killed sweep resumes exactly.
"""

from __future__ import annotations

import ctypes
import inspect
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from gst.util.process import end_with_parent
from gst.util.untrusted import plain, read_object, read_yaml, shown

NUMBERS = ("min", "max", "mu", "sigma", "q")
"""Keys of a parameter in a sweep file that hold a number."""
METHODS = ("grid", "random", "bayes")
Goal = Literal["minimize", "maximize"]
MACROS = ("${args}", "${interpreter}", "${env}", "${program}")
KEYS = {
    "method", "metric", "parameters", "command", "run_cap", "name", "program",
    "description", "entity", "project", "early_terminate",  # for the service
}  # fmt: skip
MISSING = "Optuna is not installed; pip install 'graph-segment-training[sweep]'"


@dataclass(frozen=True, eq=False)
class Sweep:
    """A parsed sweep file of W&B.

    Args:
        metric: its name in the result (`--json`) of the command.
        parameters: an Optuna distribution for each, by the name of its flag.
        command: with `${args}`, and other macros of W&B, where flags go.
        most: trials, or None if the file does not say.
        early_terminate: True if W&B is to end poor trials early.
        program: for `${program}` in the command.
        target: value of the metric after which no trial begins.
    """

    name: str
    method: str
    metric: str
    goal: Goal
    parameters: dict[str, Any]
    command: tuple[str, ...]
    most: int | None
    early_terminate: bool
    program: str = ""
    target: float | None = None

    def words(self, values: Mapping[str, Any]) -> list[str]:
        """The command with these values, as W&B's agent makes it."""
        macros = {
            "${args}": [f"--{name}={values[name]}" for name in self.parameters],
            "${interpreter}": ["python"],
            "${env}": ["/usr/bin/env"],
            "${program}": [self.program],
        }
        return [word for each in self.command for word in macros.get(each, [each])]

    def is_reached(self, value: float | None) -> bool:
        """True if a value of the metric is as good as the target."""
        if value is None or self.target is None:
            return False
        return value <= self.target if self.goal == "minimize" else value >= self.target

    def grid(self) -> list[dict[str, Any]]:
        """Return every combination of values, those of the last parameter fastest; infinitely many are a ValueError."""
        every = [_values(name, each) for name, each in self.parameters.items()]
        return [dict(zip(self.parameters, values, strict=True)) for values in product(*every)]


def read_sweep(path: Path) -> Sweep:
    """Read a file that `wandb sweep` takes.

    Raises:
        ValueError: `gst sweep --local` cannot run it; the message names the file and the key.
    """
    content = read_yaml(path)
    try:
        if not isinstance(content, dict):
            raise ValueError("a sweep file has keys: method, metric, parameters, command")
        return _sweep(path, content)
    except ValueError as error:
        raise ValueError(f"{path}: {plain(error)}") from error


def metric_of(result: Mapping[str, Any], name: str) -> float:
    """Return a metric in the JSON result of a command: of the best epoch, if it is monitored, else of the last one.

    Raises:
        ValueError: it is not there, or not finite.
    """
    places = [part for part in (result.get("best"), result.get("metrics"), result) if isinstance(part, dict)]
    for each in places:
        if isinstance(value := each.get(name), int | float) and math.isfinite(value):
            return float(value)
    numbers = {key for each in places for key, value in each.items() if isinstance(value, int | float)}
    there = sorted(numbers, key=lambda key: (key.partition("/")[0] != name.partition("/")[0], key))  # those alike first
    raise ValueError(f"the result has no finite {name!r}; it has {', '.join(there) or 'no numbers'}")


def _sweep(path: Path, content: dict[str, Any]) -> Sweep:
    _refuse_others(content, KEYS, "a sweep file")
    method, metric = content.get("method"), content.get("metric")
    if method not in METHODS:
        raise ValueError(f"method is {shown(method)}; want one of {', '.join(METHODS)}")
    if not isinstance(metric, dict) or not isinstance(metric.get("name"), str):
        raise ValueError("metric has no name; want metric: {name: val/tau, goal: maximize}")
    _refuse_others(metric, {"name", "goal", "target"}, "metric")
    if (goal := metric.get("goal", "minimize")) not in get_args(Goal):
        raise ValueError(f"metric.goal is {shown(goal)}; want one of {', '.join(get_args(Goal))}")
    parameters, command, most = content.get("parameters"), content.get("command"), content.get("run_cap")
    if not isinstance(parameters, dict) or not parameters:
        raise ValueError("there are no parameters to try")
    if most is not None and (not isinstance(most, int) or most < 1):
        raise ValueError(f"run_cap is {shown(most)}; want 1 or more")
    command, target, program = _command(command, path), metric.get("target"), content.get("program", "")
    if "${program}" in command and (not isinstance(program, str) or not program):
        raise ValueError(f"command has ${{program}}, and program is {shown(program)}; name the script")
    return Sweep(
        str(content.get("name", path.stem)), method, metric["name"], goal,
        {str(name): _distribution(name, each) for name, each in parameters.items()}, command, most,
        "early_terminate" in content, program, None if target is None else _number("metric.target", target),
    )  # fmt: skip


def _refuse_others(given: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """Raise ValueError for a key that would have no effect here."""
    if others := [str(key) for key in given if key not in known]:
        raise ValueError(f"{shown(others[0])} has no effect here; {where} has {', '.join(sorted(known))}")


def _command(command: Any, path: Path) -> tuple[str, ...]:
    if not isinstance(command, list) or "${args}" not in command:
        raise ValueError("command is to be a list of words, '${args}' among them, where the parameters go")
    words = tuple(map(str, command))
    if unknown := [each for each in words if "${" in each and each not in MACROS]:
        raise ValueError(f"command has {shown(unknown[0])}; known here are {', '.join(MACROS)}")
    return tuple(_located(each, path) if each.startswith("--config=") else each for each in words)


def _located(word: str, path: Path) -> str:
    """Return `--config=FILE` with a file that exists: from the current directory, or from one above the sweep file."""
    name = word.partition("=")[2]
    for folder in (Path(), *path.resolve().parents):
        if (folder / name).is_file():
            return f"--config={folder / name}"
    raise ValueError(f"command has {word}, and there is no such file here or in a folder above; give its path")


def _distribution(name: Any, given: Any) -> Any:
    """An Optuna distribution; a constant is a choice of one."""
    try:
        from optuna import distributions as optuna
    except ImportError as error:
        raise ValueError(MISSING) from error
    given = dict(given) if isinstance(given, dict) else {}
    given |= {key: _number(f"{name}.{key}", given[key]) for key in NUMBERS if key in given}
    kind = given.pop("distribution", _usual(given))
    kinds: dict[str, Callable[..., Any]] = {
        "constant": lambda value: optuna.CategoricalDistribution([_plain(value)]),
        "categorical": lambda values: optuna.CategoricalDistribution([_plain(each) for each in values]),
        "int_uniform": lambda min, max: optuna.IntDistribution(_integer(min), _integer(max)),
        "uniform": lambda min, max: optuna.FloatDistribution(min, max),
        "log_uniform_values": lambda min, max: optuna.FloatDistribution(min, max, log=True),
    }
    if kind not in kinds:
        raise ValueError(f"{name} has distribution {shown(kind)}; known here are {', '.join(kinds)}")
    _refuse_others(given, inspect.signature(kinds[kind]).parameters, f"{name}, a {kind},")
    try:
        return kinds[kind](**given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {shown(given)} is no {kind} ({plain(error)})") from error


def _usual(given: Mapping[str, Any]) -> str:
    """The distribution that W&B assumes for a parameter that names none."""
    if given.keys() >= {"min", "max"}:
        return "int_uniform" if all(isinstance(given[end], int) for end in ("min", "max")) else "uniform"
    return "constant" if "value" in given else "categorical"


def _number(key: str, value: Any) -> int | float:
    """Return a number, also one that is written as text."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{key} is {shown(value)}; want a number, such as 1e-5")
    return value


def _integer(value: float) -> int:
    if value != int(value):
        raise ValueError(f"{value} is no whole number")
    return int(value)


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


STORAGE = "sweep.db"
FOLDER_OF_TRIAL = "GST_TRIAL"
"""Variable of the environment of a trial: its directory, in which `gst fit` keeps its checkpoints."""
PATIENCE = 3  # trials that may fail one after the other
LOOK_S = 0.05


@dataclass(frozen=True)
class Trial:
    """A finished trial: its directory `trial-NNNN`, and its value of the metric or the error in one line."""

    number: int
    parameters: dict[str, Any]
    value: float | None
    seconds: float
    error: str = ""


def run_sweep(
    sweep: Sweep, out: Path, most: int, seed: int, resume: bool, told: Callable[[list[Trial]], None], at_once: int = 1,
    begin: Callable[..., Any] | None = None,
) -> list[Trial]:  # fmt: skip
    """Run trials, `at_once` of them, until `most` have ended or one reached the target; `told` gets all that ended, at
    first and after each. `begin` is called as `begun` is, which starts a trial here.

    Each is the command of the file in a child process, with `--json` and, if the command has `--out`, an `--out` of its
    own, and with `WANDB_MODE=offline` unless that is set; several share the cores. `output.log` in its directory has
    its output, and `sweep.db` in `out` is Optuna's storage.

    Raises:
        ValueError: `out` holds a sweep and `resume` is False, or another sweep; `PATIENCE` trials in a row failed.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study, failed_in_a_row = _opened(sweep, out, seed, resume), 0
    begin = begin or partial(begun, at_once=at_once)
    running: dict[Any, tuple[Any, float]] = {}
    try:
        while True:
            ended = _ended(study)
            told(ended)
            is_over = len(ended) >= most or any(sweep.is_reached(each.value) for each in ended)
            if is_over and not running:
                return ended
            while not is_over and len(running) < min(at_once, most - len(ended)):
                trial = _drawn(sweep, study, seed)
                child = begin(sweep.words(trial.params), sweep.name, folder_of(out, trial.number))
                running[trial] = child, time.monotonic()
            while not (done := [trial for trial, (child, _) in running.items() if child.poll() is not None]):
                time.sleep(LOOK_S)
            trial, (child, started) = done[0], running.pop(done[0])
            folder = folder_of(out, trial.number)
            value, error = _result(sweep, child.poll(), folder)
            trial.set_user_attr("seconds", time.monotonic() - started)
            if value is not None:
                study.tell(trial, value)
                failed_in_a_row = 0
                continue
            trial.set_user_attr("error", error)
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            failed_in_a_row += 1
            if failed_in_a_row == PATIENCE:
                words = f"{PATIENCE} trials in a row failed, the last one with: {error}"
                raise ValueError(f"{words}; see {folder}/output.log")
    finally:
        for child, _ in running.values():
            child.terminate()
        for child, _ in running.values():
            child.wait()


def _drawn(sweep: Sweep, study: Any, seed: int) -> Any:
    """Return an Optuna trial with the next parameters; those of an interrupted one come again."""
    import optuna

    states = optuna.trial.TrialState
    others = study.get_trials(deepcopy=False)
    counted = [each for each in others if each.state in (states.RUNNING, states.COMPLETE) or "error" in each.user_attrs]
    taken = {each.user_attrs.get("draw", position) for position, each in enumerate(counted)}
    number = next(number for number in range(len(taken) + 1) if number not in taken)
    if sweep.method == "grid":
        if not any(each.state == states.WAITING for each in others):  # left by a sweep that was killed just then
            study.enqueue_trial(sweep.grid()[number])
    else:
        drawn = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        samplers = optuna.samplers
        study.sampler = samplers.RandomSampler(drawn) if sweep.method == "random" else samplers.TPESampler(seed=drawn)
    trial = study.ask(sweep.parameters)
    trial.set_user_attr("draw", sweep.grid().index(trial.params) if sweep.method == "grid" else number)
    return trial


def best_of(trials: list[Trial], goal: str) -> list[Trial]:
    """Trials that have a value, the best first."""
    sign = 1 if goal == "minimize" else -1
    return sorted((each for each in trials if each.value is not None), key=lambda each: sign * (each.value or 0.0))


def folder_of(out: Path, number: int) -> Path:
    """Directory of a trial."""
    return out / f"trial-{number:04d}"


def _opened(sweep: Sweep, out: Path, seed: int, resume: bool) -> Any:
    """The Optuna study in `out`. A trial that was running when the sweep was killed is marked failed."""
    import optuna

    out.mkdir(parents=True, exist_ok=True)
    if (out / STORAGE).exists() and not resume:
        raise ValueError(f"{out} holds a sweep already; go on with it by --resume, or give another --out")
    study = optuna.create_study(
        storage=f"sqlite:///{out / STORAGE}", study_name="sweep", direction=sweep.goal, load_if_exists=True
    )
    asked = [sweep.method, sweep.metric, sweep.goal, repr(sweep.parameters), list(sweep.command), seed]
    if study.user_attrs.get("asked", asked) != asked:
        raise ValueError(f"{out} holds a sweep of another file or --seed; give another --out")
    study.set_user_attr("asked", asked)
    for lost in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
        study.tell(lost.number, state=optuna.trial.TrialState.FAIL)
    return study


def _ended(study: Any) -> list[Trial]:
    """Finished trials; interrupted ones, which have neither a value nor an error, are left out."""
    return [
        Trial(each.number, each.params, each.value, each.user_attrs["seconds"], each.user_attrs.get("error", ""))
        for each in study.get_trials(deepcopy=False)
        if each.value is not None or (each.state.is_finished() and "error" in each.user_attrs)
    ]


def _result(sweep: Sweep, status: int, folder: Path) -> tuple[float | None, str]:
    """Return the value of the metric of a trial that ended, or None and the error."""
    if status:
        log = (folder / "output.log").read_text(errors="replace").strip()
        return None, f"exit status {status}: {plain(log.splitlines()[-1])}"
    try:
        return metric_of(read_object(folder / "result.json"), sweep.metric), ""
    except ValueError as error:
        return None, plain(error)


def begun(
    words: list[str], name: str, folder: Path, at_once: int = 1, end: int = signal.SIGTERM
) -> subprocess.Popen[bytes]:
    """Start a trial of the sweep `name`; Linux sends it the signal `end` if this process is killed."""
    folder.mkdir(exist_ok=True)
    program, *words = words
    known = {"gst": [sys.executable, "-m", "gst.cli"], "python": [sys.executable]}  # whether or not on the PATH
    command = [*known.get(program, [program]), *words, "--json", str(folder / "result.json")]
    if any(each == "--out" or each.startswith("--out=") for each in command):
        command += ["--out", str(folder)]
    usual = {"WANDB_MODE": "offline", "WANDB_RUN_GROUP": name}
    if at_once > 1:
        usual["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // at_once))
    environment = {**usual, **os.environ, FOLDER_OF_TRIAL: str(folder)}
    environment.pop("WANDB_SERVICE", None)  # a trial has a service of its own, which writes to its directory
    libc = ctypes.CDLL(None)  # not after the fork
    with (folder / "output.log").open("w") as log:
        print("$", shlex.join(command), file=log, flush=True)
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            preexec_fn=partial(end_with_parent, os.getpid(), end, libc),
        )  # fmt: skip
