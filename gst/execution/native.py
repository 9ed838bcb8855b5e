"""Run plans on CPU core sets by the compiled interpreter."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from gst.execution.groups import fused
from gst.execution.interpreter import load, lower, machine
from gst.lowering.calls import laid_out
from gst.lowering.costs import Costs, profiled_costs, shortest_us
from gst.lowering.plan import ExecutionError, Plan, Timeline, positions_of_nodes, ranks
from gst.machine.devices import MOST_CORES, Device, least_memory_limit, select, supports
from gst.programs import Program, Reference
from gst.util.process import keep_freed_memory

MAX_SCHEDULES = 256


@dataclass(frozen=True, eq=False)
class Scheduled:
    """A plan, ready to run.

    Args:
        schedule: the interpreter's form of it.
        home: position of the device of each node of the program.
        outputs: of the program that runs.
        node_of: node of that program that computes each node; another one where groups are compiled.
    """

    schedule: Any
    home: Int64[np.ndarray, " nodes"]
    outputs: tuple[Any, ...]
    node_of: Int64[np.ndarray, " nodes"]


class NativeExecutor:
    """Runs plans of one program on CPU devices of one memory, which may share cores. Use it as a context manager.

    A core runs the ready operation of the greatest priority among those that use it, and an operation on several cores
    starts when it is the choice of all of them. There is one persistent thread for the first core of each device.

    Args:
        program: the program that plans place.
        devices: those that plans may name.

    Attributes:
        memory_limit: bytes that intermediate values may take, the least limit of the devices.

    Raises:
        ValueError: a device is no CPU device or has a memory of its own, or there is no C++ compiler.
    """

    def __init__(self, program: Program, devices: Sequence[Device]) -> None:
        self.program = program
        self.devices = tuple(select([device.name for device in devices], devices))
        if not supports(self.devices):
            raise ValueError(f"the compiled interpreter runs CPU devices of one memory, at most {MOST_CORES:,} cores")
        self.memory_limit = least_memory_limit(self.devices)
        load()
        keep_freed_memory()  # else each run meets pages that the last one gave back, above all where plans alternate
        self._lowered = lower(program, len(self.devices))
        self._machine: Any = None
        self._schedules: OrderedDict[str, Scheduled] = OrderedDict()
        self._last: Scheduled | None = None

    def __enter__(self) -> Self:
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)  # helpers of the calling thread would be too many, see `gst.util.process`
        self._machine, self._process = machine(self.devices), os.getpid()
        return self

    def __exit__(self, *error: object) -> None:
        closing, self._machine = self._machine, None
        closing.close()
        torch.set_num_threads(self._threads)

    def compile(self, plan: Plan) -> Scheduled:
        """Schedule a plan once; the most recent plans are kept. Groups that the plan fuses are compiled and run so if
        that is faster (`gst.execution.groups.fused`).

        Raises:
            ValueError: the plan does not fit the program or the devices.
        """
        key = plan.key
        if key not in self._schedules:
            home, node_of = positions_of_nodes(plan, self.program, self.devices), np.arange(self.program.num_nodes)
            program, lowered, homes = self.program, self._lowered, home
            if plan.fusion is not None:
                made = fused(program, plan, self.devices)
                if made.num_groups:
                    program, plan, node_of = made.program, made.plan, made.node_of
                    lowered = lower(program, len(self.devices))
                    homes = positions_of_nodes(plan, program, self.devices)
            schedule = torch.classes.gst.Schedule(lowered, homes.tolist(), ranks(plan).tolist())
            self._schedules[key] = Scheduled(schedule, home, program.outputs, node_of)
            if len(self._schedules) > MAX_SCHEDULES:
                self._schedules.popitem(last=False)
        self._schedules.move_to_end(key)
        return self._schedules[key]

    def run(self, plan: Plan, inputs: Sequence[Tensor] | None = None) -> list[Any]:
        """Run the program once under a plan, and wait for all of it; `last_timeline` describes the run.

        Args:
            plan: for this program, on this executor's devices.
            inputs: flat inputs, which are not changed; the examples if None.

        Returns:
            Flat outputs (`program.unflatten` gives them structure).

        Raises:
            ValueError: the plan or the inputs do not fit the program.
            ExecutionError: an operation failed, or the memory limit was passed.
        """
        if self._machine is None:
            raise ValueError("the executor is closed; use it inside `with NativeExecutor(program, devices) as run:`")
        if self._process != os.getpid():
            raise ValueError(
                "the threads of the executor stayed in the parent of this forked process; open another one"
            )
        self._last = scheduled = self.compile(plan)
        values = [each.detach() if each.requires_grad else each for each in self.program.check_inputs(inputs)]
        if inputs is not None:
            values = [laid_out(value, like) for value, like in zip(values, self.program.inputs, strict=True)]
        self._machine.run(scheduled.schedule, values, self.memory_limit or 0)
        if (failed := self._machine.failed_node()) >= 0:
            node = int(np.flatnonzero(scheduled.node_of == failed)[0])
            raise ExecutionError(self._machine.reason(), self.devices[scheduled.home[node]].name, node)
        made = iter(self._machine.results([each.node for each in scheduled.outputs if isinstance(each, Reference)]))
        return [next(made) if isinstance(each, Reference) else each for each in scheduled.outputs]

    @property
    def last_timeline(self) -> Timeline:
        """Timeline of the last run. Operations that ran as one have the times and bytes of that one."""
        assert self._last is not None, "nothing has run"
        ran, node_of = self._machine, self._last.node_of
        of_runs = ran.begins(), ran.ends(), ran.live(), ran.within()
        begin, end, live, own = (np.array(each)[node_of] for each in of_runs)
        return Timeline(self._last.home, begin, end, live, own, ran.peak())


def runs_in_turns(executor: NativeExecutor, plans: Sequence[Plan], repetitions: int = 3) -> list[list[Timeline]]:
    """Run plans alternately, equal ones once; return the runs of each plan, in order, without their memory."""
    distinct = {plan.key: plan for plan in plans}
    runs: dict[str, list[Timeline]] = {key: [] for key in distinct}
    for _ in range(repetitions):
        for key, plan in distinct.items():
            executor.run(plan)
            latest = executor.last_timeline
            runs[key].append(Timeline(latest.device, latest.begin_us, latest.end_us))
    return [runs[plan.key] for plan in plans]


def measure_costs(executor: NativeExecutor, repetitions: int = 5) -> Costs:
    """Run the program of an entered executor on each device alone, once more than is counted; devices with as many
    threads share their times. The shortest of `repetitions` times of each operation counts."""
    by_threads: dict[int, list[Timeline]] = {}
    for device in executor.devices:
        if device.threads not in by_threads:
            plan, runs = Plan((device.name,), np.zeros(executor.program.num_nodes, np.int64)), []
            for _ in range(repetitions + 1):
                executor.run(plan)
                runs.append(executor.last_timeline)
            by_threads[device.threads] = runs[1:]
    of_devices = [by_threads[device.threads] for device in executor.devices]
    own_bytes = np.stack([np.min([each.own_bytes for each in mine], axis=0) for mine in of_devices])
    costs = profiled_costs(executor.program, executor.devices, np.stack([shortest_us(mine) for mine in of_devices]))
    return replace(costs, own_bytes=own_bytes)
