"""Child process of `gst.execution.isolated`, which runs plans that may crash or hang it.

The parent first sends the program and the devices, and receives the program's key. Then it sends requests: the name of
a method of `Runner` and its arguments. Each answer is a value, an error to raise instead or None, and True if this
process ends because it is unreliable now.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from jaxtyping import Float64

from gst.execution.costs import measure_costs, measured_links, profile
from gst.execution.executor import AnyExecutor, GraphExecutor, executor
from gst.execution.groups import group_records
from gst.execution.measure import timed
from gst.execution.native import NativeExecutor, runs_in_turns
from gst.execution.on_accelerator import ReferenceOutputs, reference
from gst.lowering.costs import Costs, profiled_costs
from gst.lowering.plan import ExecutionError, Plan, Timeline, says_no_memory
from gst.machine.devices import least_memory_limit, limit_memory
from gst.programs import Program, kind_for
from gst.programs.traces import traced
from gst.util.child import connect

PAST_THE_LIMIT = "out of memory: "  # what the compiled interpreter says of a run that it stopped itself


def main() -> None:
    parent, _ = connect()
    source, devices = parent.recv()
    try:
        is_saved = not isinstance(source, str)
        program = Program.load(source) if is_saved else traced(source, kind=kind_for(each.kind for each in devices))
        limit = least_memory_limit(devices)
        with executor(program, devices) as made:
            if isinstance(made, NativeExecutor):
                made.memory_limit = None  # what is no run of a plan may take all there is
            runner = Runner(made, reference(program, devices), limit)
            parent.send((program.key, None, False))
            with suppress(EOFError):
                while not _answer(parent, runner, *parent.recv()):
                    pass
    except ValueError as error:
        parent.send((None, ValueError(str(error)), True))


def _answer(parent: Connection[Any, Any], runner: Runner, request: str, arguments: tuple[Any, ...]) -> bool:
    """Serve a request and send its result; True if this process ends."""
    value: Any = None
    error: Exception | None = None
    ends = False
    try:
        value = getattr(runner, request)(*arguments)
    except ExecutionError as failure:
        stopped = isinstance(runner.executor, NativeExecutor) and failure.reason.startswith(PAST_THE_LIMIT)
        error, ends = ExecutionError(failure.reason if stopped else _reason(str(failure))), not stopped
    except ValueError as refusal:
        error = ValueError(str(refusal))
    except Exception as failure:
        error, ends = ExecutionError(_reason(f"{type(failure).__name__}: {failure}")), True
    parent.send((value, error, ends))
    return ends


@dataclass(frozen=True)
class Runner:
    """Serves the requests of `IsolatedExecutor` by an entered executor of the program."""

    executor: AnyExecutor
    reference: ReferenceOutputs
    limit: int | None  # bytes that the intermediate values of a plan may take

    def costs(self, repetitions: int) -> Costs:
        """Measure times of each operation alone on each device, and all other data of a simulation."""
        if isinstance(self.executor, NativeExecutor):
            return measure_costs(self.executor, repetitions)
        program, devices = self.executor.program, self.executor.devices
        times = profile_devices(self.executor, repetitions)
        return profiled_costs(program, devices, times, measured_links(devices))

    def timelines(self, plans: Sequence[Plan], repetitions: int) -> list[list[Timeline]]:
        """Return the runs of each plan; none if the executor keeps no timelines."""
        return runs_in_turns(self.executor, plans, repetitions) if isinstance(self.executor, NativeExecutor) else []

    def groups(self, plan: Plan) -> dict[int, float]:
        """Return compiled time / time of the operations for each legal group of a plan, by its first node."""
        if isinstance(self.executor, GraphExecutor):
            return self.executor.group_shares(plan)
        if not isinstance(self.executor, NativeExecutor):
            return {}
        records = group_records(self.executor.program, plan, self.executor.devices)
        return {group.nodes[0]: record.share for group, record in records}

    def compile(self, plan: Plan) -> None:
        """Lower a plan, and compile the groups that it fuses."""
        self.executor.compile(plan)

    def check(self, plan: Plan) -> str:
        """Run a plan, compare its outputs, and return the reason why it runs eagerly, empty if it runs by graphs.

        Raises:
            ExecutionError: outputs differ beyond rounding.
        """
        with self._limited():
            got = self.executor.run(plan)
            reason = self.executor.record(plan).reason if isinstance(self.executor, GraphExecutor) else ""
        if difference := self.reference.difference(got):
            raise ExecutionError(f"wrong outputs: {difference}")
        return reason

    def time(self, plan: Plan) -> tuple[float, int | None]:
        """Return milliseconds of a run, and the most bytes of its intermediate values if that is counted."""
        self.executor.compile(plan)
        with self._limited():
            if isinstance(self.executor, GraphExecutor):
                return self.executor.time_ms(plan), None
            elapsed_ms = timed(partial(self.executor.run, plan))
        return elapsed_ms, self.executor.last_timeline.peak_bytes if isinstance(self.executor, NativeExecutor) else None

    @contextmanager
    def _limited(self) -> Iterator[None]:
        """Limit the bytes of intermediate values, or, where they are not counted, of each accelerator."""
        accelerators = {device.torch_device for device in self.executor.devices if device.is_accelerator}

        def limit(num_bytes: int | None) -> None:
            if isinstance(self.executor, NativeExecutor):
                self.executor.memory_limit = num_bytes
            elif self.limit is not None:
                for device in accelerators:
                    limit_memory(device, num_bytes)

        limit(self.limit)
        try:
            yield
        finally:
            limit(None)


def profile_devices(executor: GraphExecutor, repetitions: int) -> Float64[np.ndarray, "devices nodes"]:
    """Return profiled microseconds of each operation on each device; equal devices share times."""
    kinds = [(device.kind, device.threads, device.description) for device in executor.devices]
    times = {}
    for kind in dict.fromkeys(kinds):
        device = executor.devices[kinds.index(kind)]
        measured = partial(profile, executor.program, device.torch_device, repetitions)
        times[kind] = executor.submit(device.name, measured)
    return np.stack([times[kind] for kind in kinds])


def _reason(words: str) -> str:
    first = (words.strip().splitlines() or [""])[0]
    return f"out of memory: {first}" if says_no_memory(words) else first


if __name__ == "__main__":
    main()
