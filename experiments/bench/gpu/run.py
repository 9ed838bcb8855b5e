"""An accelerator, most important first: tests that all else rests on, kernels of training steps on streams beside
torch.compile, GST's training step, the tiers of its table, `gst place` of inception, a model in half of its memory,
then all other tests, jobs of GST and workloads by lanes, and last `max-autotune`; without one, what is proven without.

    make gpu    # python -m experiments.bench gpu --json experiments/results/gpu/gpu.json; nineteen minutes at most
    make gpu LIMIT=540 OUT=folder    # seconds of all together; then `make gpu LIMIT=540 OUT=folder RESUME=1` goes on

Each row runs in a process of its own and has a share of the time; the others go on when one fails, and what there is no
time for is named. The figures are written after each row, and what a process said of errors to a folder beside them.
Without an accelerator the workloads, training steps of the transformers library and GraphNet samples go through
`experiments.bench.gpu.proofs`.
"""

from __future__ import annotations

import argparse
import compileall
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from experiments.bench.gpu import gst_jobs, lines, pytest_runs
from experiments.bench.gpu.kernels import STEPS
from experiments.bench.gpu.process import run_session
from experiments.bench.gpu.proofs import proven, steps_to_prove
from experiments.bench.gpu.record import accelerator_record
from gst.machine.devices import machine_record
from gst.programs import WORKLOADS
from gst.util.untrusted import read_object
from gst.util.writing import write_json

LATE_MODE = "max-autotune"  # of torch.compile; it takes minutes
LEAST_S, LEAST_LATE_S = 10.0, 60.0  # in which nothing could be measured, and nothing compiled in the late mode
FLOOR_S = 30.0  # that each row may take, if there is time: a process needs some for its imports
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


def run(options: argparse.Namespace) -> dict[str, Any]:
    """The tests and figures of the accelerator of this machine, or the proofs without one; a line for each program.

    The figures are written to `options.json` after each row, so that a run which is killed leaves what it knows;
    with `--resume` those that the file holds are kept.
    """
    names = options.programs.split(",") if options.programs else None
    result: dict[str, Any] = {"command": options.command, "machine": machine_record()}
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    result["accelerator"] = None if accelerator is None else str(accelerator)
    if accelerator is None:
        return result | _proofs(names, options)
    compileall.compile_dir(str(ROOT / "gst"), quiet=2)  # else each process of a row compiles it again
    modes = [each for each in options.modes.split(",") if each]
    jobs = list(_jobs(names, not options.without_tests, LATE_MODE in modes))
    settings = {
        "repetitions": options.repetitions,
        "lanes": [int(each) for each in options.lanes.split(",")],
        "modes": [each for each in modes if each != LATE_MODE],
        "plans": options.plans,
    }
    result["accelerator_record"] = accelerator_record(torch.device(accelerator.type, 0))
    result |= {"settings": settings, "tests": {"outcomes": {}}, "gst": {}, "place": None, "capped": None}
    result |= {"kernels": {}, "workloads": {}, "compiled": {}}
    result |= _before(options, result)
    result["skipped"] = []
    deadline = time.monotonic() + options.total_limit
    for job in jobs:
        if _is_done(job, result):
            continue
        left = deadline - time.monotonic()
        if left < (LEAST_LATE_S if job.part == "compiled" else LEAST_S):
            result["skipped"].append(f"{job.name}: no time left of {options.total_limit:g} s")
            continue
        limit_s = min(max(job.share * options.total_limit, FLOOR_S), options.time_limit, left)
        try:
            print(_do(job, result, limit_s, options.json), flush=True)
        finally:
            if options.json:
                write_json(options.json, result)
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
    return there is not None if job.part in ("place", "capped") else job.name in there


def _do(job: Job, result: dict[str, Any], limit_s: float, path: Path | None) -> str:
    """Do one job, put its row into the result, and say it in a line."""
    name = re.sub(r"[^A-Za-z0-9]", "_", job.name)
    log = None if path is None else path.with_suffix("") / f"{job.part}_{name}.txt"
    if job.part == "tests":
        return _test(job.name, result["tests"], limit_s, log)
    if job.part == "gst":
        row = result["gst"][job.name] = _row("gst_jobs", [job.name, json.dumps(gst_jobs.JOBS[job.name])], limit_s, log)
        return gst_jobs.line(job.name, row)
    if job.part == "kernels":
        folder = Path("gpu") if path is None else path.parent
        settings = {"seconds": limit_s, "plans": PLANS, "steps": STEPS, "folder": str(folder)}
        row = result["kernels"][job.name] = _row("kernels", [job.name, json.dumps(settings)], limit_s, log)
        return lines.kernels(job.name, row)
    if job.part == "place":
        settings = PLACED | {"seconds": round(limit_s * PLACED_SHARE)}
        row = result["place"] = _row("place", [json.dumps(settings)], limit_s, log)
        return lines.place(row)
    if job.part == "capped":
        row = result["capped"] = _row("capped", [json.dumps(CAPPED)], limit_s, log)
        return lines.capped(row)
    settings = result["settings"] | {"seconds": limit_s}
    if job.part == "compiled":
        settings |= {"lanes": [], "plans": 0, "modes": [LATE_MODE]}
    row = result[job.part][job.name] = _row("child", [job.name, json.dumps(settings)], limit_s, log)
    return lines.workload(job.name, row)


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


def _before(options: argparse.Namespace, now: Mapping[str, Any]) -> dict[str, Any]:
    """Rows of an earlier run that ended well, from `options.json`; none without `--resume`.

    Raises:
        ValueError: they are of another machine or other settings.
    """
    if not options.goes_on or not options.json or not options.json.exists():
        return {}
    before = read_object(options.json)
    if any(before.get(key) != now[key] for key in ("machine", "accelerator", "settings")):
        raise ValueError(f"{options.json} is of other settings or another machine; leave --resume away")
    parts = ("kernels", "gst", "workloads", "compiled")
    rows = {part: {name: row for name, row in before[part].items() if _is_whole(row)} for part in parts}
    alone = {part: before[part] for part in ("place", "capped") if before[part] and _is_whole(before[part])}
    tests = {name: row for name, row in before["tests"].items() if row.get("status") in PASSED}
    tests["outcomes"] = {
        test: each for test, each in before["tests"]["outcomes"].items() if each["outcome"] in ("passed", "skipped")
    }
    return rows | alone | {"tests": tests}


def _is_whole(row: Mapping[str, Any]) -> bool:
    return not {"failed", "unfinished"} & set(row) and not row.get("wrong")


def _proofs(names: Sequence[str] | None, options: argparse.Namespace) -> dict[str, Any]:
    """Rows of the programs, and what was skipped; a line for each.

    Raises:
        ValueError: a program failed.
    """
    steps, skipped = steps_to_prove(names, options.samples, options.full)
    rows = {name: proven(name, make, print) for name, make in steps.items()}
    skipped = ["the tests marked gpu", "every time", *skipped]
    wrong = [name for name, row in rows.items() if "failed" in row]
    print(f"no accelerator here: {len(rows) - len(wrong)} of {len(rows)} programs were checked without one")
    print(f"skipped: {'; '.join(skipped)}")
    if wrong:
        raise ValueError(f"{', '.join(wrong)} failed without an accelerator; see above")
    return {"checked": rows, "skipped": skipped}


def _row(module: str, arguments: Sequence[str], limit_s: float, log: Path | None = None) -> dict[str, Any]:
    """The last that a child says, a module of this folder, with `unfinished`, the reason, if it did not end well; or
    `{"failed": reason}`. What it says of errors goes to `log`."""
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
    """The last whole line of JSON, with None for NaN and infinity, if there is any: a child that does not end compiling
    has said what it knew before."""
    lines = [line for line in said.splitlines(keepends=True) if line.startswith("{") and line.endswith("}\n")]
    return json.loads(lines[-1], parse_constant=lambda _: None) if lines else None
