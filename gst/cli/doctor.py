"""`gst doctor` and `gst devices`, gaps and devices of this machine: their options, runs and output."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gst.util.process import DISTRIBUTION, version_of

if TYPE_CHECKING:
    from gst.machine.devices import Device

ENOUGH_GIB = 5  # of a disk, for traces, stores and checkpoints
SYMBOLS = {"well": ("ok", "green"), "note": ("note", "yellow"), "problem": ("PROBLEM", "red")}


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Args:
        what: the name of the check.
        state: `problem` if something will fail, `note` if it will be slower or poorer.
        found: the result in words.
        advice: the remedy; empty if all is well.
    """

    what: str
    state: Literal["well", "note", "problem"]
    found: str
    advice: str = ""


def _noted(what: str, found: str, advice: str) -> Finding:
    """Return a note if there is advice."""
    return Finding(what, "note" if advice else "well", found, advice)


def add(commands: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `doctor` and `devices` to the parser; `command` is `gst.cli.command_line.add_command`."""
    summary = "check the installation, devices, threads, disk and W&B, and advise (exit 1 if something will fail)"
    command(commands, "doctor", _doctor, summary, "gst doctor\ngst doctor --json doctor.json")
    devices = command(
        commands, "devices", _list_devices, "list the devices that this process may use",
        "gst devices\ngst devices --sets --json devices.json",
    )  # fmt: skip
    sets = "list core sets too: 2, 4, 8, ... cores that work as one; they follow caches and NUMA nodes"
    devices.add_argument("--sets", action="store_true", help=sets)


def _doctor(options: argparse.Namespace) -> dict[str, Any]:
    from rich.console import Console
    from rich.markup import escape

    found, console = list(findings()), Console(soft_wrap=True, highlight=False)
    width = max(len(each.what) for each in found)
    for each in found:
        symbol, colour = SYMBOLS[each.state]
        console.print(f"[{colour}]{symbol:<8}[/] {each.what:<{width}}  {escape(each.found)}")
        if each.advice:
            console.print(f"{'':<{width + 9}}  -> {escape(each.advice)}")
    problems = sum(each.state == "problem" for each in found)
    console.print(f"{problems} problems, {sum(each.state == 'note' for each in found)} notes")
    return {"exit_status": int(problems > 0), "findings": [asdict(each) for each in found]}


def findings() -> Iterator[Finding]:
    """Run all checks, each after its prerequisites."""
    yield _python()
    yield _packages()
    yield _metis()
    yield _compiler()
    yield from _devices()
    yield _threads()
    yield from _disk()
    yield _wandb()


def _python() -> Finding:
    found = f"{platform.python_implementation()} {platform.python_version()}, {platform.system()} {platform.machine()}"
    if (3, 11) <= sys.version_info[:2] <= (3, 14):
        return Finding("python", "well", found)
    return Finding("python", "problem", found, "make a virtual environment with Python 3.11 to 3.14")


def _packages() -> Finding:
    """Check the version of each required package."""
    from packaging.requirements import Requirement

    if not version_of(DISTRIBUTION):
        words = f"{DISTRIBUTION} is not installed: these are its files"
        return Finding("packages", "problem", words, "pip install -e .")
    wrong, every = [], [Requirement(line) for line in metadata.requires(DISTRIBUTION) or ()]
    required = [each for each in every if each.marker is None or each.marker.evaluate({"extra": ""})]
    for each in required:
        if not (version := version_of(each.name)):
            wrong.append(f"{each} is missing")
        elif not each.specifier.contains(version, prereleases=True):
            wrong.append(f"{each} is wanted, {version} is here")
    if wrong:
        return Finding("packages", "problem", "; ".join(wrong), f"pip install --upgrade {DISTRIBUTION}")
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in (DISTRIBUTION, "torch", "lightning"))
    return Finding("packages", "well", f"{versions}; all {len(required)} required ones fit")


def _metis() -> Finding:
    try:
        from pymetis import part_graph

        part_graph(2, adjacency=[[1], [0, 2], [1, 3], [2]])
    except Exception as error:  # any exception of a broken build
        return Finding("metis", "problem", f"{type(error).__name__}: {error}", "pip install --force-reinstall pymetis")
    return Finding("metis", "well", "cuts a graph")


def _compiler() -> Finding:
    from gst.util.compiled import compiler

    if (found := compiler()) is None:
        advice = "install g++ (Debian: apt install g++) or set CXX; plans on core sets and fusion need it"
        return Finding("compiler", "problem", "no C++ compiler", advice)
    return Finding("compiler", "well", found)


def _devices() -> Iterator[Finding]:
    import torch

    from gst.machine.devices import discover

    devices, quota, advice = discover(), _cores_of_group(), ""
    names = f"{', '.join(device.name for device in devices)} ({devices[0].description})"
    if quota is not None and quota < sum(device.kind == "cpu" for device in devices) - 0.5:
        advice = f"this container gets the time of {quota:g} cores: bind it to as many (taskset -c, --cpuset-cpus)"
    elif not torch.accelerator.is_available() and Path("/dev/nvidia0").exists():
        advice = f"a GPU is here, but torch {torch.__version__} cannot use it: see pytorch.org/get-started"
    yield _noted("devices", names, advice)


def _cores_of_group() -> float | None:
    """Return the number of cores whose time this control group may take; None if there is no limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _threads() -> Finding:
    import torch

    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_PROC_BIND", "KMP_AFFINITY")
    given = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    advice = ""
    if "OMP_PROC_BIND" in os.environ or "KMP_AFFINITY" in os.environ:
        advice = "unset these: plans pin the threads of their devices themselves"
    elif os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE":
        advice = "unset OMP_WAIT_POLICY: with it, operations on core sets take twice as long in your process"
    return _noted("threads", "; ".join([f"{torch.get_num_threads()} of torch", *given]), advice)


def _disk() -> Iterator[Finding]:
    """Check that results and caches can be written, and have space."""
    from gst.util.compiled import cache_directory

    for what, folder in (("here", Path.cwd()), ("cache", cache_directory())):
        home = next(each for each in (folder, *folder.parents) if each.exists())
        free = shutil.disk_usage(home).free / 2**30
        try:
            tempfile.TemporaryFile(dir=home).close()
        except OSError as error:
            advice = "go to a directory you may write to" if what == "here" else "set XDG_CACHE_HOME to one"
            yield Finding(what, "problem", f"{folder}: {error.strerror}", advice)
            continue
        advice = "free space: traces and stores take gigabytes" if free < ENOUGH_GIB else ""
        yield _noted(what, f"{folder}: {free:.1f} GiB free", advice)


def _wandb() -> Finding:
    """Say where runs go, without importing the client."""
    from gst.training.plan_run import usual_mode

    if mode := os.environ.get("WANDB_MODE"):
        sent = "nothing is sent" if mode in ("offline", "disabled", "dryrun") else "runs are sent"
        return Finding("wandb", "well", f"WANDB_MODE={mode}: {sent}")
    if usual_mode() == "online":
        return Finding("wandb", "well", "logged in")
    return Finding("wandb", "well", "not logged in: runs stay on this machine (to send them: wandb login, wandb sync)")


def _list_devices(options: argparse.Namespace) -> dict[str, Any]:
    from rich.console import Console
    from rich.table import Table

    from gst.machine.devices import core_sets, discover, shared_domains

    devices = discover()
    sets = core_sets(devices, shared_domains())
    title = ", ".join(dict.fromkeys(device.description for device in devices))
    table = Table(title=title, min_width=min(len(title), 80))
    table.add_column("device")
    for name in ("threads", "memory"):
        table.add_column(name, justify="right")
    for device in [*devices, *sets] if options.sets else devices:
        table.add_row(device.name, str(device.threads), device.memory)
    console = Console()
    console.print(table)
    for line in _notes(devices, sets):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return {"devices": [asdict(device) for device in devices], "sets": [asdict(device) for device in sets]}


def _notes(devices: Sequence[Device], sets: Sequence[Device]) -> Iterator[str]:
    if sets:
        yield (
            f"Core sets are devices too: {sets[0].name} is {sets[0].threads} cores that work as one, so an operation "
            "there waits for all of them. gst devices --sets lists more; --devices takes any, such as "
            f"{devices[0].name},{devices[1].name},{sets[0].name}."
        )
    if gpu := next((device.name for device in devices if device.is_accelerator), None):
        yield f"Streams of a GPU are devices too: {gpu}/stream:1 is one more stream of {gpu}."
