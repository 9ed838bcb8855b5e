"""What runs on a host of the fleet: one process that measures there, asked and answering in JSON."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from gst.devices import LoadGate, Plan, discover, select
from gst.devices.describe.machine import this_machine
from gst.devices.execute.isolated import IsolatedExecutor, measure_plans
from gst.devices.execute.measure import Failure
from gst.devices.execute.plain import steps_beside
from gst.placement.fleet.carried import keep, kept
from gst.programs import Program

DISTRIBUTION = "graph-segment-training"


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
        found = {"machine": this_machine(), "devices": devices, "version": version(DISTRIBUTION), "pid": os.getpid()}
        return json.dumps(found)

    def begin(self, settings: str, program: list[Any]) -> str:
        """Start a child for a program.

        Args:
            settings: `digest` of the program, names of `devices`, `memory_limit` and `time_limit_s` of each run.
            program: the reference of its files in the object store, which are fetched unless they are kept here.

        Returns:
            `key` of the program.
        """
        import ray

        wanted = json.loads(settings)
        try:
            directory = kept(wanted["digest"]) or keep(ray.get(program[0]), wanted["digest"])
            devices = select(wanted["devices"], discover())
            isolated = IsolatedExecutor(directory, devices, wanted["memory_limit"], wanted["time_limit_s"])
            self._isolated = isolated.__enter__()  # ends with this process
            self._program = directory
            return json.dumps({"key": isolated.program_key})
        except ValueError as error:
            return json.dumps({"refused": str(error)})

    def answer(self, request: str) -> str:
        """`costs`, `timelines`, `groups` or `measure`, as the methods of `RemoteWorker` ask."""
        assert self._isolated is not None
        ((what, wanted),) = json.loads(request).items()
        known = {
            "costs": self._costs, "timelines": self._timelines, "groups": self._groups, "measure": self._measure,
        }  # fmt: skip
        try:
            return json.dumps(known[what](wanted))
        except Failure as failure:
            return json.dumps({"failed": str(failure)})
        except ValueError as error:
            return json.dumps({"refused": str(error)})

    def _costs(self, wanted: dict[str, Any]) -> dict[str, Any]:
        assert self._isolated is not None
        if wanted["patience_s"] > 0:
            LoadGate(patience_s=wanted["patience_s"]).wait()
        costs = self._isolated.costs(Program.load(self._program), wanted["repetitions"])
        return {"times_us": costs.times_us.tolist(), "own_bytes": costs.own_bytes.tolist()}

    def _timelines(self, wanted: dict[str, Any]) -> dict[str, Any]:
        assert self._isolated is not None
        runs = self._isolated.timelines(_plans(wanted), wanted["repetitions"])
        return {"runs": [[run.device.tolist(), run.begin_us.tolist(), run.end_us.tolist()] for run in runs]}

    def _groups(self, wanted: dict[str, Any]) -> dict[str, Any]:
        assert self._isolated is not None
        (plan,) = _plans(wanted)
        return {"groups": list(self._isolated.groups(plan).items())}

    def _measure(self, wanted: dict[str, Any]) -> dict[str, Any]:
        assert self._isolated is not None
        settings = (wanted["repetitions"], wanted["warmup"], LoadGate(patience_s=wanted["patience_s"]))
        if wanted["beside_steps"] is None:
            seen = measure_plans(self._isolated, _plans(wanted), *settings)
        else:
            with steps_beside(self._program, wanted["beside_steps"]) as steps:
                seen = measure_plans(self._isolated, _plans(wanted), *settings, steps)
        return {"measurements": [each.to_dict() for each in seen]}


def _plans(wanted: dict[str, Any]) -> list[Plan]:
    return [Plan.from_dict(each) for each in wanted["plans"]]
