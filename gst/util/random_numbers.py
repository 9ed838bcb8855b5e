"""Random numbers of a block of code from a seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int, devices: Iterable[torch.device] = ()) -> Iterator[None]:
    """Let the host and some accelerators draw from `seed`; afterwards all generators continue from their earlier state.

    `torch.manual_seed` also seeds accelerators that `torch.random.fork_rng` does not restore.

    Args:
        devices: accelerators with their numbers (`cuda:0`) that draw inside; the CPU may be among them.

    Examples:
        >>> before = torch.get_rng_state()
        >>> with seeded(0):
        ...     _ = torch.rand(2)
        >>> bool((torch.get_rng_state() == before).all())
        True
    """
    accelerators = {device for device in devices if device.type != "cpu"}
    kind = min((device.type for device in accelerators), default="cuda")
    with torch.random.fork_rng([device.index for device in accelerators], device_type=kind):
        torch.default_generator.manual_seed(seed)
        for device in accelerators:
            module = torch.get_device_module(device)
            with module.device(device):
                module.manual_seed(seed)
        yield
