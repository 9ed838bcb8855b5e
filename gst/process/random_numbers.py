"""Random numbers of a block of code from a seed; the generators of the process go on as though it had not run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int, devices: Iterable[torch.device] = ()) -> Iterator[None]:
    """Within it the host draws from `seed`, and so do accelerators among `devices`; after it all go on as before.

    `torch.manual_seed` seeds every accelerator too, those that `torch.random.fork_rng` does not put back among them.

    Examples:
        >>> before = torch.get_rng_state()
        >>> with seeded(0):
        ...     first = torch.rand(2)
        >>> with seeded(0):
        ...     bool((torch.rand(2) == first).all()), bool((torch.get_rng_state() == before).all())
        (True, False)
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
