"""This machine: its compute devices (CPU cores, sets of cores, streams of accelerators) by name, the cores that share
a cache, a socket or a NUMA node, and its identity."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64


def accelerator_names() -> dict[str, str]:
    """Return the name of each accelerator here (`xpu:0`), and its maker's name for it; empty without one.

    Examples:
        >>> all(name.endswith(f":{number}") for number, name in enumerate(accelerator_names()))
        True
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return {}
    described = getattr(_module(accelerator), "get_device_name", lambda number: accelerator.type)
    return {
        f"{accelerator.type}:{number}": str(described(number)) for number in range(torch.accelerator.device_count())
    }


def synchronise_accelerators() -> None:
    """Wait for all work on the accelerators that this process uses already."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or not _module(accelerator).is_initialized():
        return
    is_used = getattr(torch._C, f"_{accelerator.type}_hasPrimaryContext", lambda number: True)
    for number in range(torch.accelerator.device_count()):
        if is_used(number):
            torch.accelerator.synchronize(number)


def limit_memory(device: torch.device, limit: int | None) -> None:
    """Limit the memory of an accelerator that this process takes from now on, in bytes; None = no limit."""
    share = 1.0 if limit is None else min(1.0, limit / torch.accelerator.get_memory_info(device)[1])
    _module(device).set_per_process_memory_fraction(share, device)


def _module(device: torch.device) -> Any:
    return torch.get_device_module(device)


SINGLE = re.compile(r"cpu:\d+")
SET = re.compile(r"cpu:\d+(-\d+|(-\d+)?(\+\d+(-\d+)?)+)")
STREAM = re.compile(r"((?!cpu)[a-z]+:\d+)/stream:\d+")
MOST_CORES = 1024  # and accelerators, of one task: one bit each
MOST_SETS = 64  # of cores, without the cores themselves
NUMBERS_OF_CPU = {"cpu family": "family", "model": "model", "CPU part": "part"}  # as Linux calls them
BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*(B|[KMGT]i?B)?", re.IGNORECASE)
SYSFS = Path("/sys/devices/system")
SHARED = ("cpu/cpu[0-9]*/cache/index*/shared_cpu_list", "cpu/cpu[0-9]*/topology/*_list", "node/node[0-9]*/cpulist")
"""Files that name cores which share something (Linux, Documentation/ABI/testing/sysfs-devices-system-cpu)."""

Domain = frozenset[int]


@dataclass(frozen=True)
class Device:
    """A CPU core, a set of cores or a stream of a GPU, which runs one operation at a time. CPU devices may share cores;
    then one of them waits.

    Args:
        name: in plans: 'cpu:0', 'cpu:0-1' (both cores at once), 'cpu:0-3+8-11', 'xpu:0', 'xpu:0/stream:1'.
        kind: 'cpu', or PyTorch's name of an accelerator.
        cores: numbers of the CPU cores that its worker may use; empty = any.
        threads: intra-operation threads of its worker.
        memory: name of its memory; within one memory a value is handed over as it is, otherwise copied.
        description: for people.
        memory_limit: bytes that a plan may take of its memory; None = all.
    """

    name: str
    kind: str
    cores: tuple[int, ...]
    threads: int
    memory: str
    description: str
    memory_limit: int | None = None

    @property
    def is_accelerator(self) -> bool:
        return self.kind != "cpu"

    @property
    def torch_device(self) -> torch.device:
        return torch.device(self.name.partition("/")[0] if self.is_accelerator else "cpu")


def discover() -> list[Device]:
    """Return one device of one thread for each CPU core this process may use, then every accelerator.

    Examples:
        >>> {device.threads for device in discover()}
        {1}
    """
    devices = [
        Device(f"cpu:{number}", "cpu", (core,), 1, "host", cpu_model()) for number, core in enumerate(usable_cores())
    ]
    accelerators = accelerator_names().items()
    return [*devices, *(Device(name, name.partition(":")[0], (), 1, name, what) for name, what in accelerators)]


def select(names: Sequence[str], devices: Sequence[Device]) -> list[Device]:
    """Select devices by name, in the order of the names. `cpu:0-3` is the set of the CPU devices 0 to 3: an operation
    there uses all of their cores. `xpu:0/stream:1` is one more stream of `xpu:0`, in its memory.

    Raises:
        ValueError: a name is not there, or is given twice, or a set reaches over several memories.

    Examples:
        >>> cores = [Device(f"cpu:{core}", "cpu", (core,), 1, "host", "example") for core in range(4)]
        >>> [(device.name, device.threads) for device in select(["cpu:2", "cpu:0-1"], cores)]
        [('cpu:2', 1), ('cpu:0-1', 2)]
    """
    by_name = {device.name: device for device in devices}
    for name in names:
        if name not in by_name and SET.fullmatch(name):
            by_name[name] = _core_set(name, by_name)
        if (stream := STREAM.fullmatch(name)) and name not in by_name and stream[1] in by_name:
            by_name[name] = replace(by_name[stream[1]], name=name)
        if name not in by_name:
            here = ", ".join(by_name) or "none"
            lacks_cuda = name.startswith("cuda") and torch.version.cuda is None and torch.version.hip is None
            why = f": this PyTorch, {torch.__version__}, is a build without CUDA" if lacks_cuda else ""
            raise ValueError(
                f"there is no device {name!r} here{why}; there are {here}, and sets of cores such as cpu:0-1"
            )
    if len(set(names)) < len(names):
        raise ValueError(f"devices are named twice in {', '.join(names)}; name each once")
    return [by_name[name] for name in names]


def overlap(devices: Sequence[Device]) -> bool:
    """True if two devices share a core.

    Examples:
        >>> cores = [Device(f"cpu:{core}", "cpu", (core,), 1, "host", "example") for core in range(2)]
        >>> overlap(cores), overlap(select(["cpu:0", "cpu:0-1"], cores))
        (False, True)
    """
    cores = [core for device in devices for core in device.cores]
    return len(set(cores)) < len(cores)


def core_numbers(devices: Sequence[Device]) -> list[list[int]]:
    """Return the cores of each device, numbered 0, 1, ... in the order of the system's numbers; a device free to use
    any core has a number of its own. The thread of its first core runs a device."""
    number = {core: index for index, core in enumerate(sorted({core for each in devices for core in each.cores}))}
    own = count(len(number))
    return [[number[core] for core in device.cores] or [next(own)] for device in devices]


def core_use(devices: Sequence[Device]) -> Bool[np.ndarray, "devices cores"]:
    """Return the incidence of devices and cores; a device without named cores has its own column."""
    numbers = core_numbers(devices)
    use = np.zeros((len(devices), 1 + max((core for mine in numbers for core in mine), default=-1)), bool)
    for position, columns in enumerate(numbers):
        use[position, columns] = True
    return use


def memories_of(devices: Sequence[Device]) -> tuple[list[str], Int64[np.ndarray, " devices"]]:
    """Return the names of the memories of devices, each once, and the position among them of the memory of each device.

    Examples:
        >>> memories_of([Device(name, "xpu", (), 1, name[:5], "example") for name in ("xpu:0", "xpu:0/stream:1")])
        (['xpu:0'], array([0, 0]))
    """
    names = list(dict.fromkeys(device.memory for device in devices))
    return names, np.array([names.index(device.memory) for device in devices], np.int64)


def core_sets(devices: Sequence[Device], domains: Iterable[Domain] = ()) -> list[Device]:
    """Return sets of 2, 4, 8, ... neighbouring CPU devices of one memory and the set of all, smallest first; the
    smallest sizes are left out beyond `MOST_SETS`. Each domain (`shared_domains`) is a set, and no other set crosses
    its border."""
    cpus = {device.cores[0]: device for device in devices if SINGLE.fullmatch(device.name) and device.cores}
    if len(cpus) < 2 or len({device.memory for device in cpus.values()}) > 1:
        return []
    groups = core_groups(list(cpus), domains)
    while len(groups) > MOST_SETS:
        groups = [group for group in groups if len(group) > len(groups[0])]
    number = {core: int(device.name.removeprefix("cpu:")) for core, device in cpus.items()}
    return select([f"cpu:{ranges(sorted(number[core] for core in group))}" for group in groups], list(cpus.values()))


def parse_bytes(text: str) -> int:
    """Return the bytes of '512MiB', '2GiB', '1.5GB' (powers of ten), '4096'.

    Raises:
        ValueError: the text is no size, or its size is 0.

    Examples:
        >>> parse_bytes("2KiB"), parse_bytes("1.5 kB")
        (2048, 1500)
    """
    size = 0
    if match := BYTES.fullmatch(text.strip()):
        unit = (match[2] or "B").upper()
        size = int(float(match[1]) * (1024 if "I" in unit else 1000) ** "BKMGT".find(unit[:1]))
    if size < 1:
        raise ValueError(f"{text!r} is no size of memory; write a number and a unit, such as 512MiB, 2GiB or 1.5GB")
    return size


def _core_set(name: str, by_name: Mapping[str, Device]) -> Device:
    numbers = cores_of(name.removeprefix("cpu:"))
    wanted = [f"cpu:{number}" for number in numbers]
    missing = [each for each in wanted if each not in by_name]
    if name != f"cpu:{ranges(sorted(set(numbers)) or [0])}" or len(numbers) < 2 or missing:
        order = "each number must be greater than the one before, and neighbours are a range"
        why = f"there is no {missing[0]}" if missing else order
        raise ValueError(f"core set {name!r}: {why}")
    members = [by_name[each] for each in wanted]
    if len({member.memory for member in members}) > 1:
        raise ValueError(f"core set {name!r} reaches over several memories")
    cores = tuple(core for member in members for core in member.cores)
    return Device(name, "cpu", cores, len(members), members[0].memory, members[0].description)


def usable_cores() -> tuple[int, ...]:
    """Return the numbers of the cores that this process may use."""
    has_affinity = hasattr(os, "sched_getaffinity")  # macOS has none
    return tuple(sorted(os.sched_getaffinity(0)) if has_affinity else range(os.cpu_count() or 1))


@lru_cache(maxsize=1)
def cpu_model() -> str:
    """Return the processor's name, family and model, and the widest instructions that torch uses: virtual machines give
    many processors one name."""
    path = Path("/proc/cpuinfo")
    first, _, _ = (path.read_text() if path.exists() else "").partition("\n\n")
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}
    numbers = [f"{words} {fields[name]}" for name, words in NUMBERS_OF_CPU.items() if name in fields]
    name = fields.get("model name") or platform.processor() or platform.machine()
    return f"{name} ({', '.join([*numbers, torch.backends.cpu.get_cpu_capability()])})"


def supports(devices: Sequence[Device]) -> bool:
    """True for CPU devices of one memory, which the compiled interpreter runs."""
    numbers = {number for mine in core_numbers(devices) for number in mine}
    in_one_memory = len({device.memory for device in devices}) == 1
    return in_one_memory and all(device.kind == "cpu" for device in devices) and len(numbers) <= MOST_CORES


def least_memory_limit(devices: Sequence[Device]) -> int | None:
    """Return the least memory limit of devices, in bytes, which holds for a run that uses all of them; None without
    any.

    Examples:
        >>> cores = [Device(f"cpu:{core}", "cpu", (core,), 1, "host", "example", 2**30 >> core) for core in range(2)]
        >>> least_memory_limit(cores)
        536870912
    """
    return min((device.memory_limit for device in devices if device.memory_limit is not None), default=None)


def usable_devices(names: Sequence[str] | None, memory_limit: int | None = None) -> list[Device]:
    """Return devices of this machine by name, or all of them with sets of cores (`with_core_sets`); with a limit of
    their memory."""
    here = discover()
    chosen = with_core_sets(here, shared_domains()) if names is None else select(names, here)
    return chosen if memory_limit is None else [replace(device, memory_limit=memory_limit) for device in chosen]


def with_core_sets(devices: Sequence[Device], domains: Iterable[Domain] = ()) -> list[Device]:
    """Return devices and sets of their cores (`core_sets`), as many as can be simulated. With accelerators all cores
    are one device."""
    others = [device for device in devices if device.is_accelerator]
    cores = [device for device in devices if not device.is_accelerator][: MOST_CORES - len(others)]
    if others:
        return [*(core_sets(cores)[-1:] or cores), *others]
    return [*cores, *(core_sets(cores, domains) if supports(cores) else ())]


# Topology -----------------------------------------------------------------------------------------------------------


def shared_domains(root: Path = SYSFS) -> list[Domain]:
    """Return sets of two or more cores that share something, the smallest first."""
    texts = {path.read_text().strip() for pattern in SHARED for path in root.glob(pattern)}
    domains = {frozenset(cores_of(text)) for text in texts}
    return sorted((each for each in domains if len(each) > 1), key=lambda each: (len(each), min(each)))


def cores_of(text: str) -> list[int]:
    """Return the cores of a list as Linux writes it, or with `+` between its ranges, in the order of the text.

    Examples:
        >>> cores_of("0-2,64-65"), cores_of("0-2+8")
        ([0, 1, 2, 64, 65], [0, 1, 2, 8])
    """
    ends = [[int(end) for end in part.split("-")] for part in text.replace("+", ",").split(",") if part]
    return [core for part in ends for core in range(part[0], part[-1] + 1)]


def core_groups(cores: Sequence[int], domains: Iterable[Domain]) -> list[tuple[int, ...]]:
    """Return groups of cores that may work as one, smallest first: each domain, 2, 4, 8, ... neighbours within the
    smallest domain around them, and all cores.

    Args:
        cores: numbers of the cores that may be used.
        domains: cores that share something; of two that overlap without one inside the other the larger is left out.

    Examples:
        >>> core_groups(range(4), [])
        [(0, 1), (2, 3), (0, 1, 2, 3)]
    """
    usable = frozenset(cores)
    inside: list[Domain] = []
    for domain in sorted({usable & each for each in domains}, key=lambda each: (len(each), sorted(each))):
        if 1 < len(domain) < len(usable) and all(each <= domain or not each & domain for each in inside):
            inside.append(domain)
    groups = {each for domain in [*inside, usable] for each in _within(domain, inside)}
    return sorted((tuple(sorted(each)) for each in groups if len(each) > 1), key=lambda each: (len(each), each))


def _within(domain: Domain, inside: Sequence[Domain]) -> Iterator[Domain]:
    """Yield a domain, and groups of 2, 4, 8, ... of its parts."""
    parts: list[Domain] = []
    for smaller in reversed(inside):  # the largest first
        if smaller < domain and not any(smaller <= part for part in parts):
            parts.append(smaller)
    parts += [frozenset({core}) for core in domain.difference(*parts)]
    parts.sort(key=min)
    size = 2
    while size < len(parts):
        for first in range(0, len(parts) - size + 1, size):
            yield frozenset().union(*parts[first : first + size])
        size *= 2
    yield domain


def ranges(numbers: Sequence[int]) -> str:
    """Return increasing numbers as ranges with `+` between them; `cores_of` reads them.

    Examples:
        >>> ranges([0, 1, 2, 8, 10, 11])
        '0-2+8+10-11'
    """
    starts = [numbers[0], *(after for before, after in pairwise(numbers) if after > before + 1)]
    ends = [*(before for before, after in pairwise(numbers) if after > before + 1), numbers[-1]]
    return "+".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


# Identity -------------------------------------------------------------------------------------------------------------


def this_machine() -> dict[str, Any]:
    """Return `machine_record` without the number of threads, which callers choose."""
    return {key: value for key, value in machine_record().items() if key != "threads"}


def machine_record() -> dict[str, Any]:
    """Return the properties of the machine that times depend on; no names of hosts or people.

    Examples:
        >>> {"cpu", "cores", "torch", "threads"} <= set(machine_record())
        True
    """
    accelerators = list(accelerator_names().values())
    versions = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    cores = {"cpu": cpu_model(), "cores": len(usable_cores())}
    return cores | versions | ({"accelerators": accelerators} if accelerators else {})
