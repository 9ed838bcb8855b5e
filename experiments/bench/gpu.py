"""An accelerator, most important first: its tests, GST's training step, table and scores, gpt, inception, rnnlm and moe
as written and by lanes with the simulator beside them, `gst place` of inception, a model in half of its memory, then
all other workloads; without one, what can be proven without.

    make gpu    # python -m experiments.bench gpu --json experiments/results/gpu/NAME.json
    make gpu LIMIT=540    # seconds of all together; then `make gpu LIMIT=540 RESUME=1` goes on with the rest

Each workload runs in a process of its own, and the others go on when one fails; what there is no time for is named.
Without an accelerator the workloads, training steps of the transformers library and GraphNet samples go through
`experiments.bench.gpu_proofs`.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.bench import child_environment, gpu_gst
from experiments.bench.gpu_proofs import proven, steps_to_prove
from gst.devices import machine_record
from gst.files.untrusted import read_object
from gst.files.writing import write_json
from gst.programs import WORKLOADS

ROOT = Path(__file__).parents[2]
FIRST = ("gpt", "inception", "rnnlm", "moe")
JOBS = (*gpu_gst.JOBS, "place", "capped")
LEAST_S = 10.0  # in which nothing could be measured
CAPPED = {"blocks": 16, "width": 4096, "batch": 64, "repetitions": 5}
"""Of the model in half of its memory: 1 GiB of weights."""

PLACED = {"program": "inception", "seconds": 120}


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
    if unknown := [name for name in names or () if name.partition(":")[0] not in (*WORKLOADS, *JOBS)]:
        raise ValueError(f"no workload {unknown[0]!r}; there are {', '.join((*WORKLOADS, *JOBS))}")
    deadline = time.monotonic() + options.total_limit

    def patience() -> float:
        return min(options.time_limit, deadline - time.monotonic())

    settings = {
        "repetitions": options.repetitions,
        "lanes": [int(each) for each in options.lanes.split(",")],
        "modes": [each for each in options.modes.split(",") if each],
        "plans": options.plans,
    }
    result |= {"settings": settings, "tests": None, "gst": {}, "place": None, "capped": None, "workloads": {}}
    result |= _before(options, result)
    result["skipped"] = []
    if not options.without_tests and not result["tests"]:
        result["tests"] = gpu_tests(patience())
        print(f"tests marked gpu: {result['tests']['last_line']}", flush=True)
        _keep(options, result)
    for name in names or (*gpu_gst.JOBS, *FIRST, "place", "capped", *(each for each in WORKLOADS if each not in FIRST)):
        if name in result["gst"] or name in result["workloads"] or result.get(name):
            continue
        if patience() < LEAST_S:
            result["skipped"].append(f"{name}: no time left of {options.total_limit:g} s")
            continue
        if name in gpu_gst.JOBS:
            limit_s, job = gpu_gst.JOBS[name]
            row = result["gst"][name] = _row("gpu_gst", [name, json.dumps(job)], min(limit_s, patience()))
            print(gpu_gst.line(name, row), flush=True)
        elif name == "place":
            result["place"] = _row("gpu_place", [json.dumps(PLACED)], patience())
            print(_place_line(result["place"]), flush=True)
        elif name == "capped":
            result["capped"] = _row("gpu_capped", [json.dumps(CAPPED)], patience())
            print(_capped_line(result["capped"]), flush=True)
        else:
            row = result["workloads"][name] = _row("gpu_child", [name, json.dumps(settings)], patience())
            print(_line(name, row), flush=True)
        _keep(options, result)
    print(f"skipped: {'; '.join(result['skipped']) or 'nothing'}", flush=True)
    return result


def _keep(options: argparse.Namespace, result: Mapping[str, Any]) -> None:
    if options.json:
        write_json(options.json, result)


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
    rows = {part: {name: row for name, row in before[part].items() if _is_whole(row)} for part in ("gst", "workloads")}
    jobs = {part: before[part] for part in ("place", "capped") if before[part] and _is_whole(before[part])}
    tests = {"tests": before["tests"]} if before["tests"] and before["tests"]["status"] == 0 else {}
    return rows | jobs | tests


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


def gpu_tests(time_limit_s: float) -> dict[str, Any]:
    """Run the tests marked gpu: exit status and the last line of pytest. A file that needs a package which is not here
    fails by name, and the others go on."""
    files = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in path.read_text()]
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-rfE", "--continue-on-collection-errors", *files]
    try:
        ran = subprocess.run(
            command, cwd=ROOT, env=child_environment(), capture_output=True, text=True, timeout=time_limit_s
        )
    except subprocess.TimeoutExpired:
        return {"status": None, "failed": [], "last_line": f"no end within {time_limit_s:g} s"}
    lines = ran.stdout.strip().splitlines() or ran.stderr.strip().splitlines() or ["no words"]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return {"status": ran.returncode, "failed": failed, "last_line": lines[-1]}


def _row(module: str, arguments: Sequence[str], time_limit_s: float) -> dict[str, Any]:
    """The last that a child says, a module of this folder, with `unfinished`, the reason, if it did not end well; or
    `{"failed": reason}`."""
    command = [sys.executable, "-m", f"experiments.bench.{module}", *arguments]
    try:
        child = subprocess.run(command, env=child_environment(), capture_output=True, timeout=time_limit_s)
    except subprocess.TimeoutExpired as late:
        said, reason = late.stdout, f"no end within {time_limit_s:g} s"
    else:
        words = child.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {child.returncode}"]
        said, reason = child.stdout, words[-1][:300] if child.returncode else ""
    row = _last_row(said)
    if row is None:
        return {"failed": reason or "no result"}
    return row | ({"unfinished": reason} if reason else {})


def _last_row(said: bytes | None) -> dict[str, Any] | None:
    """The last whole line of JSON, if any: a child that does not end compiling has said what it knew before."""
    lines = [
        line for line in (said or b"").splitlines(keepends=True) if line.startswith(b"{") and line.endswith(b"}\n")
    ]
    return json.loads(lines[-1]) if lines else None


def _line(name: str, row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"{name:<16} failed: {row['failed']}"
    ways = _times(row["ways"])
    if rank := row.get("simulator"):
        ways += f"; simulator against {rank['plans']} plans: Spearman {rank['spearman'] or 0:.2f}"
    late = f"; stopped before the rest: {row['unfinished']}" if "unfinished" in row else ""
    return f"{name:<16} {ways}; operations alone {row['operations_ms']:.3f} ms{late}"


def _place_line(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"{'place':<16} failed: {row['failed']}"
    in_order = dict(sorted(row["plans"].items(), key=lambda each: each[1]["median_ms"] or math.inf))
    return f"{'place':<16} {row['winner']} wins; {_times(in_order)}; {len(row['eager'])} eager"


def _capped_line(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"{'capped':<16} failed: {row['failed']}"
    return f"{'capped':<16} {_times(row['ways'])}; {row['plan_bytes'] >> 20} of {row['limit_bytes'] >> 20} MiB"


def _times(ways: Mapping[str, Mapping[str, Any]]) -> str:
    """Milliseconds of each way, or why it failed."""
    return ", ".join(
        f"{way} failed ({each['reason'][:60]})" if each["reason"] else f"{way} {each['median_ms']:.3f} ms"
        for way, each in ways.items()
    )
