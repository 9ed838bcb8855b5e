"""An accelerator, most important first: its tests, then each workload as written and by lanes; without one, what can be
proven without.

    make gpu    # python -m experiments.bench gpu --json experiments/results/gpu/NAME.json

Each workload runs in a process of its own, and the others go on when one fails. Without an accelerator the workloads,
training steps of the transformers library and GraphNet samples go through `experiments.bench.gpu_proofs`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.bench import child_environment
from experiments.bench.gpu_proofs import proven, steps_to_prove
from gst.devices import machine_record
from gst.programs import WORKLOADS

ROOT = Path(__file__).parents[2]


def run(options: argparse.Namespace) -> dict[str, Any]:
    """The tests and figures of the accelerator of this machine, or the proofs without one; a line for each program."""
    names = options.programs.split(",") if options.programs else None
    result: dict[str, Any] = {"command": options.command, "machine": machine_record()}
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    result["accelerator"] = None if accelerator is None else str(accelerator)
    if accelerator is None:
        return result | _proofs(names, options)
    if unknown := [name for name in names or () if name.partition(":")[0] not in WORKLOADS]:
        raise ValueError(f"no workload {unknown[0]!r}; there are {', '.join(WORKLOADS)}")
    if not options.without_tests:
        result["tests"] = gpu_tests(options.time_limit)
        print(f"tests marked gpu: {result['tests']['last_line']}", flush=True)
    settings = {
        "repetitions": options.repetitions,
        "lanes": [int(each) for each in options.lanes.split(",")],
        "modes": [each for each in options.modes.split(",") if each],
    }
    result["settings"], result["workloads"] = settings, {}
    for name in names or WORKLOADS:
        row = result["workloads"][name] = _row(name, settings, options.time_limit)
        print(_line(name, row), flush=True)
    return result


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
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-rf", "--continue-on-collection-errors", *files]
    try:
        ran = subprocess.run(
            command, cwd=ROOT, env=child_environment(), capture_output=True, text=True, timeout=time_limit_s
        )
    except subprocess.TimeoutExpired:
        return {"status": None, "failed": [], "last_line": f"no end within {time_limit_s:g} s"}
    lines = ran.stdout.strip().splitlines() or ran.stderr.strip().splitlines() or ["no words"]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return {"status": ran.returncode, "failed": failed, "last_line": lines[-1]}


def _row(name: str, settings: dict[str, Any], time_limit_s: float) -> dict[str, Any]:
    """The last that the child says, with `unfinished`, the reason, if it did not end well; or `{"failed": reason}`."""
    command = [sys.executable, "-m", "experiments.bench.gpu_child", name, json.dumps(settings)]
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
    ways = ", ".join(
        f"{way} {each['median_ms']:.3f} ms" if each["reason"] == "" else f"{way} failed ({each['reason'][:60]})"
        for way, each in row["ways"].items()
    )
    late = f"; stopped before the rest: {row['unfinished']}" if "unfinished" in row else ""
    return f"{name:<16} {ways}; operations alone {row['operations_ms']:.3f} ms{late}"
