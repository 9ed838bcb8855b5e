"""Share of an accelerator that an operation takes, compiled by numba; `gst.devices.simulate.share_fit` fits it."""

from __future__ import annotations

from typing import no_type_check

from partitioners.compiled import compiled


@compiled
@no_type_check
def accelerator_share(num_bytes, intensity, contention):
    """Share of an accelerator that an operation takes, 0 .. 1.

    Args:
        num_bytes: of its result.
        intensity: its traffic in units of 10 GB/s.
        contention: `gst.devices.simulate.simulator.Contention`.
    """
    by_result = contention.share_per_kb * num_bytes / 1e3
    by_traffic = contention.share_per_gb_per_s * intensity * 10.0
    return min(1.0, max(contention.least_share, by_result, by_traffic))
