"""Rates of the devices of this machine (FLOP/s, GB/s) and of the links between them, kept in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gst.machine.devices import Device, machine_file, this_machine
from gst.util.untrusted import plain, read_object
from gst.util.writing import atomic_write

SCHEMA = 4


@dataclass(frozen=True)
class CopyRates:
    """Rates of copies from one memory to another, which take `latency_us` and their bytes over `gb_per_s`.

    Args:
        latency_us, gb_per_s: of a copy from or to pageable memory of a host, or between accelerators, alone.
        pinned_latency_us, pinned_gb_per_s: from or to pinned memory of a host; None between devices of one kind.
    """

    latency_us: float
    gb_per_s: float
    pinned_latency_us: float | None
    pinned_gb_per_s: float | None


@dataclass(frozen=True)
class Link:
    """Link from one device to another.

    Args:
        source, destination: names of the device that has a value and of the one that reads it.
        copies: rates between memories; None within a GPU.
    """

    source: str
    destination: str
    copies: CopyRates | None


@dataclass(frozen=True)
class Rates:
    """Measured rates of a machine.

    Args:
        machine: processor, cores, version of torch and GPUs; rates are valid for no other.
        operations: one for each number of threads that was measured, and for each GPU.
        load: share of the cores that others took meanwhile, 0 .. 1.
    """

    machine: Mapping[str, Any]
    operations: tuple[OperationRates, ...]
    links: tuple[Link, ...]
    load: float
    time: str

    def of(self, device: Device) -> OperationRates | None:
        """Return the measured rates of a device like this one; None without them."""
        for each in self.operations:
            if each.device == device.name or (each.kind == device.kind == "cpu" and each.threads == device.threads):
                return each
        return None


def rates_path(directory: Path | None = None) -> Path:
    """Return the file of this machine's rates: below `cache_directory()` by default."""
    return machine_file("rates", directory)


def save_rates(rates: Rates, directory: Path | None = None) -> Path:
    """Write rates completely or not at all; return the file."""
    path, record = rates_path(directory), asdict(rates)
    with atomic_write(path) as file:
        json.dump({"schema": SCHEMA, **record}, file, indent=1)
    return path


def saved_rates(directory: Path | None = None) -> Rates | None:
    """Read the rates of this machine with this version of torch; None if there are none.

    Raises:
        ValueError: the file is damaged; the message names it.
    """
    path = rates_path(directory)
    if not path.exists():
        return None
    try:
        record = read_object(path)
        if record.pop("schema") != SCHEMA or record["machine"] != this_machine():
            return None
        operations = tuple(OperationRates(**each) for each in record.pop("operations"))
        links = tuple(map(_link, record.pop("links")))
        return Rates(operations=operations, links=links, **record)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: damaged rates of devices ({plain(error)}); run gst devices --measure") from error


def _link(record: dict[str, Any]) -> Link:
    copies = record.pop("copies")
    return Link(copies=None if copies is None else CopyRates(**copies), **record)


@dataclass(frozen=True)
class OperationRates:
    """Rates of one device, and so of every device of its kind with as many threads; fp32.

    Args:
        device: name of the measured one.
        matrix_gflops, convolution_gflops: of matrix products and convolutions.
        elementwise_gb_per_s: read and written by element-wise operations.
        reduction_gb_per_s: read by sums.
        small_us: of an operation on eight elements; on a CPU this is the call.
    """

    device: str
    kind: str
    threads: int
    matrix_gflops: float
    convolution_gflops: float
    elementwise_gb_per_s: float
    reduction_gb_per_s: float
    small_us: float
