"""Which executor runs plans on which devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gst.devices.discover import MOST_CORES, Device, core_sets, discover, overlap, select
from gst.devices.executor import Executor
from gst.devices.native import NativeExecutor, build, supports
from gst.programs import Program

AnyExecutor = Executor | NativeExecutor


def executor(program: Program, devices: Sequence[Device]) -> AnyExecutor:
    """The compiled interpreter where it can run these devices (CPU, one memory) and this machine has a C++ compiler;
    otherwise the Python one, which knows accelerators and copies between memories.

    Raises:
        ValueError: devices share cores and only the Python one would run here.
    """
    if supports(devices) and build.compiler() is not None:
        return NativeExecutor(program, devices)
    if overlap(devices):
        raise ValueError("devices that share cores need the compiled interpreter: install g++, and use one memory")
    return Executor(program, devices)


def usable_devices(names: Sequence[str] | None, memory_limit: int | None = None) -> list[Device]:
    """Devices of this machine by name, or all of them (`with_core_sets`); with a limit of their memory."""
    found = discover()
    chosen = with_core_sets(found) if names is None else select(names, found)
    return chosen if memory_limit is None else [replace(device, memory_limit=memory_limit) for device in chosen]


def with_core_sets(devices: Sequence[Device]) -> list[Device]:
    """Devices, as many as are simulated, and the sets of their cores, without the smallest where the compiled
    interpreter cannot run as many, and without any beside accelerators, as it alone knows devices that share cores."""
    others = [device for device in devices if device.kind != "cpu"]
    devices = [*[device for device in devices if device.kind == "cpu"][: MOST_CORES - len(others)], *others]
    sets = core_sets(devices)
    while sets and not supports([*devices, *sets]):
        sets = sets[1:]
    return [*devices, *sets]
