"""Plans of a program whose sources changed a little: moved to the new program by a signature of each operation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np

from gst.devices import Log, Plan
from gst.files.untrusted import DAMAGE, parse_json, plain
from gst.files.writing import atomic_write
from gst.placement.search import RAN, Trial
from gst.placement.task import save_plan
from gst.programs import Program

SIGNATURES = "signatures.json"


def signatures(program: Program) -> list[str]:
    """What each operation does, on which shapes: the same text for the same work, whatever surrounds it.

    Examples:
        >>> import torch
        >>> from gst.programs import capture_module
        >>> signatures(capture_module(torch.nn.ReLU(), (torch.zeros(2, 3),)))
        ['input None 2x3', 'operation aten.relu.default 2x3']
    """
    return [
        " ".join([each.kind, str(each.target), *("x".join(map(str, shape)) for shape in each.shapes)])
        for each in program.operations
    ]


def save_signatures(program: Program, path: Path) -> None:
    """Write `signatures` of a program to a file, at once or not at all."""
    with atomic_write(path) as file:
        file.write(json.dumps(signatures(program)))


def old_plan(directory: Path, program: Program, devices: Sequence[str]) -> Plan:
    """The plan in a directory of `gst place`, moved to a program whose sources changed: operations that are alike, in
    the same order, keep their device and their priority; a new one goes where the first operation is that it reads.

    Raises:
        ValueError: there is no plan with its signatures, it is damaged, or its devices are others.
    """
    try:
        plan = Plan.load(directory / "plan.json")
        before = parse_json((directory / SIGNATURES).read_bytes())
        if not isinstance(before, list) or len(before) != plan.placement.size or not all(map(_is_text, before)):
            raise ValueError("its signatures are not those of its plan")
    except (OSError, *DAMAGE) as error:
        raise ValueError(f"{directory} has no plan to begin with ({plain(error)}); leave --again away") from error
    if plan.devices != tuple(devices):
        raise ValueError(
            f"the plan in {directory} is for {', '.join(plan.devices)}, not {', '.join(devices)}; give the same "
            "--devices, or leave --again away"
        )
    return moved(plan, before, program)


def moved(plan: Plan, before: Sequence[str], program: Program) -> Plan:
    """A plan for the operations with signatures `before`, as one of a program."""
    now = signatures(program)
    match = np.full(len(now), -1, np.int64)
    for start, at, length in SequenceMatcher(None, before, now, autojunk=False).get_matching_blocks():
        match[at : at + length] = np.arange(start, start + length)
    placement = np.zeros(len(now), np.int64)
    priority = None if plan.priority is None else np.zeros(len(now), np.int64)
    for node, operation in enumerate(program.operations):
        old, first = int(match[node]), next(iter(operation.producers), None)
        if old >= 0:
            placement[node] = plan.placement[old]
        elif first is not None:
            placement[node] = placement[first]
        if priority is not None and plan.priority is not None:
            priority[node] = plan.priority[old] if old >= 0 else 0 if first is None else priority[first]
    firsts = np.unique(program.colocation, return_index=True)[1]  # the first operation of a group decides for all
    return Plan(plan.devices, placement[firsts][program.colocation], priority)


def keep_best(program: Program, log: Path, path: Path) -> str:
    """Write the fastest plan that a search measured so far; what a user who stopped it is told, empty if there is none.

    Args:
        program: what is placed.
        log: of the search.
        path: of the plan.
    """
    samples: dict[str, list[float]] = {}
    plans: dict[str, Plan] = {}
    for record in Log(log).read():
        trial, plan = Trial.from_dict(record), Plan.from_dict(record[RAN] if RAN in record else record["plan"])
        if trial.measurement.outcome == "ok" and plan.placement.size == program.num_nodes:
            samples.setdefault(plan.key, []).extend(trial.measurement.samples_ms)
            plans[plan.key] = plan
    if not plans:
        return ""
    medians = {key: float(np.median(each)) for key, each in samples.items()}
    best = min(medians, key=lambda key: medians[key])
    save_plan(plans[best], program, path)
    save_signatures(program, path.with_name(SIGNATURES))
    return f"the best of {len(plans)} plans so far, {medians[best]:.2f} ms, is in {path}"


def _is_text(value: object) -> bool:
    return isinstance(value, str)
