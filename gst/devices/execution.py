"""Which executor runs plans on which devices."""

from __future__ import annotations

from collections.abc import Sequence

from gst.devices.discover import Device, overlap
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
