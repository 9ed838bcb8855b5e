"""One process at a time measures on a core or a GPU."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from gst.devices.discover import Device, usable_cores
from gst.devices.native.build import cache_directory


@contextmanager
def held(devices: Sequence[Device]) -> Iterator[None]:
    """Wait until no other process of this user holds a core or a GPU of these devices, and hold all of them.

    They are taken in one order by everyone, so that nobody waits in a circle; they are free again at the end, also
    of a process that is killed. Threads of one process exclude each other too.
    """
    directory = cache_directory() / "locks"
    directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        for name in physical(devices):
            fcntl.flock(stack.enter_context((directory / name).open("a")), fcntl.LOCK_EX)
        yield


def physical(devices: Sequence[Device]) -> list[str]:
    """Names of the cores and GPUs that devices use, in order; a device free to use any core uses all."""
    names = set()
    for device in devices:
        if device.kind == "cuda":
            names.add(str(device.torch_device).replace(":", "-"))
        else:
            names |= {f"core-{core}" for core in device.cores or usable_cores()}
    return sorted(names)
