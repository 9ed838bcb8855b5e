"""Share of an accelerator that each operation takes, where several devices are lanes of it.

What an operation takes of the accelerator's threads, of its memory's rate and of its rate of matrix products (`Parts`)
times a factor each; the largest counts, at least a smallest share, at most 1. The parts are of the accelerator on which
the operation runs, the four numbers hold for all; `gst.simulation.share_fit` fits them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from gst.execution.costs import Costs


class Factors(NamedTuple):
    """What makes shares of parts of an accelerator.

    Args:
        threads: times the part of its threads.
        memory: times the part of its memory's rate.
        arithmetic: times the part of its rate of matrix products.
        least: share that every operation takes.
    """

    threads: float = 0.0
    memory: float = 0.0
    arithmetic: float = 0.0
    least: float = 0.0


def shares_of(parts: Float64[np.ndarray, "*operations 3"], factors: Factors) -> Float64[np.ndarray, "*operations"]:
    """Shares of operations that take these parts.

    Examples:
        >>> shares_of(np.array([[0.5, 0.2, 0.4], [0.1, 0.0, 0.0]]), Factors(1.0, 2.0, 2.0, 0.25)).tolist()
        [0.8, 0.25]
    """
    return np.clip((parts * np.array(factors[:3])).max(-1), factors.least, 1.0)


def node_shares(costs: Costs, factors: Factors) -> Float64[np.ndarray, "devices nodes"]:
    """Of each operation on each device. Of a device of which nothing was measured it is the least."""
    measured = {each.device: each for each in costs.pairs}
    shares = np.full(costs.times_us.shape, min(factors.least, 1.0))
    for row, device, times_us in zip(shares, costs.devices, costs.times_us, strict=True):
        if (pairs := measured.get(str(device.torch_device))) is not None:
            row[:] = shares_of(pairs.parts(times_us, costs.traffic_bytes), factors)
    return shares
