"""Child process of `gst.devices.execute.isolated`, which runs plans that may crash or hang it.

    python -m gst.devices.execute.child    # input: settings, then requests; output: answers; each a line of JSON

Requests are `{"profile": repetitions}`, `{"timelines": {"plans": [plan, ...], "repetitions": n}}`, and
`{"groups": plan}`, `{"compile": plan}`, `{"check": plan}` and `{"time": plan}`.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64

from gst.devices.describe.discover import Device
from gst.devices.execute.calls import ExecutionError, eager
from gst.devices.execute.costs import measure_costs, profile
from gst.devices.execute.executor import AnyExecutor, executor
from gst.devices.execute.groups import group_records
from gst.devices.execute.measure import timed
from gst.devices.execute.native import NativeExecutor, quickest_runs
from gst.devices.plan import Plan
from gst.programs import Program, outputs_differ, traced

PR_SET_PDEATHSIG = 1  # linux/prctl.h
NO_MEMORY = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory", "bad_alloc")
PAST_THE_LIMIT = "out of memory: "  # what the compiled interpreter says of a run that it stopped itself


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the program prints is no answer
    settings = json.loads(sys.stdin.readline())
    _end_with_parent(settings["parent"])
    try:
        program = _program(settings["program"])
        devices = [Device(**{**each, "cores": tuple(each["cores"])}) for each in settings["devices"]]
        made = executor(program, devices)
        limit = settings["memory_limit"]
        if isinstance(made, NativeExecutor):  # what is no run of a plan may take all there is
            limit, made.memory_limit = made.memory_limit if limit is None else limit, None
        with made:
            want = eager(program)
            print(json.dumps({"key": program.key, "num_nodes": program.num_nodes}), file=answers)
            for line in sys.stdin:
                answer = _answer(made, json.loads(line), limit, want)
                print(json.dumps(answer), file=answers)
                if answer.get("ends"):
                    return
    except ValueError as error:
        print(json.dumps({"refused": str(error)}), file=answers)


def profile_devices(program: Program, executor: AnyExecutor) -> Float64[np.ndarray, "devices nodes"]:
    """Profiled microseconds of each operation on each device; devices of one kind and thread count are alike."""
    seen: dict[tuple[str, int, str], np.ndarray] = {}
    for device in executor.devices:
        kind = (device.kind, device.threads, device.description)
        if kind not in seen:
            seen[kind] = profile(program, executor, device.name)
    return np.stack([seen[device.kind, device.threads, device.description] for device in executor.devices])


def _program(source: dict[str, str]) -> Program:
    return traced(source["name"]) if "name" in source else Program.load(Path(source["directory"]))


def _answer(made: AnyExecutor, request: dict[str, Any], limit: int | None, want: Sequence[Any]) -> dict[str, Any]:
    """What a request asks for; `failed` with a reason, and `ends` if this process is not to be trusted any more."""
    try:
        if "profile" in request:
            return _profile(made, request["profile"])
        ((what, record),) = request.items()
        if what == "timelines":
            return _timelines(made, [Plan.from_dict(each) for each in record["plans"]], record["repetitions"])
        plan = Plan.from_dict(record)
        if what == "groups":
            return _groups(made, plan)
        made.compile(plan)
        if what == "compile":
            return {}
        with _limited(made, limit):
            if what == "check":
                difference = outputs_differ(made.run(plan), want)
                return {"failed": f"wrong outputs: {difference}", "ends": True} if difference else {}
            return {"ms": timed(partial(made.run, plan)), "peak_bytes": _peak(made)}
    except ExecutionError as error:
        stopped = isinstance(made, NativeExecutor) and error.reason.startswith(PAST_THE_LIMIT)
        return {"failed": error.reason if stopped else _reason(str(error)), "ends": not stopped}
    except ValueError as error:
        return {"refused": str(error)}
    except Exception as error:
        return {"failed": _reason(f"{type(error).__name__}: {error}"), "ends": True}


def _profile(made: AnyExecutor, repetitions: int) -> dict[str, Any]:
    """Microseconds of each operation on each device, and the bytes it takes while it runs, where they are counted."""
    if not isinstance(made, NativeExecutor):
        return {"times_us": profile_devices(made.program, made).round(3).tolist(), "own_bytes": None}
    costs = measure_costs(made, repetitions)
    return {"times_us": costs.times_us.round(3).tolist(), "own_bytes": costs.own_bytes.tolist()}


def _timelines(made: AnyExecutor, plans: Sequence[Plan], repetitions: int) -> dict[str, Any]:
    """Of the quickest run of each plan, when each operation began and ended; none where nobody writes that down."""
    if not isinstance(made, NativeExecutor):
        return {"runs": []}
    runs = quickest_runs(made, plans, repetitions)
    return {"runs": [[run.device.tolist(), run.begin_us.tolist(), run.end_us.tolist()] for run in runs]}


def _groups(made: AnyExecutor, plan: Plan) -> dict[str, Any]:
    """Of each legal group of a plan the first node and the share of its time that it takes compiled; none where nobody
    compiles groups."""
    if not isinstance(made, NativeExecutor):
        return {"groups": []}
    records = group_records(made.program, plan, made.devices)
    return {"groups": [(group.nodes[0], record.share) for group, record in records]}


def _reason(words: str) -> str:
    first = (words.strip().splitlines() or [""])[0]
    return f"out of memory: {first}" if any(each in words.lower() for each in NO_MEMORY) else first


def _peak(made: AnyExecutor) -> int | None:
    return made.last_timeline.peak_bytes if isinstance(made, NativeExecutor) else None


@contextmanager
def _limited(made: AnyExecutor, limit: int | None) -> Iterator[None]:
    """Let runs take no more than `limit` bytes: of intermediate values where the compiled interpreter counts them, else
    of each GPU or, on CPUs, of address space beyond what this process has."""
    cuda = [device for device in made.devices if device.kind == "cuda"]
    if limit is None:
        yield
    elif isinstance(made, NativeExecutor):
        made.memory_limit = limit
        try:
            yield
        finally:
            made.memory_limit = None
    elif cuda:
        for device in cuda:
            total = torch.cuda.get_device_properties(device.torch_device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device.torch_device)
        yield
    else:
        before = resource.getrlimit(resource.RLIMIT_AS)
        in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (in_use + limit, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)


def _end_with_parent(parent: int) -> None:
    """End when the thread that started this process ends, also in the midst of a run; write no core file; leave
    Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (int(most != 0),) * 2)  # 1 byte: nor does Linux pipe one to a handler
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


if __name__ == "__main__":
    main()
