"""An accelerator, most important first: tests that all else rests on, kernels of training steps on streams compared
with torch.compile, GST's training step, the tiers of its table, `gst place` of inception, a model in half of its
memory, then all other tests, jobs of GST and workloads by streams, and last `max-autotune`.

    python -m experiments.bench gpu --json experiments/results/gpu/h100.json
    python -m experiments.bench gpu --total-limit 540 --json gpu.json --resume
    python -m experiments.bench gpu --programs gpt,inception --without-tests

`make gpu LIMIT=540 OUT=folder` limits the seconds of all together; `RESUME=1` goes on. Each row runs in a process of
its own and has a share of the time; the others go on when one fails, and those without time are named. The figures are
written after each row, error output to a folder next to them.
"""

from __future__ import annotations

import compileall
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from json import dumps, loads
from pathlib import Path
from typing import Any, NamedTuple

from experiments.bench.gpu import gst_jobs, lines, pytest_runs
from experiments.bench.gpu.kernels import STEPS
from experiments.bench.gpu.process import run_session
from experiments.bench.gpu.record import accelerator_here, accelerator_record
from gst.machine.devices import machine_record
from gst.programs import WORKLOADS
from gst.util.untrusted import read_object
from gst.util.writing import write_json

LATE_MODE = "max-autotune"  # of torch.compile; it takes minutes
LEAST_S, LEAST_LATE_S = 10.0, 60.0  # in which nothing could be measured, and nothing compiled in the late mode
FLOOR_S = 30.0  # that each row may take, if there is time: a process needs some for its imports
ALONE = ("place", "capped")  # parts of the result that are one row
PASSED = (0, 5)  # exit statuses of pytest: all passed, or there were none
CAPPED = {"blocks": 16, "width": 4096, "batch": 64, "repetitions": 5}
"""Of the model in half of its memory: 1 GiB of weights."""
PLACED = {"program": "inception"}
LARGE = "gpt:layers=12,width=768,heads=12,length=256"
"""A model of GPT-2's size."""
PLANS = 200
"""Of the kernels of a program that are measured on streams."""
PLACED_SHARE = 0.6  # of the time of `place`, that `gst place` searches for


ROOT = Path(__file__).parents[3]


class Job(NamedTuple):
    """One row.

    Args:
        part: of the result in which it is: tests, kernels, gst, workloads, place, capped or compiled.
        name: of the row.
        share: of the time of all together that it may take at most.
    """

    part: str
    name: str
    share: float


JOBS = (
    Job("tests", "tests", 0.12),
    *(Job("kernels", name, 0.1) for name in ("rnnlm", "gpt", "moe", "inception")),
    Job("kernels", LARGE, 0.14),
    Job("gst", "step", 0.12),
    Job("gst", "table", 0.06),
    Job("place", "place", 0.13),
    Job("gst", "score", 0.08),
    Job("capped", "capped", 0.08),
    Job("tests", "more tests", 0.14),
    Job("gst", "recorded", 0.06),
    *(Job("kernels", name, 0.1) for name in WORKLOADS if name not in ("inception", "gpt", "rnnlm", "moe")),
    *(Job("workloads", name, 0.1) for name in ("inception", "gpt", "rnnlm", "moe")),
    *(Job("workloads", name, 0.1) for name in WORKLOADS if name not in ("inception", "gpt", "rnnlm", "moe")),
)
"""The most important first; what comes later may find no time left."""


HELP = {
    "programs": "workloads, step, recorded, table, score, place, capped, separated by commas (default: all of them)",
    "lanes": "numbers of streams of the accelerator",
    "modes": "of torch.compile; max-autotune at the end of all, if there is time; '' = not compiled",
    "plans": "simulated and measured, too, as far as time goes", "without_tests": "leave out the tests marked gpu",
    "time_limit": "seconds of each row at most", "total_limit": "seconds of all together, shared by the rows",
    "resume": "keep the rows of --json that ended well",
}  # fmt: skip


def run(
    programs: tuple[str, ...] = (),
    lanes: tuple[int, ...] = (1, 2, 4),
    modes: tuple[str, ...] = ("default", "reduce-overhead", LATE_MODE),
    repetitions: int = 25,
    plans: int = 100,
    without_tests: bool = False,
    time_limit: float = 300.0,
    total_limit: float = 1140.0,
    resume: bool = False,
    json: Path | None = None,
    command: str = "",
) -> dict[str, Any]:
    """Run the tests and measure the accelerator of this machine; a line for each row.

    The figures are written to `json` after each row, so that a killed run leaves them.

    Raises:
        ValueError: there is no accelerator, workload or job of that name, or `json` is of other settings.
    """
    if (device := accelerator_here()) is None:
        raise ValueError("PyTorch finds no accelerator on this machine, so there is nothing to measure")
    result: dict[str, Any] = {"command": command, "machine": machine_record(), "accelerator": device.type}
    compileall.compile_dir(str(ROOT / "gst"), quiet=2)  # else each process of a row compiles it again
    jobs = list(_jobs(programs or None, not without_tests, LATE_MODE in modes))
    early = [each for each in modes if each != LATE_MODE]
    settings = {"repetitions": repetitions, "lanes": list(lanes), "modes": early, "plans": plans}
    result |= {"accelerator_record": accelerator_record(device), "settings": settings}
    result |= {"tests": {"outcomes": {}}, "gst": {}, "place": None, "capped": None}
    result |= {"kernels": {}, "workloads": {}, "compiled": {}}
    if resume and json is not None and json.exists():
        result |= _before(json, result)
    result["skipped"] = []
    deadline = time.monotonic() + total_limit
    for job in jobs:
        if _is_done(job, result):
            continue
        left = deadline - time.monotonic()
        if left < (LEAST_LATE_S if job.part == "compiled" else LEAST_S):
            result["skipped"].append(f"{job.name}: no time left of {total_limit:g} s")
            continue
        limit_s = min(max(job.share * total_limit, FLOOR_S), time_limit, left)
        try:
            print(_do(job, result, limit_s, json), flush=True)
        finally:
            if json:
                write_json(json, result)
    print(f"skipped: {'; '.join(result['skipped']) or 'nothing'}", flush=True)
    return result


def _jobs(names: Sequence[str] | None, has_tests: bool, is_late: bool) -> Iterator[Job]:
    """The jobs of these names, all if None; in the late mode of the compiler each workload once more, at the end.

    Raises:
        ValueError: there is no such workload or job.
    """
    known = [job.name for job in JOBS if job.part != "tests"]
    if unknown := [name for name in names or () if name.partition(":")[0] not in known]:
        raise ValueError(f"no workload {unknown[0]!r}; there are {', '.join(known)}")
    others = [Job("workloads", name, 0.1) for name in names or () if name not in known]  # of other sizes
    jobs = [job for job in JOBS if (has_tests and job.part == "tests")
            or (job.part != "tests" and (names is None or job.name in names))]  # fmt: skip
    yield from (*jobs, *others)
    if is_late:
        yield from (Job("compiled", job.name, 0.25) for job in (*jobs, *others) if job.part == "workloads")


def _is_done(job: Job, result: Mapping[str, Any]) -> bool:
    there = result[job.part]
    return there is not None if job.part in ALONE else job.name in there


def _do(job: Job, result: dict[str, Any], limit_s: float, path: Path | None) -> str:
    """Do one job, put its row into the result, and say it in a line."""
    name = re.sub(r"[^A-Za-z0-9]", "_", job.name)
    log = None if path is None else path.with_suffix("") / f"{job.part}_{name}.txt"
    if job.part == "tests":
        return _test(job.name, result["tests"], limit_s, log)
    module, arguments = _child_of(job, result["settings"], limit_s, path)
    row = _row(module, arguments, limit_s, log)
    if job.part in ALONE:
        result[job.part] = row
    else:
        result[job.part][job.name] = row
    return lines.line(job.name, row)


def _child_of(job: Job, settings: Mapping[str, Any], limit_s: float, path: Path | None) -> tuple[str, list[str]]:
    """Return the module of this folder that does a job, and its arguments."""
    if job.part == "gst":
        return "gst_jobs", [job.name, dumps(gst_jobs.JOBS[job.name])]
    if job.part == "kernels":
        folder = str(Path("gpu") if path is None else path.parent)
        return "kernels", [job.name, dumps({"seconds": limit_s, "plans": PLANS, "steps": STEPS, "folder": folder})]
    if job.part == "place":
        return "place", [dumps(PLACED | {"seconds": round(limit_s * PLACED_SHARE)})]
    if job.part == "capped":
        return "capped", [dumps(CAPPED)]
    late = {"lanes": [], "plans": 0, "modes": [LATE_MODE]} if job.part == "compiled" else {}
    return "child", [job.name, dumps({**settings, "seconds": limit_s, **late})]


def _test(name: str, tests: dict[str, Any], limit_s: float, log: Path | None) -> str:
    """Run the tests of the first files, or all those that have not run yet; `tests` holds what became of them."""
    first, others = pytest_runs.files_of_tests()
    files = first if name == "tests" else [*first, *others]
    outcomes: dict[str, pytest_runs.Outcome] = tests["outcomes"]
    row = pytest_runs.gpu_tests(files, limit_s, outcomes, log)
    new = row.pop("outcomes")
    outcomes |= new
    tests[name] = row
    return pytest_runs.line(name, new, row["last_line"])


def _before(path: Path, now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rows of an earlier run that ended well.

    Raises:
        ValueError: they are of another machine or other settings.
    """
    before = read_object(path)
    if any(before.get(key) != now[key] for key in ("machine", "accelerator", "settings")):
        raise ValueError(f"{path} is of other settings or another machine; leave --resume away")
    parts = ("kernels", "gst", "workloads", "compiled")
    rows = {part: {name: row for name, row in before[part].items() if _is_whole(row)} for part in parts}
    alone = {part: before[part] for part in ALONE if before[part] and _is_whole(before[part])}
    tests = {name: row for name, row in before["tests"].items() if row.get("status") in PASSED}
    tests["outcomes"] = {
        test: each for test, each in before["tests"]["outcomes"].items() if each["outcome"] in ("passed", "skipped")
    }
    return rows | alone | {"tests": tests}


def _is_whole(row: Mapping[str, Any]) -> bool:
    return not {"failed", "unfinished"} & set(row) and not row.get("wrong")


def _row(module: str, arguments: Sequence[str], limit_s: float, log: Path | None = None) -> dict[str, Any]:
    """Return the last row that a child printed, with the reason `unfinished` if it did not end well; or
    `{"failed": reason}`. Its error output goes to `log`."""
    ended = run_session([sys.executable, "-m", f"experiments.bench.gpu.{module}", *arguments], limit_s)
    if log is not None and ended.stderr:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(ended.stderr)
    words = ended.stderr.strip().splitlines() or [f"exit status {ended.status}"]
    reason = f"no end within {limit_s:g} s" if ended.status is None else words[-1][:300] if ended.status else ""
    row = _last_row(ended.stdout)
    if row is None:
        return {"failed": reason or "no result"}
    return row | ({"unfinished": reason} if reason else {})


def _last_row(said: str) -> dict[str, Any] | None:
    """Return the last whole line of JSON, with None for NaN and infinity, if there is any."""
    whole = [line for line in said.splitlines(keepends=True) if line.startswith("{") and line.endswith("}\n")]
    return loads(whole[-1], parse_constant=lambda _: None) if whole else None
