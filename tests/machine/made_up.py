"""Made-up machines of many cores: trees of files as Linux has them in sysfs."""

from __future__ import annotations

from pathlib import Path

from gst.machine.devices import Device, ranges


def made_up_system(root: Path, cores: int, threads: int = 1, cache: int = 1, numa: int = 1) -> Path:
    """A tree of sysfs: siblings are `cores / threads` apart, and `cache` physical cores share a level-3 cache, `numa` a
    NUMA node, as on most servers."""
    physical = cores // threads
    for core in range(cores):
        mine = core % physical

        def sharing(size: int, mine: int = mine) -> list[int]:
            first = mine // size * size
            return [first + n + physical * t for t in range(threads) for n in range(size)]

        files = {
            "topology/thread_siblings_list": sharing(1), "cache/index0/shared_cpu_list": sharing(1),
            "cache/index3/shared_cpu_list": sharing(cache), "topology/package_cpus_list": list(range(cores)),
        }  # fmt: skip
        for name, shared in files.items():
            path = root / f"cpu/cpu{core}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(ranges(sorted(shared)).replace("+", ",") + "\n")
        node = root / f"node/node{mine // numa}/cpulist"
        node.parent.mkdir(parents=True, exist_ok=True)
        node.write_text(ranges(sorted(sharing(numa))).replace("+", ",") + "\n")
    return root


def cores(count: int) -> list[Device]:
    return [Device(f"cpu:{core}", "cpu", (core,), 1, "host", "made up") for core in range(count)]
