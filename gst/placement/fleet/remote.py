"""A worker of another host, as the controller sees it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from threading import Event
from typing import Any

import numpy as np

from gst.devices import Measurement, Plan
from gst.devices.execute.isolated import START_LIMIT_S
from gst.devices.execute.measure import Failure
from gst.devices.execute.timeline import Timeline
from gst.placement.workers import WorkerLost

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
        return self._heard(self.actor.describe.remote(), lambda: limit_s)

    def begin(self, settings: dict[str, Any], program: Any) -> dict[str, Any]:
        """See `Host.begin`; `program` is the reference of its files.

        Raises:
            ValueError: it does not run there.
        """
        return self._heard(self.actor.begin.remote(json.dumps(settings), [program]), lambda: START_LIMIT_S)

    def costs(self, repetitions: int, patience_s: float) -> tuple[np.ndarray, np.ndarray]:
        """Microseconds, and bytes, of each operation on each device, see `IsolatedExecutor.costs`."""
        wanted = {"repetitions": repetitions, "patience_s": patience_s}
        seen = self._ask({"costs": wanted}, lambda: START_LIMIT_S)
        return np.array(seen["times_us"], np.float64), np.array(seen["own_bytes"], np.int64)

    def timelines(self, plans: Sequence[Plan], repetitions: int) -> list[Timeline]:
        """See `IsolatedExecutor.timelines`."""
        wanted = {"plans": [plan.to_dict() for plan in plans], "repetitions": repetitions}
        return [
            Timeline(np.array(device, np.int64), np.array(begin, np.float64), np.array(end, np.float64))
            for device, begin, end in self._ask({"timelines": wanted}, lambda: START_LIMIT_S)["runs"]
        ]

    def groups(self, plan: Plan) -> dict[int, float]:
        """See `IsolatedExecutor.groups`."""
        return dict(self._ask({"groups": {"plans": [plan.to_dict()]}}, lambda: START_LIMIT_S)["groups"])

    def measure(
        self, plans: Sequence[Plan], settings: dict[str, Any], limit_s: Callable[[], float]
    ) -> list[Measurement]:
        """See `measure_plans`.

        Args:
            settings: `repetitions`, `warmup`, `patience_s`, and `beside_steps`: None, or `left_out` of
                `gst.devices.execute.plain.steps_beside`, whose steps then take turns with the plans.
            limit_s: seconds that it may take, asked again and again, as they may change meanwhile.
        """
        seen = self._ask({"measure": {"plans": [plan.to_dict() for plan in plans], **settings}}, limit_s)
        return [Measurement.from_dict(each) for each in seen["measurements"]]

    def end(self) -> None:
        """End its process at once, and with it its children."""
        import ray

        try:
            ray.kill(self.actor)
        except (ray.exceptions.RayError, ConnectionError, ValueError):
            return  # it is gone, or the cluster is

    def _ask(self, request: dict[str, Any], limit_s: Callable[[], float]) -> dict[str, Any]:
        return self._heard(self.actor.answer.remote(json.dumps(request)), limit_s)

    def _heard(self, reference: Any, limit_s: Callable[[], float]) -> dict[str, Any]:
        import ray

        begun = time.monotonic()
        try:
            while not ray.wait([reference], timeout=POLL_S)[0]:
                if self.stopping.is_set():
                    raise WorkerLost("nobody waits for it any more")
                if time.monotonic() - begun > limit_s():
                    raise WorkerLost(f"host {self.host} gave no answer for {time.monotonic() - begun:.0f} s")
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
            raise Failure(answer["failed"])
        return answer
