"""Cost graphs in a neutral JSON format, with the devices that they are for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from gst.graphs.graph import Graph
from gst.lowering.costs import Costs, Storages
from gst.machine.devices import Device
from gst.placement.machines import STREAMS
from gst.placement.task import Task
from gst.util.untrusted import read_object, shown

MOST = 1e15  # sums and products of such numbers are finite


class TaskFile:
    """A cost graph as a JSON object, with times in microseconds.

    - `devices`: objects with a `name`, a `memory` (default: its own) and a `memory_limit` in bytes (default: none)
    - `times_us`: for each device the time of each operation; null where it cannot run
    - `edges`: pairs (producer, consumer) of operations; the consumer is the greater number
    - `output_bytes`: size of the value of each operation
    - `latency_us`, `bytes_per_us`: of each copy between two memories
    - `resident_bytes` (default: 0): memory that each operation takes from beginning to end
    - `colocation` (default: each alone): group of each operation; a group is placed as one

    Raises:
        ValueError: the file is missing or damaged, or an entry does not fit the others.

    Examples:
        >>> _ = Path("pair.json").write_text('''{"devices": [{"name": "gpu:0"}, {"name": "gpu:1"}],
        ...     "times_us": [[5, 5], [5, null]], "edges": [[0, 1]], "output_bytes": [100, 0],
        ...     "latency_us": 10, "bytes_per_us": 50}''')
        >>> TaskFile(Path("pair.json")).task().times_us.tolist()
        [[5.0, 5.0], [5.0, inf]]
    """

    def __init__(self, path: Path) -> None:
        self.path, self.record = path, read_object(path)

    def task(self) -> Task:
        """Return the task of placing it on its devices."""
        entries = self._entry("devices")
        devices = [self._device(each) for each in entries] if isinstance(entries, list) else []
        if not devices or len({device.name for device in devices}) < len(devices):
            raise ValueError(f"{self.path}: devices is {shown(entries)}, want a list with a name for each")
        times = self._numbers("times_us", (len(devices), -1))
        count = times.shape[1]
        edges = self._numbers("edges", (-1, 2)).astype(np.int64).T
        output_bytes, resident_bytes, group = (
            self._numbers(key, (count,), default).astype(np.int64)
            for key, default in (("output_bytes", None), ("resident_bytes", [0] * count), ("colocation", range(count)))
        )
        if not count or (edges[0] >= edges[1]).any() or (edges[1] >= count).any():
            raise ValueError(f"{self.path}: want operations, and edges to greater numbers below {count}")
        latency_us, bytes_per_us = (float(self._numbers(key, ())) for key in ("latency_us", "bytes_per_us"))
        if not bytes_per_us:
            raise ValueError(f"{self.path}: bytes_per_us is 0, want more")
        apart = np.array([[one.memory != other.memory for other in devices] for one in devices])
        made = np.flatnonzero(output_bytes)
        costs = Costs(
            tuple(devices), edges, np.ones(count, bool), ~np.isin(np.arange(count), edges[0]), times, output_bytes,
            np.tile(output_bytes, (len(devices), 1)),
            Storages(output_bytes[made], made, np.stack([np.arange(len(made)), made])),
            latency_us * apart, np.where(apart, bytes_per_us, np.inf),
        )  # fmt: skip
        graph = Graph(np.log1p(np.where(np.isfinite(times), times, 0.0)).T.astype(np.float32), edges)
        colocation = np.unique(group, return_inverse=True)[1].astype(np.int64)
        return Task(self.path.stem, graph, costs, colocation, resident_bytes, STREAMS)

    def _device(self, record: Any) -> Device:
        name = record.get("name") if isinstance(record, dict) else None
        limit, memory = (record.get("memory_limit"), record.get("memory", name)) if name else (None, None)
        if not isinstance(name, str) or not isinstance(memory, str) or not (limit is None or type(limit) is int):
            raise ValueError(
                f"{self.path}: a device is {shown(record)}, want a name, and a memory_limit in bytes or none"
            )
        return Device(name, "device", (), 1, memory, f"of {self.path.name}", limit)

    def _entry(self, key: str, default: Any = None) -> Any:
        if key not in self.record and default is None:
            raise ValueError(f"{self.path}: {key!r} is missing")
        return self.record.get(key, default)

    def _numbers(self, key: str, shape: tuple[int, ...], default: Any = None) -> Float64[np.ndarray, "..."]:
        """Return numbers from 0 to `MOST`; null is infinite. In a shape -1 stands for any length."""
        value = self._entry(key, default)
        try:
            numbers = np.array(value, np.float64)
            numbers = numbers.reshape([max(each, 0) for each in shape] if not numbers.size else shape)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(f"{self.path}: {key} is {shown(value)}, want numbers of shape {shape}") from None
        numbers = np.where(np.isnan(numbers) & (key == "times_us"), np.inf, numbers)
        if not ((numbers >= 0) & ((numbers < MOST) | (np.isinf(numbers) & (key == "times_us")))).all():
            raise ValueError(f"{self.path}: {key}: want numbers from 0 to {MOST:g}")
        return numbers


def is_task_file(path: Path) -> bool:
    """True if the file is a JSON object with `devices` or `times_us`."""
    try:
        return not {"devices", "times_us"}.isdisjoint(read_object(path))
    except ValueError:
        return False
