"""Costs that a search learned of a machine, in a file, from which searches of other programs start there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gst.placement.reward import Learned
from gst.util.untrusted import DAMAGE, plain, read_object
from gst.util.writing import write_json

LEARNED = "learned_costs.json"


def save_costs(out: Path, learned: Learned, machine: Mapping[str, Any], devices: Sequence[str]) -> None:
    """Write costs to the directory of a search."""
    write_json(out / LEARNED, {"machine": dict(machine), "devices": list(devices), "costs": dict(learned)})


def load_costs(out: Path, machine: Mapping[str, Any], devices: Sequence[str]) -> Learned:
    """Read the costs in the directory of a search.

    Raises:
        ValueError: there are none, the file is damaged, or they are of another machine, or of none of the devices.

    Examples:
        >>> out = Path("out")
        >>> save_costs(out, {"cpu:0": (0.1, 0.05)}, {"cpu": "mine"}, ["cpu:0"])
        >>> load_costs(out, {"cpu": "mine"}, ["cpu:0", "cpu:1"])
        {'cpu:0': (0.1, 0.05)}
    """
    path = out / LEARNED
    if not path.exists():
        raise ValueError(f"there is no {path}; name the --out of a gst place that has measured, with fitted costs")
    try:
        record = read_object(path)
        then, known = dict(record["machine"]), list(map(str, record["devices"]))
        costs = {str(name): (float(mean), float(deviation)) for name, (mean, deviation) in record["costs"].items()}
        if not all(math.isfinite(mean) and 0 < deviation < math.inf for mean, deviation in costs.values()):
            raise ValueError("a cost is no number, or its deviation is not positive")
    except DAMAGE as error:
        raise ValueError(f"{path} cannot be read: {plain(error)}; place its program anew") from error
    for what in (each for each, value in machine.items() if then.get(each, value) != value):
        raise ValueError(f"{path} was learned with {what} {then[what]}, here it is {machine[what]}; start without it")
    if not set(known) & set(devices):
        raise ValueError(f"{path} was learned on {', '.join(known)}, and the devices are {', '.join(devices)}")
    return costs
