"""What was decided: the device, the priority and the fusion group of every operation of a program."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from gst.devices.discover import Device
from gst.programs import Program

SCHEMA = 1


@dataclass(frozen=True, eq=False)
class Plan:
    """A plan for one program on named devices. Frozen: a changed plan is a new plan.

    Args:
        devices: names of the devices, as `gst.devices.discover` gives them.
        placement: index into `devices` for every node of the program.
        priority: among the operations that are ready on one device, the one with the greatest number runs first;
            program order if not given.
        fusion: operations with the same number >= 0 are compiled into one; -1 = alone. None fused if not given.

    Raises:
        ValueError: lengths differ, or a node is placed on a device that is not in the list.
    """

    devices: tuple[str, ...]
    placement: Int64[np.ndarray, " nodes"]
    priority: Int64[np.ndarray, " nodes"] | None = None
    fusion: Int64[np.ndarray, " nodes"] | None = None

    def __post_init__(self) -> None:
        if self.placement.size and not 0 <= int(self.placement.min()) <= int(self.placement.max()) < len(self.devices):
            raise ValueError(
                f"placement uses devices {int(self.placement.min())}..{int(self.placement.max())}, "
                f"but the plan names {len(self.devices)}: {', '.join(self.devices)}"
            )
        for label in ("priority", "fusion"):
            values = getattr(self, label)
            if values is not None and values.shape != self.placement.shape:
                raise ValueError(f"{label} has shape {values.shape}, want {self.placement.shape} like placement")

    @cached_property
    def key(self) -> str:
        """The same for equal plans, whatever made them: 16 hexadecimal digits."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:16]

    def to_dict(self) -> dict:
        as_list = lambda values: None if values is None else values.tolist()  # noqa: E731
        return {
            "schema": SCHEMA,
            "devices": list(self.devices),
            "placement": self.placement.tolist(),
            "priority": as_list(self.priority),
            "fusion": as_list(self.fusion),
        }

    @staticmethod
    def from_dict(record: dict) -> Plan:
        if record.get("schema") != SCHEMA:
            raise ValueError(
                f"plan has schema {record.get('schema')!r}, this version reads {SCHEMA}; make the plan again"
            )
        as_array = lambda values: None if values is None else np.asarray(values, np.int64)  # noqa: E731
        return Plan(
            tuple(record["devices"]), np.asarray(record["placement"], np.int64),
            as_array(record["priority"]), as_array(record["fusion"]),
        )  # fmt: skip

    def save(self, path: Path) -> None:
        """Write `path` at once or not at all."""
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(self.to_dict()))
        partial.replace(path)

    @staticmethod
    def load(path: Path) -> Plan:
        return Plan.from_dict(json.loads(path.read_text()))


def positions_of_nodes(plan: Plan, program: Program, devices: Sequence[Device]) -> Int64[np.ndarray, " nodes"]:
    """For each node the position of its device in `devices`.

    Raises:
        ValueError: the plan has another number of nodes than the program, or names a device not in `devices`.
    """
    if len(plan.placement) != program.num_nodes:
        raise ValueError(
            f"the plan places {len(plan.placement)} nodes, program {program.name!r} has {program.num_nodes}; "
            "make the plan again for this program"
        )
    positions = {device.name: position for position, device in enumerate(devices)}
    for name in plan.devices:
        if name not in positions:
            raise ValueError(f"the plan uses device {name!r}; the executor has {', '.join(positions)}")
    return np.array([positions[name] for name in plan.devices], np.int64)[plan.placement]


def ranks(plan: Plan) -> Int64[np.ndarray, " nodes"]:
    """Distinct numbers 0 .. nodes - 1: of ready operations the one of least rank runs first. Greater priority, lesser
    rank; program order among equals."""
    order = np.arange(len(plan.placement)) if plan.priority is None else np.argsort(-plan.priority, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank
