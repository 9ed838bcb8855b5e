"""Plans as other libraries take them: the device of each module, and stages of a pipeline."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Int64

from gst.programs import Program

if TYPE_CHECKING:
    from gst.placement.api.placed import Placed


class Stages(NamedTuple):
    """A plan as stages of a pipeline.

    Args:
        split_spec: `SplitPoint.BEGINNING` by the name of each module with which a stage begins, but for the first one:
            the argument of `torch.distributed.pipelining.pipeline`.
        devices: PyTorch's name of the device of each stage, the first one's first.
    """

    split_spec: dict[str, Any]
    devices: tuple[str, ...]


def readers(program: Program, parameter: int) -> Int64[np.ndarray, " readers"]:
    """Operations that read a parameter, or a view of it, in order; where none does, what there is of it.

    Args:
        parameter: its input node.
    """
    mine, (producers, consumers) = program.parameter_home == parameter, program.graph.edges
    reading = np.unique(consumers[mine[producers] & ~mine[consumers]])
    return reading if reading.size else np.flatnonzero(mine)


def device_map(placed: Placed) -> dict[str, str]:
    """See `gst.Placed.device_map`."""
    homes: dict[str, set[str]] = {}
    by_name = {device.name: device for device in placed.devices}
    for number, (name, value) in enumerate(placed.parameters.items()):
        if placed.plan is None or placed.program is None:
            places = {str(value.device)}
        else:
            used = placed.plan.placement[readers(placed.program, number)].tolist()
            places = {str(by_name[placed.plan.devices[place]].torch_device) for place in used}
        homes.setdefault(name.rpartition(".")[0], set()).update(places)
    if not homes:
        raise ValueError("a device map is of modules; this plan is of a step, or the model has no parameters")
    for module, found in homes.items():
        if len(found) > 1:
            raise ValueError(
                f"parameters of {module or 'the model'} are on {', '.join(sorted(found))}; run the plan by module()"
            )
    return {module: found.pop() for module, found in homes.items()}


def stages(placed: Placed) -> Stages:
    """See `gst.Placed.stages`."""
    from torch.distributed.pipelining import SplitPoint

    if placed.plan is None or placed.program is None:
        raise ValueError("stages are of a plan, and none was made; place the model with seconds=None")
    homes, first = device_map(placed), dict[str, int]()
    for number, name in enumerate(placed.parameters):
        module = name.rpartition(".")[0]
        first[module] = min(first.get(module, placed.program.num_nodes), int(readers(placed.program, number)[0]))
    in_order = sorted(first, key=lambda module: first[module])
    parts = [(device, list(modules)) for device, modules in groupby(in_order, key=lambda module: homes[module])]
    for number, (device, modules) in enumerate(parts):
        if device in (other for other, _ in parts[:number]):
            raise ValueError(
                f"the plan comes back to {device} at {modules[0] or 'the model'}, so that it is no pipeline; "
                "run it by module()"
            )
    splits = {modules[0]: SplitPoint.BEGINNING for _, modules in parts[1:]}
    return Stages(splits, tuple(device for device, _ in parts))
