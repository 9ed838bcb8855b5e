"""Calls that a training step on streams makes from its host, and simulated schedules by an H200's times.

    python -m experiments.bench.kernel_calls rnnlm moe gpt inception --json experiments/results/kernel_calls.json

The kernels of each step are recorded on the CPU. A stand-in for the graph runs them once, and then nothing: what is
left of a step is counted, by operator. Schedules take the time of one stream on an H200
(experiments/results/gpu/h200_fused_lanes.json) in equal parts, and stand beside the times of more streams there.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gst.kernels.lower import layout
from gst.kernels.program import KernelProgram
from gst.kernels.run import Run
from gst.kernels.state import StepInPlace
from gst.kernels.streams import MEMORY, within_memory
from gst.machine.devices import machine_record
from gst.programs import resolve
from gst.util.progress import bar
from gst.util.writing import write_json

COUNTS = (1, 2, 4, 8)  # of streams
H200 = Path("experiments/results/gpu/h200_fused_lanes.json")
ONE = "fused_1_lanes_ms"
COPY, CLONE = torch.ops.aten.copy_.default, torch.ops.aten.clone.default
READ = torch.ops.aten._local_scalar_dense.default


class StandIn:
    """A plan for `StepInPlace`: the first call runs the kernels, later ones are counted and return what it left."""

    def __init__(self) -> None:
        self.replays = 0

    def __call__(self, program: KernelProgram, given: Sequence[Tensor]) -> Callable[[], list[Any]]:
        self.program, self.given = program, given
        outputs = Run(program, given=given)()

        def replay() -> list[Any]:
            self.replays += 1
            return outputs

        return replay


class Operators(TorchDispatchMode):
    """Counts what is called, by operator."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[Any]()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[function] += 1
        return function(*args, **(kwargs or {}))


@contextmanager
def waits() -> Iterator[list[str]]:
    """Name each call that waits for an accelerator."""
    found: list[str] = []
    places = (torch.accelerator, "synchronize"), (torch.cuda, "synchronize"), (torch.cuda.Event, "synchronize")
    patches = [patch.object(owner, name, lambda *_, said=name: found.append(said)) for owner, name in places]
    for each in patches:
        each.start()
    try:
        yield found
    finally:
        for each in patches:
            each.stop()


def calls(name: str) -> dict[str, Any]:
    """Count what one step with a new batch asks of its host, and simulate its kernels with times of an H200."""
    step, stand_in = resolve(name), StandIn()
    placed = StepInPlace(step, plan=stand_in)
    batch = [each.clone() for each in step.inputs[1:]]
    placed(*batch)
    before = stand_in.replays
    with waits() as waited, Operators() as operators:
        placed(*batch)
    counts = operators.counts
    named = {COPY: "copies", CLONE: "clones", READ: "reads"}
    return {
        "kernels": stand_in.program.num_kernels, "state_tensors": len(placed.state),
        "replays": stand_in.replays - before, "waits": len(waited),
        **{word: counts[operator] for operator, word in named.items()},
        "others": {str(each): count for each, count in counts.items() if each not in named},
        "h200": simulated(name, stand_in.program, stand_in.given),
    }  # fmt: skip


def simulated(name: str, program: KernelProgram, given: Sequence[Tensor]) -> dict[str, Any]:
    """Return for each number of streams the milliseconds in simulation and on an H200, and the memory for buffers."""
    rows = [each for each in json.loads(H200.read_text())["rows"] if each["program"] == name and ONE in each]
    if not rows:
        return {}
    measured = rows[-1]
    each_us = 1e3 * measured[ONE] / program.num_kernels
    times_us = np.full(program.num_kernels, each_us)
    single = Run(program, given=given).places.size
    held = sum(int(program.storage_bytes[storage]) for storage in program.beforehand)
    most = MEMORY * (held + single) - held
    found: dict[str, Any] = {"kernels": measured["calls"], "each_us": round(each_us, 3), "streams": {}}
    for count in COUNTS:
        schedule, streams = within_memory(program, times_us, count, most)
        size = layout(program, streams).size
        found["streams"][str(count)] = {
            "simulated_ms": round(schedule.makespan_us / 1e3, 4),
            "measured_ms": measured.get(f"fused_{count}_lanes_ms"),
            "memory": round((held + size) / (held + single), 3),
        }  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="+")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    names = options.programs
    result: dict[str, Any] = {
        "command": f"python -m experiments.bench.kernel_calls {' '.join(names)} --json {options.json}",
        "machine": machine_record(), "programs": {},
    }  # fmt: skip
    for name in bar(names):
        result["programs"][name] = calls(name)
        write_json(options.json, result)


if __name__ == "__main__":
    main()
