"""Run a plan for real: one persistent thread per device, values handed over by message."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from gst.devices.describe.machine import Device, overlap, select, supports
from gst.devices.execute.calls import Step, Values, laid_out, run_steps
from gst.devices.execute.interpreter import compiler
from gst.devices.execute.native import NativeExecutor
from gst.devices.execute.schedule import Schedule, output_nodes, schedule
from gst.devices.execute.worker import Finished, Run, Worker, run_share
from gst.devices.fusion.legality import fusion_groups
from gst.devices.plan import ExecutionError, Plan
from gst.programs import Program, Reference

MAX_SCHEDULES = 64
Result = TypeVar("Result")


@dataclass(frozen=True)
class Transfers:
    """Values copied from one memory to another during a run, each once per memory, and their bytes."""

    copies: int
    bytes: int


class Executor:
    """Runs plans of one program. Use it as a context manager; its threads live from enter to exit.

    Args:
        program: what plans place.
        devices: those plans may name.
    """

    def __init__(self, program: Program, devices: Sequence[Device]) -> None:
        self.program = program
        self.devices = tuple(select([device.name for device in devices], devices))  # refuses a name given twice
        if overlap(self.devices):
            raise ValueError("devices that share cores need the compiled interpreter: a C++ compiler, and one memory")
        self.last_transfers = Transfers(0, 0)
        self.last_order: dict[str, tuple[int, ...]] = {}
        self._workers: tuple[Worker, ...] = ()
        self._outputs = output_nodes(program)
        self._schedules: OrderedDict[str, Schedule] = OrderedDict()
        self._placed: dict[tuple[int, torch.device], Tensor] = {}

    def __enter__(self) -> Self:
        threads = torch.get_num_threads()  # also fixes this thread's own number before a worker sets another
        self._workers = tuple(Worker(device) for device in self.devices)
        wait([worker.submit(lambda: None) for worker in self._workers])
        torch.set_num_threads(threads)  # threads made later by others start from the number set last
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        workers, self._workers = self._workers, ()
        for worker in workers:
            worker.close()

    def submit(self, device: str, function: Callable[[], Result]) -> Result:
        """Call `function` on the thread of a device, with its cores and threads, and wait for it."""
        self._check_entered()
        position = self.devices.index(select([device], self.devices)[0])
        return self._workers[position].submit(function).result()

    def compile(self, plan: Plan) -> Schedule:
        """Work out a plan once; the most recent are remembered by key.

        Raises:
            ValueError: the plan does not fit the program or the devices.
            ExecutionError: the plan fuses operations, which only the compiled interpreter does.
        """
        key = plan.key
        if key in self._schedules:
            self._schedules.move_to_end(key)
        else:
            if plan.fusion is not None and fusion_groups(self.program, plan):
                raise ExecutionError(
                    "the plan fuses operations, and these devices run them one by one: fusion needs g++, and CPU "
                    "devices of one memory; leave it out with --tasks placement,schedule (Python: fusion=None)"
                )
            self._schedules[key] = schedule(self.program, plan, self.devices)
            if len(self._schedules) > MAX_SCHEDULES:
                self._schedules.popitem(last=False)
        return self._schedules[key]

    def run(self, plan: Plan, inputs: Sequence[Tensor] | None = None) -> list[Any]:
        """Run the program once as `plan` says, and wait for all of it.

        An input starts in the memory of the device on which its node is placed; bringing it there (to an
        accelerator) is no transfer of the step, as parameters stay where they are used. `last_transfers` and
        `last_order` (for each device its operations as they ran) tell of the last run that ended well.

        Args:
            plan: for this program, on this executor's devices.
            inputs: flat inputs; the examples if None. They are not changed.

        Returns:
            Flat outputs, each on the device where it was made (`program.unflatten` gives them structure).

        Raises:
            ValueError: the plan or the inputs do not fit the program.
            ExecutionError: an operation failed, or the plan fuses some (see `compile`).
        """
        self._check_entered()
        compiled = self.compile(plan)
        given = [value.detach() for value in self.program.check_inputs(inputs)]
        if inputs is not None:
            given = [laid_out(value, like) for value, like in zip(given, self.program.inputs, strict=True)]
        run = Run(tuple(SimpleQueue() for _ in self.devices), self._outputs)
        placed = [self._at_home(node, value, compiled, inputs is None) for node, value in enumerate(given)]
        for device in {device.torch_device for device in self.devices if device.is_accelerator}:
            torch.accelerator.synchronize(device)
        for node, position in compiled.entries:
            run.inboxes[position].put((node, placed[node], None, self.devices[compiled.home[node]]))
        futures: list[Future[Finished]] = []
        for share in compiled.shares:
            values: Values = [None] * self.program.num_nodes
            for node in share.residents:
                values[node] = placed[node] if node < len(placed) else self._constant(node, share.device)
            job = partial(run_share, share, values, run)
            if compiled.in_order is not None:
                job = partial(_run_alone, compiled.in_order, values, run, share.device)
            futures.append(self._workers[share.position].submit(job))
        finished = self._wait(futures, run)
        self.last_transfers = Transfers(sum(each.copies for each in finished), sum(each.bytes for each in finished))
        self.last_order = {
            share.device.name: tuple(each.order) for share, each in zip(compiled.shares, finished, strict=True)
        }
        return self._collect(run, placed, compiled)

    def _wait(self, futures: Sequence[Future[Finished]], run: Run) -> list[Finished]:
        try:
            wait(futures)
        except BaseException:  # Ctrl-C: leave no thread at work behind
            run.give_up()
            wait(futures)
            raise
        for future in futures:
            if (error := future.exception()) is not None:
                raise error
        return [future.result() for future in futures]

    def _collect(self, run: Run, placed: Sequence[Tensor], compiled: Schedule) -> list[Any]:
        def value_of(output: Any) -> Any:
            if not isinstance(output, Reference):
                return output
            if output.node in run.results:
                return run.results[output.node]
            if output.node < len(placed):
                return placed[output.node]
            return self._constant(output.node, self.devices[compiled.home[output.node]])

        return [value_of(output) for output in self.program.outputs]

    def _at_home(self, node: int, value: Tensor, compiled: Schedule, is_example: bool) -> Tensor:
        target = self.devices[compiled.home[node]].torch_device
        if value.device == target:
            return value
        if not is_example:
            return value.to(target)
        if (node, target) not in self._placed:
            self._placed[node, target] = value.to(target)
        return self._placed[node, target]

    def _constant(self, node: int, device: Device) -> Tensor:
        key = node, device.torch_device
        if key not in self._placed:
            constant = self.program.operations[node].constant
            assert constant is not None, f"node {node} is no constant"
            self._placed[key] = constant.to(device.torch_device)
        return self._placed[key]

    def _check_entered(self) -> None:
        if not self._workers:
            raise ValueError("the executor is closed; use it inside `with Executor(program, devices) as executor:`")


def _run_alone(steps: Sequence[Step], values: Values, run: Run, device: Device) -> Finished:
    """The whole program on one device: no queue, no counters."""
    run_steps(steps, values, device.name)
    if device.is_accelerator:
        torch.accelerator.current_stream(device.torch_device).synchronize()
    run.results.update((node, values[node]) for node in run.outputs)
    return Finished([node for node, _, _ in steps], 0, 0)


AnyExecutor = Executor | NativeExecutor


def executor(program: Program, devices: Sequence[Device]) -> AnyExecutor:
    """The compiled interpreter where it can run these devices (CPU, one memory) and this machine has a C++ compiler;
    otherwise the Python one, which knows accelerators and copies between memories.

    Raises:
        ValueError: devices share cores and only the Python one would run here.

    Examples:
        >>> import numpy as np
        >>> from gst.devices import discover
        >>> from gst.programs import capture_module
        >>> program, core = capture_module(torch.nn.ReLU(), (torch.tensor([-1.0, 2.0]),)), discover()[0]
        >>> with executor(program, [core]) as run:
        ...     run.run(Plan((core.name,), np.zeros(program.num_nodes, np.int64)))
        [tensor([0., 2.])]
    """
    if supports(devices) and compiler() is not None:
        return NativeExecutor(program, devices)
    if overlap(devices):
        raise ValueError("devices that share cores need the compiled interpreter: install g++, and use one memory")
    return Executor(program, devices)
