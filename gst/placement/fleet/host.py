"""Measurement on another host: the program's files, the Ray actor there, and the controller's handle of it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from threading import Event
from typing import Any
from uuid import uuid4

import numpy as np

from gst.execution.isolated import START_LIMIT_S, IsolatedExecutor, measure_plans
from gst.execution.measure import Measurement
from gst.lowering.calls import Costs
from gst.lowering.plan import ExecutionError, Plan, RunsInTurns, Timeline
from gst.machine.devices import Device, discover, select, this_machine
from gst.machine.load import LoadGate
from gst.placement.profiling import costs_of, costs_record
from gst.programs import Program
from gst.programs.program import FILES
from gst.util.compiled import cache_directory
from gst.util.process import version
from gst.whole_model.child_process import variants_beside
from gst.whole_model.variants import COMPILED, PYTORCH


class WorkerLost(Exception):
    """A worker failed, rather than its request; the message has the reason."""


class Host:
    """Ray actor that measures. Its children run the plans, so that a plan cannot harm it.

    Answers are JSON: `refused` (the request is wrong) or `failed` (a plan failed) with a reason, or the result.
    """

    _isolated: IsolatedExecutor  # since `begin`

    def __init__(self) -> None:
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray sets it to the cores of the actor; children use those of devices

    def describe(self) -> str:
        """Return the `machine`, all `devices`, the `version` of this package and the `pid`."""
        devices = [asdict(device) for device in discover()]
        return json.dumps({"machine": this_machine(), "devices": devices, "version": version(), "pid": os.getpid()})

    def begin(self, settings: str, program: list[Any]) -> str:
        """Start a child for a program; return the `key` of the program.

        Args:
            settings: `digest` of the program, names of `devices`, `memory_limit` and `time_limit_s` of each run.
            program: reference of its files in the object store, which are fetched unless they are cached here.
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
        """Answer a request of `RemoteWorker`: `costs`, `timelines`, `groups` or `measure`."""
        ((name, arguments),) = json.loads(request).items()
        methods = {"costs": self._costs, "timelines": self._timelines, "groups": self._groups, "measure": self._measure}
        try:
            return json.dumps(methods[name](arguments))
        except ExecutionError as failure:
            return json.dumps({"failed": str(failure)})
        except ValueError as error:
            return json.dumps({"refused": str(error)})

    def _costs(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if arguments["patience_s"] > 0:
            LoadGate(patience_s=arguments["patience_s"]).wait()
        return costs_record(self._isolated.costs(arguments["repetitions"]))

    def _timelines(self, arguments: dict[str, Any]) -> dict[str, Any]:
        timelines = self._isolated.timelines(_plans(arguments), arguments["repetitions"])

        def record(run: Timeline) -> list[Any]:
            return [run.device.tolist(), *(np.round(each, 2).tolist() for each in (run.begin_us, run.end_us))]

        return {"runs": [list(map(record, of_plan)) for of_plan in timelines.runs], "load": timelines.load}

    def _groups(self, arguments: dict[str, Any]) -> dict[str, Any]:
        (plan,) = _plans(arguments)
        return {"groups": list(self._isolated.groups(plan).items())}

    def _measure(self, arguments: dict[str, Any]) -> dict[str, Any]:
        settings = (arguments["repetitions"], arguments["warmup"], LoadGate(patience_s=arguments["patience_s"]))
        if arguments["with_steps"] is None:
            measurements = measure_plans(self._isolated, _plans(arguments), *settings)
        else:
            devices, skip_reason = self._isolated.devices, arguments["with_steps"]
            with variants_beside(self._program, devices, START_LIMIT_S, skip_reason) as variants:
                steps = {name: variants[name] for name in (PYTORCH, COMPILED)}
                measurements = measure_plans(self._isolated, _plans(arguments), *settings, steps)
        return {"measurements": [each.to_dict() for each in measurements]}


def _plans(arguments: dict[str, Any]) -> list[Plan]:
    return [Plan.from_dict(each) for each in arguments["plans"]]


POLL_S = 0.5  # between checks of whether to stop, or whether it takes too long


class RemoteWorker:
    """Sends requests to a `Host` actor; the end of the actor and an overdue answer raise `WorkerLost`.

    Args:
        actor: handle of Ray.
        node: Ray's identity of its host.
        stopping: set when answers are not wanted any more.
    """

    def __init__(self, actor: Any, node: str, stopping: Event) -> None:
        self.actor, self.node, self.stopping = actor, node, stopping

    @property
    def host(self) -> str:
        """Name of its host in results: no name of a machine, and another one each time the cluster starts."""
        return self.node[:12]

    def describe(self, limit_s: float) -> dict[str, Any]:
        """See `Host.describe`."""
        return self._wait_for(self.actor.describe.remote(), limit_s)

    def begin(self, settings: dict[str, Any], program: Any) -> dict[str, Any]:
        """See `Host.begin`; `program` is the reference of its files."""
        return self._wait_for(self.actor.begin.remote(json.dumps(settings), [program]), START_LIMIT_S)

    def costs(self, program: Program, devices: Sequence[Device], repetitions: int, patience_s: float) -> Costs:
        """See `IsolatedExecutor.costs`; `patience_s` are seconds to wait for quiet cores."""
        arguments = {"repetitions": repetitions, "patience_s": patience_s}
        return costs_of(program, devices, self._ask({"costs": arguments}, START_LIMIT_S))

    def timelines(self, plans: Sequence[Plan], repetitions: int) -> RunsInTurns:
        """See `IsolatedExecutor.timelines`."""
        arguments = {"plans": [plan.to_dict() for plan in plans], "repetitions": repetitions}
        answer = self._ask({"timelines": arguments}, START_LIMIT_S)

        def run(device: list[int], begin: list[float], end: list[float]) -> Timeline:
            return Timeline(np.array(device, np.int64), np.array(begin, np.float64), np.array(end, np.float64))

        return RunsInTurns([[run(*each) for each in of_plan] for of_plan in answer["runs"]], answer["load"])

    def groups(self, plan: Plan) -> dict[int, float]:
        """See `IsolatedExecutor.groups`."""
        return dict(self._ask({"groups": {"plans": [plan.to_dict()]}}, START_LIMIT_S)["groups"])

    def measure(self, plans: Sequence[Plan], settings: dict[str, Any], limit_s: float) -> list[Measurement]:
        """See `measure_plans`.

        Args:
            settings: `repetitions`, `warmup`, `patience_s`, and `with_steps`: None, or `skip_reason` of
                `gst.whole_model.child_process.variants_beside`, whose steps then alternate with the plans.
            limit_s: seconds to wait for the answer.
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

    def _ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        return self._wait_for(self.actor.answer.remote(json.dumps(request)), limit_s)

    def _wait_for(self, reference: Any, limit_s: float) -> dict[str, Any]:
        import ray

        start = time.monotonic()
        try:
            while not ray.wait([reference], timeout=POLL_S)[0]:
                if self.stopping.is_set():
                    raise WorkerLost("its answer is not wanted any more")
                if time.monotonic() - start > limit_s:
                    raise WorkerLost(f"host {self.host} gave no answer for {time.monotonic() - start:.0f} s")
            answer: dict[str, Any] = json.loads(ray.get(reference))
        except ray.exceptions.RayActorError:
            raise WorkerLost(f"the process on host {self.host} ended") from None
        except (ray.exceptions.RayError, ConnectionError) as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            is_traceback = isinstance(error, ray.exceptions.RayTaskError)  # its last line has the exception
            raise WorkerLost(f"host {self.host}: {lines[-1 if is_traceback else 0]}") from error
        if "refused" in answer:
            raise ValueError(answer["refused"])
        if "failed" in answer:
            raise ExecutionError(answer["failed"])
        return answer


PROGRAM_FILES = (*FILES, "checksums.json")


def pack(program: Program) -> dict[str, bytes]:
    """Return the files of `Program.save` by name."""
    with tempfile.TemporaryDirectory() as parent:
        directory = Path(parent) / "program"
        program.save(directory)
        return {name: (directory / name).read_bytes() for name in PROGRAM_FILES}


def digest_of(files: Mapping[str, bytes]) -> str:
    """Return 64 hexadecimal digits (SHA-256) of names and content; inputs count, unlike in `Program.key`."""
    lines = [f"{name} {hashlib.sha256(content).hexdigest()}" for name, content in sorted(files.items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def cached_program(digest: str) -> Path | None:
    """Return the directory of the program of that content on this host; None if it has none, or a damaged one."""
    directory = _home(digest)
    try:
        files = {name: (directory / name).read_bytes() for name in PROGRAM_FILES}
    except OSError:
        return None
    return directory if digest_of(files) == digest else None


def cache_program(files: Mapping[str, bytes], digest: str) -> Path:
    """Write a program from another host below `cache_directory()`, at once or not at all; nothing is unpickled.

    Raises:
        ValueError: the files are not those of a saved program, or not of that content.
    """
    if set(files) != set(PROGRAM_FILES) or digest_of(files) != digest:
        raise ValueError(f"the files are not the saved program {digest[:16]}; measure again")
    directory = _home(digest)
    partial = directory.with_name(f".partial-{digest}-{uuid4().hex}")
    partial.mkdir(parents=True)
    try:
        for name, content in files.items():
            (partial / name).write_bytes(content)
        if cached_program(digest) is not None:  # another worker of this host wrote it first, and its child may read it
            return directory
        shutil.rmtree(directory, ignore_errors=True)  # a damaged one
        try:
            partial.rename(directory)
        except OSError:  # another worker of this host wrote it first
            if cached_program(digest) is None:
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return directory


def _home(digest: str) -> Path:
    return cache_directory() / "programs" / digest
