"""Measuring on another host: the program's files sent there, the Ray actor there, and the controller's handle of it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from threading import Event
from typing import Any
from uuid import uuid4

import numpy as np

from gst.execution.costs import Costs, links_of, links_record, profiled_costs
from gst.execution.isolated import START_LIMIT_S, IsolatedExecutor, measure_plans
from gst.execution.measure import Measurement
from gst.execution.pair_records import pairs_of, pairs_record
from gst.execution.plain import COMPILED, PYTORCH, steps_beside
from gst.lowering.plan import ExecutionError, Plan, RunsInTurns, Timeline
from gst.machine.devices import Device, cache_directory, discover, select, this_machine
from gst.machine.load import LoadGate
from gst.placement.fleet.processes import WorkerLost
from gst.programs import Program
from gst.programs.program import FILES
from gst.util.version import version
from gst.whole_model.on_accelerator import steps_on_accelerator


class Host:
    """The actor of Ray Core that measures. Its children run the plans, so that a plan cannot harm it.

    Answers are JSON: `refused` (the request makes no sense) or `failed` (a plan did) with a reason, or what was asked.
    """

    def __init__(self) -> None:
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray sets it to the cores of the actor; children use what devices say
        self._isolated: IsolatedExecutor | None = None

    def describe(self) -> str:
        """What there is: `machine`, all `devices`, `version` of this package, `pid`."""
        devices = [asdict(device) for device in discover()]
        description = {
            "machine": this_machine(),
            "devices": devices,
            "version": version(),
            "pid": os.getpid(),
        }
        return json.dumps(description)

    def begin(self, settings: str, program: list[Any]) -> str:
        """Start a child for a program.

        Args:
            settings: `digest` of the program, names of `devices`, `memory_limit` and `time_limit_s` of each run.
            program: the reference of its files in the object store, which are fetched unless they are kept here.

        Returns:
            `key` of the program.
        """
        import ray

        request = json.loads(settings)
        try:
            directory = cached_program(request["digest"]) or cache_program(ray.get(program[0]), request["digest"])
            chosen = select(request["devices"], discover())
            devices = [replace(each, memory_limit=request["memory_limit"]) for each in chosen]
            isolated = IsolatedExecutor(directory, devices, request["time_limit_s"])
            self._isolated = isolated.__enter__()  # ends with this process
            self._program = directory
            return json.dumps({"key": isolated.program_key})
        except ValueError as error:
            return json.dumps({"refused": str(error)})

    def answer(self, request: str) -> str:
        """`costs`, `timelines`, `groups` or `measure`, as the methods of `RemoteWorker` ask."""
        assert self._isolated is not None
        ((name, arguments),) = json.loads(request).items()
        methods = {
            "costs": self._costs,
            "timelines": self._timelines,
            "groups": self._groups,
            "measure": self._measure,
        }
        try:
            return json.dumps(methods[name](arguments))
        except ExecutionError as failure:
            return json.dumps({"failed": str(failure)})
        except ValueError as error:
            return json.dumps({"refused": str(error)})

    def _costs(self, arguments: dict[str, Any]) -> dict[str, Any]:
        assert self._isolated is not None
        if arguments["patience_s"] > 0:
            LoadGate(patience_s=arguments["patience_s"]).wait()
        costs = self._isolated.costs(arguments["repetitions"])
        times_and_bytes = {"times_us": costs.times_us.tolist(), "own_bytes": costs.own_bytes.tolist()}
        return {**times_and_bytes, **links_record(costs), **pairs_record(costs.pairs), "load": costs.load}

    def _timelines(self, arguments: dict[str, Any]) -> dict[str, Any]:
        assert self._isolated is not None
        made = self._isolated.timelines(_plans(arguments), arguments["repetitions"])
        runs = [
            [
                [run.device.tolist(), *(np.round(each, 2).tolist() for each in (run.begin_us, run.end_us))]
                for run in of_plan
            ]
            for of_plan in made.runs
        ]
        return {"runs": runs, "load": made.load}

    def _groups(self, arguments: dict[str, Any]) -> dict[str, Any]:
        assert self._isolated is not None
        (plan,) = _plans(arguments)
        return {"groups": list(self._isolated.groups(plan).items())}

    def _measure(self, arguments: dict[str, Any]) -> dict[str, Any]:
        assert self._isolated is not None
        settings = (arguments["repetitions"], arguments["warmup"], LoadGate(patience_s=arguments["patience_s"]))
        if arguments["beside_steps"] is None:
            measurements = measure_plans(self._isolated, _plans(arguments), *settings)
        else:
            with _steps(self._program, self._isolated.devices, arguments["beside_steps"]) as steps:
                measurements = measure_plans(self._isolated, _plans(arguments), *settings, steps)
        return {"measurements": [each.to_dict() for each in measurements]}


@contextmanager
def _steps(program: Path, devices: Sequence[Device], skip_reason: str) -> Iterator[dict[str, Callable[[], float]]]:
    """The step as written and compiled: on the first accelerator of the devices, or else on the cores."""
    accelerator = next((device for device in devices if device.is_accelerator), None)
    if accelerator is None:
        with steps_beside(program, skip_reason) as steps:
            yield steps
        return
    with steps_on_accelerator(program, accelerator.torch_device, START_LIMIT_S, skip_reason, [COMPILED]) as steps:
        yield {name: steps[name] for name in (PYTORCH, COMPILED)}


def _plans(arguments: dict[str, Any]) -> list[Plan]:
    return [Plan.from_dict(each) for each in arguments["plans"]]


POLL_S = 0.5  # between looks at whether to stop, or whether it takes too long


class RemoteWorker:
    """Asks a `Host` actor; whatever ends the actor, and every answer that is overdue, is a `WorkerLost`.

    Args:
        actor: handle of Ray.
        node: Ray's identity of its host.
        stopping: set when nobody wants answers any more.
    """

    def __init__(self, actor: Any, node: str, stopping: Event) -> None:
        self.actor, self.node, self.stopping = actor, node, stopping

    @property
    def host(self) -> str:
        """What rows call its host: no name of a machine, and another one each time the cluster starts."""
        return self.node[:12]

    def describe(self, limit_s: float) -> dict[str, Any]:
        """See `Host.describe`."""
        return self._wait_for(self.actor.describe.remote(), lambda: limit_s)

    def begin(self, settings: dict[str, Any], program: Any) -> dict[str, Any]:
        """See `Host.begin`; `program` is the reference of its files.

        Raises:
            ValueError: it does not run there.
        """
        return self._wait_for(self.actor.begin.remote(json.dumps(settings), [program]), lambda: START_LIMIT_S)

    def costs(self, program: Program, devices: Sequence[Device], repetitions: int, patience_s: float) -> Costs:
        """See `IsolatedExecutor.costs`.

        Args:
            program: which it was given to run.
            devices: that it has.
            repetitions, patience_s: of each operation; for quiet cores.
        """
        arguments = {"repetitions": repetitions, "patience_s": patience_s}
        answer = self._ask({"costs": arguments}, lambda: START_LIMIT_S)
        costs = profiled_costs(program, devices, np.array(answer["times_us"], np.float64), links_of(answer))
        own_bytes = np.array(answer["own_bytes"], np.int64)
        return replace(costs, own_bytes=own_bytes, pairs=pairs_of(answer), load=answer["load"])

    def timelines(self, plans: Sequence[Plan], repetitions: int) -> RunsInTurns:
        """See `IsolatedExecutor.timelines`."""
        arguments = {"plans": [plan.to_dict() for plan in plans], "repetitions": repetitions}
        answer = self._ask({"timelines": arguments}, lambda: START_LIMIT_S)
        runs = [
            [
                Timeline(np.array(device, np.int64), np.array(begin, np.float64), np.array(end, np.float64))
                for device, begin, end in of_plan
            ]
            for of_plan in answer["runs"]
        ]
        return RunsInTurns(runs, answer["load"])

    def groups(self, plan: Plan) -> dict[int, float]:
        """See `IsolatedExecutor.groups`."""
        return dict(self._ask({"groups": {"plans": [plan.to_dict()]}}, lambda: START_LIMIT_S)["groups"])

    def measure(
        self, plans: Sequence[Plan], settings: dict[str, Any], limit_s: Callable[[], float]
    ) -> list[Measurement]:
        """See `measure_plans`.

        Args:
            settings: `repetitions`, `warmup`, `patience_s`, and `beside_steps`: None, or `skip_reason` of
                `gst.execution.plain.steps_beside`, whose steps then take turns with the plans.
            limit_s: seconds that it may take, asked again and again, as they may change meanwhile.
        """
        answer = self._ask({"measure": {"plans": [plan.to_dict() for plan in plans], **settings}}, limit_s)
        return [Measurement.from_dict(each) for each in answer["measurements"]]

    def end(self) -> None:
        """End its process at once, and with it its children."""
        import ray

        try:
            ray.kill(self.actor)
        except (ray.exceptions.RayError, ConnectionError, ValueError):
            return  # it is gone, or the cluster is

    def _ask(self, request: dict[str, Any], limit_s: Callable[[], float]) -> dict[str, Any]:
        return self._wait_for(self.actor.answer.remote(json.dumps(request)), limit_s)

    def _wait_for(self, reference: Any, limit_s: Callable[[], float]) -> dict[str, Any]:
        import ray

        start = time.monotonic()
        try:
            while not ray.wait([reference], timeout=POLL_S)[0]:
                if self.stopping.is_set():
                    raise WorkerLost("nobody waits for it any more")
                if time.monotonic() - start > limit_s():
                    raise WorkerLost(f"host {self.host} gave no answer for {time.monotonic() - start:.0f} s")
            answer: dict[str, Any] = json.loads(ray.get(reference))
        except ray.exceptions.RayActorError:
            raise WorkerLost(f"the process on host {self.host} ended") from None
        except (ray.exceptions.RayError, ConnectionError) as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            is_traceback = isinstance(error, ray.exceptions.RayTaskError)  # which ends with what was raised
            raise WorkerLost(f"host {self.host}: {lines[-1 if is_traceback else 0]}") from error
        if "refused" in answer:
            raise ValueError(answer["refused"])
        if "failed" in answer:
            raise ExecutionError(answer["failed"])
        return answer


PROGRAM_FILES = (*FILES, "checksums.json")


def pack(program: Program) -> dict[str, bytes]:
    """The files of `Program.save` by name.

    Raises:
        ValueError: an operation or argument has no form in a file.
    """
    with tempfile.TemporaryDirectory() as parent:
        directory = Path(parent) / "program"
        program.save(directory)
        return {name: (directory / name).read_bytes() for name in PROGRAM_FILES}


def digest_of(files: Mapping[str, bytes]) -> str:
    """64 hexadecimal digits (SHA-256) of names and content; inputs count too, unlike in `Program.key`."""
    lines = [f"{name} {hashlib.sha256(content).hexdigest()}" for name, content in sorted(files.items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def cached_program(digest: str) -> Path | None:
    """Where this host keeps the program of that content; None if it has none, or a damaged one."""
    directory = _home(digest)
    try:
        files = {name: (directory / name).read_bytes() for name in PROGRAM_FILES}
    except OSError:
        return None
    return directory if digest_of(files) == digest else None


def cache_program(files: Mapping[str, bytes], digest: str) -> Path:
    """Write a program that came from elsewhere below `cache_directory()`, at once or not at all; nothing is unpickled.

    Raises:
        ValueError: the files are not those of a saved program, or not of that content.
    """
    if set(files) != set(PROGRAM_FILES) or digest_of(files) != digest:
        raise ValueError(f"what came is not the saved program {digest[:16]}; measure again")
    directory = _home(digest)
    partial = directory.with_name(f".partial-{digest}-{uuid4().hex}")
    partial.mkdir(parents=True)
    try:
        for name, content in files.items():
            (partial / name).write_bytes(content)
        if cached_program(digest) is not None:  # another worker of this host was quicker, and its child may read it
            return directory
        shutil.rmtree(directory, ignore_errors=True)  # a damaged one
        try:
            partial.rename(directory)
        except OSError:  # another worker of this host was quicker
            if cached_program(digest) is None:
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return directory


def _home(digest: str) -> Path:
    return cache_directory() / "programs" / digest
