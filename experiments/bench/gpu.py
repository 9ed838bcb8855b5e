"""An accelerator, most important first: its tests, then each workload as written and by lanes; without one, what can be
proven without.

    make gpu    # python -m experiments.bench gpu --json experiments/results/gpu/NAME.json

Each workload runs in a process of its own, and the others go on when one fails. Without an accelerator each workload
is captured for CUDA at the size of the tests, lowered for 1, 2 and 4 GPUs with the CPU, checked for races, and run on
fake tensors, which refuse operands on different devices.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.bench import child_environment
from experiments.bench.strangers_program import module_of
from gst.data.graphnet import FxSource, read_sources
from gst.devices import Device, Plan, machine_record
from gst.devices.execute.lanes import LaneExecutor
from gst.devices.execute.lowering import stream_program
from gst.devices.execute.race_check import check
from gst.devices.execute.storages import storages
from gst.programs import WORKLOADS, Program, Reference, Step, capture, inference_step

ROOT = Path(__file__).parents[2]
MACHINES = ((1, 1), (1, 4), (2, 2), (4, 2))  # GPUs, and lanes of each
Say = Callable[[str], object]


def run(options: argparse.Namespace) -> dict[str, Any]:
    """The tests and figures of the accelerator of this machine, or the proofs without one; a line for each workload."""
    names = options.programs.split(",") if options.programs else list(WORKLOADS)
    if unknown := [name for name in names if name.partition(":")[0] not in WORKLOADS]:
        raise ValueError(f"no workload {unknown[0]!r}; there are {', '.join(WORKLOADS)}")
    result: dict[str, Any] = {"command": options.command, "machine": machine_record()}
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    result["accelerator"] = None if accelerator is None else str(accelerator)
    if accelerator is None:
        sizes = {} if options.full else _small()
        steps = {name: partial(WORKLOADS[name.partition(":")[0]], **sizes.get(name, {})) for name in names}
        if options.samples is not None:
            steps = {source.name: partial(sample_step, source) for source in read_sources(options.samples)}
        result["checked"] = {name: proven(name, make, print) for name, make in steps.items()}
        wrong = [name for name, row in result["checked"].items() if "failed" in row]
        print("no accelerator here: the tests marked gpu and every time are skipped; programs were checked without one")
        if wrong:
            raise ValueError(f"{', '.join(wrong)} failed without an accelerator; see above")
        return result
    if not options.without_tests:
        result["tests"] = gpu_tests(options.time_limit)
        print(f"tests marked gpu: {result['tests']['last_line']}", flush=True)
    settings = {"repetitions": options.repetitions, "lanes": [int(each) for each in options.lanes.split(",")]}
    result["settings"], result["workloads"] = settings, {}
    for name in names:
        row = result["workloads"][name] = _row(name, settings, options.time_limit)
        print(_line(name, row), flush=True)
    return result


def _small() -> dict[str, dict[str, Any]]:
    sys.path.append(str(ROOT))
    from tests.programs.small import SMALL

    return SMALL


def sample_step(source: FxSource) -> Step:
    """The inference step of a GraphNet sample, which is read, not executed."""
    module, inputs = module_of(source)
    return inference_step(module, inputs, source.name)


def proven(name: str, make: Callable[[], Step], say: Say) -> dict[str, Any]:
    """Capture a step for CUDA, and lower, check and run it on fake tensors for each of `MACHINES`.

    Args:
        name: of the step, for the line.
        make: makes it.
        say: is told the outcome in a line.

    Returns:
        Operations, for each machine its steps and copies, and seconds; or `failed` with the reason.
    """
    began = time.perf_counter()
    try:
        program = capture(make(), kind="cuda")
        allocated, lowered = storages(program), {}
        for gpus, lanes in MACHINES:
            devices = described(gpus, lanes)
            plan = scattered(program, devices)
            streams = stream_program(program, plan, devices, allocated)
            check(streams)
            runs_on_fakes(program, LaneExecutor(program, streams, devices))
            lowered[f"{gpus}x{lanes}"] = {"steps": streams.num_steps, "copies": int((streams.target >= 0).sum())}
    except Exception as error:  # the others go on
        say(f"{name:<34} failed: {str(error).splitlines()[0]}")
        return {"failed": str(error)}
    took = time.perf_counter() - began
    steps = sum(each["steps"] for each in lowered.values())
    say(f"{name:<34} {program.num_nodes:>6} nodes for CUDA; {steps:>7} steps on 1, 2, 4 GPUs right; {took:.0f} s")
    return {"nodes": program.num_nodes, "lowered": lowered, "seconds": round(took, 1)}


def described(gpus: int, lanes: int) -> list[Device]:
    """Streams of GPUs that need not be here, and the CPU."""
    streams = [
        Device(f"cuda:{number}/stream:{lane}", "cuda", (), 1, f"cuda:{number}", "described")
        for number in range(gpus)
        for lane in range(lanes)
    ]
    return [*streams, Device("cpu:0", "cpu", (), 1, "host", "described")]


def scattered(program: Program, devices: Sequence[Device], seed: int = 0) -> Plan:
    """Every operation anywhere: the plan with the most copies and events."""
    rng = np.random.default_rng(seed)
    names = tuple(device.name for device in devices)
    return Plan(names, rng.integers(0, len(names), program.num_nodes), rng.integers(-5, 5, program.num_nodes))


def runs_on_fakes(program: Program, executor: LaneExecutor) -> None:
    """Run on fake tensors; outputs lie where the stream program leaves them, in the shapes of the program.

    Raises:
        ExecutionError: an operation reads values of different devices.
        ValueError: an output is elsewhere, or of another shape.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        outputs = executor.run()
    home = dict(executor.streams.results.T.tolist())
    for output, value in zip(program.outputs, outputs, strict=True):
        if not isinstance(output, Reference):
            continue
        want = executor.devices[home[output.node]], program.operations[output.node].shapes[0]
        if (value.device, tuple(value.shape)) != want:
            raise ValueError(f"output {output.node} is {tuple(value.shape)} on {value.device}, want {want}")


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
    """What the child says, or `{"failed": reason}`."""
    command = [sys.executable, "-m", "experiments.bench.gpu_child", name, json.dumps(settings)]
    try:
        child = subprocess.run(command, env=child_environment(), capture_output=True, text=True, timeout=time_limit_s)
    except subprocess.TimeoutExpired:
        return {"failed": f"no result within {time_limit_s:g} s"}
    if child.returncode == 0:
        return json.loads(child.stdout.splitlines()[-1])
    return {"failed": (child.stderr.strip().splitlines() or [f"exit status {child.returncode}"])[-1][:300]}


def _line(name: str, row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"{name:<16} failed: {row['failed']}"
    ways = ", ".join(
        f"{way} {each['median_ms']:.3f} ms" if each["reason"] == "" else f"{way} failed ({each['reason'][:60]})"
        for way, each in row["ways"].items()
    )
    return f"{name:<16} {ways}; operations alone {row['operations_ms']:.3f} ms"
