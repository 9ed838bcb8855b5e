"""`gst devices`: its options, its run and its output."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gst.machine.devices import Device


def add(commands: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the subcommand to the parser; `command` is `gst.cli.command_line.add_command`."""
    devices = command(
        commands, "devices", _devices, "list the devices that this process may use",
        "gst devices\ngst devices --sets --json devices.json",
    )  # fmt: skip
    sets = "list core sets too: 2, 4, 8, ... cores that work as one; they follow caches and NUMA nodes"
    devices.add_argument("--sets", action="store_true", help=sets)


def _devices(options: argparse.Namespace) -> dict[str, Any]:
    from dataclasses import asdict

    from rich.console import Console
    from rich.table import Table

    from gst.machine.devices import core_sets, discover
    from gst.machine.topology import shared_domains

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
