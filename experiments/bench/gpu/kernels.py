"""Kernels of a training step on streams, compared with modes of torch.compile, in a loop with a new batch each step.

python -m experiments.bench.gpu.kernels NAME SETTINGS.json    # out: lines of JSON, each with all that is known by then

It writes the kernels of the step with their times and dependencies, and plans with their measured times, to a folder:
schedules of a real accelerator can then be worked on without one.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from experiments.bench.gpu.record import print_rows
from experiments.worlds.kernel_task import kernel_task, lowered
from gst.execution.costs import one_graph
from gst.execution.measure import measure, timed
from gst.kernels.inductor import kernel_program
from gst.kernels.program import KernelProgram, Region
from gst.kernels.run import COUNTS, Run, kernel_times_us, on_streams
from gst.kernels.state import in_place, state_pairs
from gst.lowering.calls import module_on
from gst.lowering.plan import Plan
from gst.placement.baselines.portfolio import portfolio
from gst.placement.objectives import Budgeted, SimulatedObjective
from gst.placement.search.annealing import anneal
from gst.placement.task import Task
from gst.programs import Program, Step, capture, resolve
from gst.util.recording import is_here
from gst.util.writing import write_json

BATCHES, STEPS = 8, 200
MODES = ("default", "reduce-overhead")
Call = Callable[[], Any]


def reports(name: str, settings: Mapping[str, Any], device: torch.device) -> Iterator[dict[str, Any]]:
    """Measure one training step with its state in place.

    Args:
        name: of the program.
        settings: `seconds` of all, `plans` to measure, `steps` of a loop, and `folder` for kernels and plans.
        device: the accelerator, or the CPU, which times little but checks the rest.

    Returns:
        kernels, sum_us, critical_path_us, streams and best (`gst.kernels.run.on_streams`); ways, by name the
        milliseconds of a step in a loop of `STEPS` with a new batch each; over_best, the fastest of PyTorch's ways
        / that on streams; losses_differ, the largest relative difference of losses in that loop from those of
        torch.compile; plans, how many were measured.
    """
    ends = time.monotonic() + settings["seconds"]
    step = resolve(name)
    program = capture(step, kind="cpu" if device.type == "cpu" else "cuda")
    ways = Ways(step, program, device)
    began = time.monotonic()
    inputs = ways.inputs()
    kernels = kernel_program(ways.module(), inputs, name).without_inputs()
    row: dict[str, Any] = {"nodes": program.num_nodes, "compile_s": round(time.monotonic() - began, 1)}
    found = on_streams(kernels, inputs, settings["seconds"] / 4, counts=COUNTS)
    row |= found.figures
    yield row
    loop: dict[str, Call] = {"kernels on streams": ways.from_the_start(found.call, inputs)}
    for mode in MODES if is_here(device) else MODES[:1]:
        _try(loop, row, f"compiled, {mode}", partial(ways.compiled, mode))
    _try(loop, row, "compiled, one graph", ways.compiled_graph)
    losses = {way: [float(call()) for _ in range(settings["steps"])] for way, call in loop.items()}
    want = np.array(losses.get("compiled, default", losses["kernels on streams"]))
    row["losses_differ"] = {
        way: float(np.max(np.abs(np.array(each) - want) / np.abs(want))) for way, each in losses.items()
    }
    left = max(ends - time.monotonic(), 1.0)
    measured = measure(loop, settings["steps"], 3, seconds=left / 4)
    row["ways"] = {way: each.median_ms for way, each in measured.items()}
    others = [each for way, each in row["ways"].items() if way != "kernels on streams"]
    row["over_best"] = min(others) / row["ways"]["kernels on streams"] if others else None
    record = Run.recorded if is_here(device) else _as_it_is
    if not is_here(device):  # the streams of a CPU run one call after the other
        row |= on_streams(kernels, inputs, settings["seconds"] / 4, record, COUNTS).figures
    yield row
    times_us = kernel_times_us(found.run)
    folder = Path(settings["folder"])
    write_json(folder / "kernels" / f"{_file(name)}.json", kernels_record(kernels, times_us))
    task = kernel_task(kernels, times_us, 4)
    plans = list(measured_plans(kernels, task, inputs, settings["plans"], ends, record))
    write_json(folder / "plans" / f"{_file(name)}.json", {"program": name, "streams": 4, "plans": plans})
    yield row | {"plans": len(plans)}


class Ways:
    """Ways to train with a step whose state is in place; each has a state of its own, which begins alike."""

    def __init__(self, step: Step, program: Program, device: torch.device) -> None:
        self.program, self.device, self._step = program, device, step
        self._pairs = state_pairs(step, program)
        self._batch = len(pytree.tree_leaves(step.inputs[0]))  # of the inputs, the first that is no state
        rng = torch.Generator().manual_seed(0)
        examples = list(program.inputs[self._batch :])
        self._batches = [[_shuffled(each, rng).to(device) for each in examples] for _ in range(BATCHES)]

    def module(self) -> Any:
        """Return the step as a module that writes its state in place."""
        return in_place(module_on(self.program, self.device), self.program, self._pairs)

    def inputs(self) -> list[Tensor]:
        """Return a new state and a batch, on the device."""
        return [each.detach().to(self.device).clone() for each in self.program.inputs]

    def loop(self, call: Call, inputs: Sequence[Tensor]) -> Call:
        """Return a function that trains on the next batch, and returns the loss."""
        batches = cycle(self._batches)
        places = inputs[self._batch :]

        def train() -> Tensor:
            with torch.no_grad():
                for place, value in zip(places, next(batches), strict=True):
                    place.copy_(value, non_blocking=True)
                loss: Tensor = call()[0].clone()
            return loss

        return train

    def compiled(self, mode: str) -> Call:
        """Train by `torch.compile`."""
        inputs, function = self.inputs(), torch.compile(self.module(), mode=mode, dynamic=False)
        for value in inputs:
            torch._dynamo.mark_static_address(value)

        def call() -> Any:
            with torch.no_grad():
                return function(*inputs)

        return self.from_the_start(call, inputs)

    def compiled_graph(self) -> Call:
        """Train by the compiled step in one graph of the accelerator."""
        inputs, function = self.inputs(), torch.compile(self.module(), dynamic=False)

        def call() -> Any:
            with torch.no_grad():
                return function(*inputs)

        return self.from_the_start(one_graph(call, self.device), inputs)

    def from_the_start(self, call: Call, inputs: Sequence[Tensor]) -> Call:
        """Return a loop that begins with the first state, whatever steps compiling and recording took."""
        call()
        with torch.no_grad():
            for place, value in zip(inputs, self.program.inputs, strict=True):
                place.copy_(value)
        return self.loop(call, inputs)


def _shuffled(value: Tensor, rng: torch.Generator) -> Tensor:
    """Return a batch like another: its numbers in another order."""
    return value.flatten()[torch.randperm(value.numel(), generator=rng)].view(value.shape)


def _as_it_is(run: Run) -> Call:
    return run


def _try(loop: dict[str, Call], row: dict[str, Any], way: str, make: Callable[[], Call]) -> None:
    try:
        loop[way] = make()
    except Exception as error:  # any exception of compilers and graphs
        row.setdefault("reasons", {})[way] = f"{type(error).__name__}: {error}".splitlines()[0][:200]


def measured_plans(
    program: KernelProgram, task: Task, given: Sequence[Tensor], count: int, ends: float, record: Callable[[Run], Call]
) -> Iterator[dict[str, Any]]:
    """Yield plans with their milliseconds: list schedules, annealed in simulation, and others made from them."""
    for kind, plan in spread(task, count):
        if time.monotonic() > ends:
            return
        try:
            replay = record(Run(program, lowered(program, plan), given))
            replay()
            times_ms = [timed(replay) for _ in range(5)]
        except RuntimeError:  # memory is short
            continue
        yield {
            "kind": kind, "placement": plan.placement.tolist(),
            "priority": None if plan.priority is None else plan.priority.tolist(),
            "simulated_ms": task.simulator.run(plan).makespan_us / 1e3, "ms": [round(each, 5) for each in times_ms],
        }  # fmt: skip


def spread(task: Task, count: int) -> Iterator[tuple[str, Plan]]:
    """Yield plans with their kinds, from the best in simulation to random ones."""
    plans = portfolio(task)
    budgeted = Budgeted(SimulatedObjective(task), 500)
    anneal(task, budgeted, 0)
    if budgeted.best is not None:
        plans["annealing"] = budgeted.best
    yield from list(plans.items())[:count]
    rng, known = np.random.default_rng(0), list(plans.values())
    for number in range(count - len(plans)):
        plan = known[number % len(known)]
        is_moved = rng.random(task.num_nodes) < rng.random()
        placement = np.where(is_moved, rng.integers(0, len(task.names), task.num_nodes), plan.placement)
        priority = rng.permutation(task.num_nodes) if number % 3 == 0 else plan.priority
        yield "random", Plan(task.names, placement, priority)


def kernels_record(program: KernelProgram, times_us: np.ndarray) -> dict[str, Any]:
    """Return kernels, dependencies and times for JSON."""
    return {
        "program": program.name, "key": program.key, "device": str(program.device),
        "storage_bytes": program.storage_bytes.tolist(),
        "kernels": [
            {
                "name": kernel.name, "kind": kernel.kind, "us": round(float(time_us), 3),
                "reads": _regions(kernel.reads), "writes": _regions(kernel.writes),
            }
            for kernel, time_us in zip(program.kernels, times_us, strict=True)
        ],
        "edges": program.dependencies.tolist(),
    }  # fmt: skip


def _regions(regions: Sequence[Region]) -> list[list[int]]:
    return [list(each) for each in regions]


def _file(name: str) -> str:
    return "".join(each if each.isalnum() else "_" for each in name)


if __name__ == "__main__":
    print_rows(lambda device: reports(sys.argv[1], json.loads(sys.argv[2]), device), needs_one=False)
