"""A program with the groups of a plan as one node each, where that is faster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from gst.devices.discover import Device
from gst.devices.fusion.legality import Group, fusion_groups
from gst.devices.fusion.library import Record, library_path, make, recorded
from gst.devices.fusion.rewrite import rewritten
from gst.devices.fusion.structure import example_values, layouts, structure_key
from gst.devices.native.lower import CompiledGroup
from gst.devices.plan import Plan, contracted_plan
from gst.process.progress import notice
from gst.programs import Program


@dataclass(frozen=True, eq=False)
class Fused:
    """What became of the groups of a plan.

    Args:
        program: in which each compiled group is one node.
        plan: for that program; it fuses nothing more.
        node_of: for each node of the old program the node of the new one that computes it.
        num_groups: how many groups are compiled.
        records: each legal group with what is known of its structure.
    """

    program: Program
    plan: Plan
    node_of: Int64[np.ndarray, " nodes"]
    num_groups: int
    records: tuple[tuple[Group, Record], ...]


def fused(program: Program, plan: Plan, devices: Sequence[Device], keep_if_faster: bool = True) -> Fused:
    """Compile the groups of a plan, as far as they are legal (`legalise`), each structure once on this machine.

    A structure that was never seen is compiled by Inductor for the threads of its device, run in turns with its
    operations one by one, and kept with both times in `$XDG_CACHE_HOME/gst/fusion`. One that cannot be compiled, or
    whose outputs differ, runs as it did; its record says why.

    Args:
        program: what the plan is for.
        plan: with `fusion`.
        devices: those that the plan names, CPU devices.
        keep_if_faster: leave groups alone that are slower compiled; otherwise fuse whatever can be compiled.

    Raises:
        ValueError: the plan is not for this program or these devices.
    """
    records = group_records(program, plan, devices)
    chosen = {
        group: CompiledGroup(library_path(record.key), len(group.nodes))
        for group, record in records
        if record.pays or (not keep_if_faster and not record.reason)
    }
    made = rewritten(program, chosen)
    return Fused(
        made.program, contracted_plan(plan, made.node_of, made.origin), made.node_of, len(chosen), tuple(records)
    )


def group_records(program: Program, plan: Plan, devices: Sequence[Device]) -> list[tuple[Group, Record]]:
    """Each legal group of a plan with what is known of its structure, compiled and measured if nothing was (`fused`).

    Raises:
        ValueError: as `fused`.
    """
    by_name = {device.name: device for device in devices}
    if missing := [name for name in plan.devices if name not in by_name]:
        raise ValueError(f"the plan uses device {missing[0]!r}; there are {', '.join(by_name)}")
    groups = [group for group in fusion_groups(program, plan) if group.outputs]
    return _records(program, {group: by_name[plan.devices[plan.placement[group.nodes[0]]]] for group in groups})


def _records(program: Program, home: Mapping[Group, Device]) -> list[tuple[Group, Record]]:
    """Each group with its record; structures without one are made."""
    keys: dict[Group, str] = {}
    unknown: dict[str, Group] = {}
    found: dict[str, Record] = {}
    for group, device in home.items():
        try:
            key = structure_key(program, group, [layouts(program)[node] for node in group.inputs], device.threads)
        except ValueError as error:
            key = f"none of {group.nodes[0]}"
            found[key] = Record("", len(group.nodes), device.threads, 0.0, None, None, str(error))
        keys[group] = key
        if key not in found and key not in unknown:
            if (record := recorded(key)) is not None:
                found[key] = record
            else:
                unknown[key] = group
    values = example_values(program, {node for group in unknown.values() for node in group.inputs}) if unknown else {}
    for number, (key, group) in enumerate(unknown.items(), 1):
        notice(f"compiling group {number} of {len(unknown)} ({len(group.nodes)} operations, once)")
        found[key] = make(key, program, group, [values[node] for node in group.inputs], home[group])
    return [(group, found[key]) for group, key in keys.items()]
