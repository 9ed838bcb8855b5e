"""Files of plans, each with the key of its program."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from gst.devices import Device, Plan
from gst.devices.plan import positions_of_nodes
from gst.files.untrusted import plain, read_object
from gst.files.writing import atomic_write
from gst.placement.task import Task
from gst.programs import Program


def save_plan(plan: Plan, program: Program | Task, path: Path) -> None:
    """Write `path` at once or not at all; `Plan.load` reads it too."""
    with atomic_write(path) as file:
        file.write(json.dumps({"program": program.key, **plan.to_dict()}))


def load_plan(path: Path, program: Program, devices: Sequence[Device]) -> Plan:
    """Read a plan for `program` on some of `devices`.

    Raises:
        ValueError: it is no plan, or one for another program (by key, where the file has one, and number of nodes) or
            for other devices.
    """
    plan = Plan.load(path)
    key = read_object(path).get("program", program.key)
    if key != program.key:
        raise ValueError(
            f"{path} is a plan for the program with key {plain(str(key), 40)}, {program.name!r} has {program.key}; "
            "make the plan again for this program"
        )
    try:
        positions_of_nodes(plan, program, devices)
    except ValueError as error:
        raise ValueError(f"{path}: {plain(error)}") from error
    return plan
