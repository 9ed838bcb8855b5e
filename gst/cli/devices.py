"""`gst devices`: its options, its run and its output."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from gst.util.process import wait_briefly
from gst.util.progress import Bars

if TYPE_CHECKING:
    from rich.table import Table

    from gst.machine.devices import Device
    from gst.machine.rates import Rates

AGAIN_S = 120.0  # that rates may be measured again for, where other processes are busy


def add_devices(commands: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the subcommand to the parser; `command` is `gst.cli.command_line.add_command`."""
    devices = command(
        commands, "devices", _devices, "list the devices that this process may use, and how fast they are",
        "gst devices\ngst devices --measure --json devices.json\ngst devices --sets",
    )  # fmt: skip
    measure = (
        "time operations on every kind of device and the links between them, for up to three minutes; kept for this "
        "machine and this version of torch in $XDG_CACHE_HOME/gst/rates"
    )
    devices.add_argument("--measure", action="store_true", help=measure)
    sets = "list core sets too: 2, 4, 8, ... cores that work as one; they follow caches and NUMA nodes"
    devices.add_argument("--sets", action="store_true", help=sets)


def _devices(options: argparse.Namespace) -> dict[str, Any]:
    # Read when torch is loaded: spinning OpenMP threads would steal the cores of other devices.
    wait_briefly()
    from dataclasses import asdict, replace

    from rich.console import Console

    from gst.execution.probes import measure_rates
    from gst.machine.devices import core_sets, discover
    from gst.machine.load import LoadGate, repeated_while_busy
    from gst.machine.rates import save_rates, saved_rates
    from gst.machine.topology import shared_domains

    found = discover()
    sets = core_sets(found, shared_domains())
    if options.measure:
        with Bars() as bars:
            bars.show("waiting for quiet cores", 0, 1)
            gate = LoadGate(progress=bars.show)
            gate.wait()
            measure = partial(measure_rates, [*found, *sets], found, progress=bars.show)
            attempts = repeated_while_busy(measure, replace(gate, patience_s=AGAIN_S))
            save_rates(min(attempts, key=lambda rates: rates.load))
    rates = saved_rates()
    console = Console()
    console.print(_device_table([*found, *sets] if options.sets else found, rates))
    if rates and any(link.copies for link in rates.links):
        console.print(_link_table(rates))
    for line in _notes(found, sets, rates):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    listed = {"devices": [asdict(device) for device in found], "sets": [asdict(device) for device in sets]}
    return {**listed, "rates": asdict(rates) if rates else None}


def _device_table(devices: Sequence[Device], rates: Rates | None) -> Table:
    from rich.table import Table

    title = ", ".join(dict.fromkeys(device.description for device in devices))
    table = Table(title=title, min_width=min(len(title), 80))
    table.add_column("device")
    measured = ("matrix\nGFLOP/s", "convolution\nGFLOP/s", "pointwise\nGB/s", "sum\nGB/s", "small\nus") if rates else ()
    for name in ("threads", "memory", *measured):
        table.add_column(name, justify="right")
    for device in devices:
        row = [device.name, str(device.threads), device.memory]
        if rates:
            known = rates.of(device)
            names = ("matrix_gflops", "convolution_gflops", "elementwise_gb_per_s", "reduction_gb_per_s", "small_us")
            row += ["-" if known is None else f"{getattr(known, name):.3g}" for name in names]
        table.add_row(*row)
    return table


def _link_table(rates: Rates) -> Table:
    """Latency and bandwidth of copies between memories; pinned memory of the host in the last two columns."""
    from rich.table import Table

    table = Table()
    for name in ("from", "to", "us", "GB/s", "pinned us", "pinned GB/s"):
        table.add_column(name, justify="left" if name in ("from", "to") else "right")
    for link in rates.links:
        if link.copies is not None:
            of = link.copies
            values = of.latency_us, of.gb_per_s, of.pinned_latency_us, of.pinned_gb_per_s
            table.add_row(link.source, link.destination, *("-" if each is None else f"{each:.3g}" for each in values))
    return table


def _notes(found: Sequence[Device], sets: Sequence[Device], rates: Rates | None) -> list[str]:
    from gst.machine.load import BUSY

    lines = []
    if sets:
        lines.append(
            f"Core sets are devices too: {sets[0].name} is {sets[0].threads} cores that work as one, so an operation "
            "there waits for all of them. gst devices --sets lists more; --devices takes any, such as "
            f"{found[0].name},{found[1].name},{sets[0].name}."
        )
    if gpu := next((device.name for device in found if device.is_accelerator), None):
        lines.append(f"Streams of a GPU are devices too: {gpu}/stream:1 is one more stream of {gpu}.")
    if rates:
        lines.append("Values are handed over within a memory, and copied to and from GPUs (--json has all links).")
    if rates is None:
        lines.append("Not measured on this machine with this torch yet: gst devices --measure.")
    elif rates.load > BUSY:
        words = f"Others took {rates.load:.0%} of the cores while this was measured"
        lines.append(f"{words}; gst devices --measure again when the machine is quiet.")
    return lines
