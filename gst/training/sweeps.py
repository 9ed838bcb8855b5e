"""A W&B sweep on this machine, without the service: Optuna (Akiba et al., KDD 2019) draws what is tried.

What a trial tries depends on the seed, on how many ended before it and on what came of these. So a sweep that was
killed goes on as if it had not been: the trial that was under way is made again.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from gst.files.untrusted import plain, read_object
from gst.training.sweep_files import Sweep, metric_of

STORAGE = "sweep.db"
PATIENCE = 3  # trials that may fail one after the other
PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class Trial:
    """One that ended.

    Args:
        number: of its directory, `trial-NNNN`.
        parameters: what was tried.
        value: of the metric; None if it failed.
        seconds: it took.
        error: why it failed, one line; empty if it did not.
    """

    number: int
    parameters: dict[str, Any]
    value: float | None
    seconds: float
    error: str = ""


def run_sweep(
    sweep: Sweep, out: Path, most: int, seed: int, resume: bool, told: Callable[[list[Trial]], None]
) -> list[Trial]:
    """Run trials, one after the other, until `most` have ended.

    Each is the command of the file in a child process, with `--json` and, if the command has `--out`, an `--out` of its
    own, and with `WANDB_MODE=offline` unless that is set. What it prints goes to `output.log` in its directory.

    Args:
        out: directory of results; `sweep.db` there is Optuna's storage.
        most: no more than a grid has.
        told: of all trials that ended, at the beginning and after each.

    Raises:
        ValueError: `out` holds a sweep and `resume` is False, or another sweep; `PATIENCE` trials in a row failed.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study, failed_in_a_row = _opened(sweep, out, seed, resume), 0
    grid = sweep.grid() if sweep.method == "grid" else None
    while True:
        ended = _ended(study)
        told(ended)
        if len(ended) >= most:
            return ended
        if grid is None:
            study.sampler = _sampler(sweep.method, int(np.random.SeedSequence([seed, len(ended)]).generate_state(1)[0]))
        elif not study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.WAITING,)):
            study.enqueue_trial(grid[len(ended)])
        trial = study.ask(sweep.parameters)
        folder = folder_of(out, trial.number)
        started = time.monotonic()
        value, error = _tried(sweep, trial.params, folder)
        trial.set_user_attr("seconds", time.monotonic() - started)
        if value is not None:
            study.tell(trial, value)
            failed_in_a_row = 0
            continue
        trial.set_user_attr("error", error)
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        failed_in_a_row += 1
        if failed_in_a_row == PATIENCE:
            raise ValueError(f"{PATIENCE} trials in a row failed, the last one with: {error}; see {folder}/output.log")


def best_of(trials: list[Trial], goal: str) -> list[Trial]:
    """Those with a value, the best first."""
    sign = 1 if goal == "minimize" else -1
    return sorted((each for each in trials if each.value is not None), key=lambda each: sign * (each.value or 0.0))


def folder_of(out: Path, number: int) -> Path:
    """Where a trial keeps its files."""
    return out / f"trial-{number:04d}"


def _opened(sweep: Sweep, out: Path, seed: int, resume: bool) -> Any:
    """The study in `out`. What ran when it was killed has failed there, for no reason of its own."""
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
    """All but those that were killed: they have neither a value nor an error."""
    return [
        Trial(each.number, each.params, each.value, each.user_attrs["seconds"], each.user_attrs.get("error", ""))
        for each in study.get_trials(deepcopy=False)
        if each.value is not None or (each.state.is_finished() and "error" in each.user_attrs)
    ]


def _sampler(method: str, seed: int) -> Any:
    from optuna.samplers import RandomSampler, TPESampler

    return RandomSampler(seed) if method == "random" else TPESampler(seed=seed)


def _tried(sweep: Sweep, values: dict[str, Any], folder: Path) -> tuple[float | None, str]:
    """The value of the metric, or why there is none."""
    folder.mkdir(exist_ok=True)
    result, log = folder / "result.json", folder / "output.log"
    command = [*_here(sweep.words(values)), "--json", str(result)]
    if any(each == "--out" or each.startswith("--out=") for each in command):
        command += ["--out", str(folder)]
    with log.open("w") as file:
        print("$", shlex.join(command), file=file, flush=True)
        status = _run(command, _environment(sweep.name), file)
    if status:
        return None, f"exit status {status}: {plain(log.read_text(errors='replace').strip().splitlines()[-1])}"
    try:
        return metric_of(read_object(result), sweep.metric), ""
    except ValueError as error:
        return None, plain(error)


def _environment(group: str) -> dict[str, str]:
    """With a service of W&B of its own: that of this process, if it logged anything, writes to where it was started."""
    ours = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
    return {"WANDB_MODE": "offline", "WANDB_RUN_GROUP": group} | ours


def _here(words: list[str]) -> list[str]:
    """The same with the `gst` and the Python that run now, whether or not they are on the PATH."""
    known = {"gst": [sys.executable, "-m", "gst.cli"], "python": [sys.executable]}
    return [*known.get(words[0], words[:1]), *words[1:]]


def _run(command: list[str], environment: dict[str, str], log: IO[str]) -> int:
    """Its exit status. It ends when this process is asked to end, and on Linux also when this process is killed."""
    parent, libc = os.getpid(), ctypes.CDLL(None) if sys.platform == "linux" else None

    def end_with_parent() -> None:
        if libc is not None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:
                os._exit(1)

    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
        preexec_fn=end_with_parent,
    ) as child:  # fmt: skip
        try:
            return child.wait()
        except BaseException:
            with suppress(ProcessLookupError):
                child.terminate()
            raise
