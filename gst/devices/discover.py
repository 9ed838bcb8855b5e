"""What this machine has to run operations on."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

SET = re.compile(r"cpu:\d+-\d+")


@dataclass(frozen=True)
class Device:
    """Something that runs one operation at a time. CPU devices may share cores: then one of them waits.

    Args:
        name: 'cpu:0', 'cpu:0-1' (both cores at once), 'cuda:0': what plans call it.
        kind: 'cpu' or 'cuda'.
        cores: numbers of the CPU cores its worker may use; empty = any.
        threads: intra-operation threads of its worker.
        memory: name of its memory; within one memory a value is handed over as it is, otherwise copied.
        description: for people.
    """

    name: str
    kind: Literal["cpu", "cuda"]
    cores: tuple[int, ...]
    threads: int
    memory: str
    description: str

    @property
    def torch_device(self) -> torch.device:
        """Where its tensors live."""
        return torch.device("cpu") if self.kind == "cpu" else torch.device(self.name)


def discover(separate_memory: bool = False) -> list[Device]:
    """One device of one thread for each CPU core this process may use, then every CUDA device.

    Args:
        separate_memory: give each CPU device its own memory, so that every value that crosses is really
            copied, as between accelerators; otherwise they share the memory 'host'.
    """
    devices = [
        Device(f"cpu:{number}", "cpu", (core,), 1, f"cpu:{number}" if separate_memory else "host", cpu_model())
        for number, core in enumerate(usable_cores())
    ]
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            name = f"cuda:{number}"
            devices.append(Device(name, "cuda", (), 1, name, torch.cuda.get_device_name(number)))
    return devices


def select(names: Sequence[str], devices: Sequence[Device]) -> list[Device]:
    """The devices called `names`, in that order. `cpu:0-3` is the set of the CPU devices 0 to 3: an operation there
    waits for all of their cores and uses all of them.

    Raises:
        ValueError: a name is not there, or is given twice, or a set reaches over several memories.
    """
    found = {device.name: device for device in devices}
    for name in names:
        if name not in found and SET.fullmatch(name):
            found[name] = _core_set(name, found)
        if name not in found:
            raise ValueError(f"there is no device {name!r} here; there are {', '.join(found) or 'none'}")
    if len(set(names)) < len(names):
        raise ValueError(f"devices are named twice in {', '.join(names)}; name each once")
    return [found[name] for name in names]


def overlap(devices: Sequence[Device]) -> bool:
    """Do two of them share a core?"""
    cores = [core for device in devices for core in device.cores]
    return len(set(cores)) < len(cores)


def _core_set(name: str, found: Mapping[str, Device]) -> Device:
    first, last = (int(number) for number in name.removeprefix("cpu:").split("-"))
    wanted = [f"cpu:{number}" for number in range(first, last + 1)]
    missing = [each for each in wanted if each not in found]
    if first >= last or missing:
        why = f"there is no {missing[0]}" if missing else "its last number must be greater than its first"
        raise ValueError(f"core set {name!r}: {why}")
    members = [found[each] for each in wanted]
    if len({member.memory for member in members}) > 1:
        raise ValueError(f"core set {name!r} reaches over several memories; leave --separate-memory away")
    cores = tuple(core for member in members for core in member.cores)
    return Device(name, "cpu", cores, len(members), members[0].memory, members[0].description)


def usable_cores() -> tuple[int, ...]:
    """Numbers of the cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def cpu_model() -> str:
    """The processor's name, as far as the system tells."""
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
