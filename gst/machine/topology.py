"""Topology of the CPU as Linux reports it: cores that share a cache, a socket or a NUMA node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

SYSFS = Path("/sys/devices/system")
SHARED = ("cpu/cpu[0-9]*/cache/index*/shared_cpu_list", "cpu/cpu[0-9]*/topology/*_list", "node/node[0-9]*/cpulist")
"""Files that name cores which share something (Linux, Documentation/ABI/testing/sysfs-devices-system-cpu)."""

Domain = frozenset[int]


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
