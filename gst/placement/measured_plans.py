"""Measured plans as graphs: the program is the graph, each plan is a configuration, its runtime the target."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Float64, Int64

from gst.data.source import ItemSource, fingerprint_of_files
from gst.execution.measure import Log, Measurement
from gst.graphs.graph import Graph
from gst.lowering.plan import Plan, ranks
from gst.machine.devices import Device, core_use
from gst.util.untrusted import plain, read_arrays, shown
from gst.util.writing import atomic_path

LOG = "measurements.jsonl"
GRAPH = "graph.npz"
VERSION = 2  # of the features of plans


@dataclass(frozen=True, eq=False)
class Profiled:
    """A program, without configurations, and its profile on devices before any plan runs.

    Args:
        output_bytes: of the value of each node.
        devices: where operations may run; they may share cores.
        times_us: profiled time of each operation alone on each device.
    """

    graph: Graph
    output_bytes: Int64[np.ndarray, " nodes"]
    devices: tuple[Device, ...]
    times_us: Float64[np.ndarray, "devices nodes"]


def plans_graph(
    profiled: Profiled, plans: Sequence[Plan], runtimes_ns: Float64[np.ndarray, " plans"] | None = None
) -> Graph:
    """Return the program with every operation configurable and one configuration per plan (`plan_features`).

    Node features are those of the program and the logarithm of the profiled time of the operation on each device.
    """
    graph = profiled.graph
    return Graph(
        node_features=np.hstack([graph.node_features, np.log1p(profiled.times_us.T)]).astype(np.float32),
        edges=graph.edges,
        opcodes=graph.opcodes,
        config_nodes=np.arange(graph.num_nodes),
        config_features=plan_features(profiled, plans),
        targets=np.full(len(plans), np.nan) if runtimes_ns is None else runtimes_ns,
        name=graph.name,
    )


def plan_features(profiled: Profiled, plans: Sequence[Plan]) -> Float32[np.ndarray, "plans nodes channels"]:
    """Return the configuration features of all nodes under each plan:

    - for each device, 1 if the node runs there;
    - for each core, its time on that core relative to an average operation. A device that spans several cores takes
      all of them, so that means over nodes are the loads of the cores;
    - the number of its inputs from another thread, and the logarithm of their bytes. Devices that begin with the same
      core share a thread, so that nothing crosses between `cpu:0` and `cpu:0-1`;
    - its delay relative to program order, as a share of the program (0 without priorities).

    Args:
        plans: they name the devices of `profiled`, in that order.
    """
    nodes, (producers, consumers) = np.arange(profiled.graph.num_nodes), profiled.graph.edges
    names = tuple(device.name for device in profiled.devices)
    use, output_bytes = core_use(profiled.devices), profiled.output_bytes.astype(np.float64)
    relative = profiled.times_us / max(profiled.times_us.mean(), 1e-9)
    leaders = [device.cores[0] if device.cores else -1 - place for place, device in enumerate(profiled.devices)]
    thread = np.array([leaders.index(each) for each in leaders])
    features = np.empty((len(plans), len(nodes), sum(use.shape) + 3), np.float32)
    for rows, plan in zip(features, plans, strict=True):
        placed = plan.homes(names)  # plans may name some of them
        time = relative[placed, nodes][:, None]
        crossing = thread[placed[producers]] != thread[placed[consumers]]
        readers, read = consumers[crossing], output_bytes[producers[crossing]]
        received = np.log1p(np.bincount(readers, read, len(nodes)))
        later = (ranks(plan) - nodes) / len(nodes)
        columns = np.stack([np.bincount(readers, minlength=len(nodes)), received, later], axis=1)
        rows[:] = np.hstack([placed[:, None] == np.arange(len(use)), use[placed] * time, columns])
    return features


@dataclass(frozen=True, eq=False)
class MeasuredSet:
    """Plans with their measurements, in order, in a directory of `gst measure`; `header` begins its log."""

    header: dict[str, Any]
    profiled: Profiled
    plans: tuple[Plan, ...]
    measurements: tuple[Measurement, ...]

    def graph(self) -> Graph:
        """Return the program with the plans that ran and their median runtimes in ns; ValueError if none ran."""
        ran = [(plan, seen) for plan, seen in zip(self.plans, self.measurements, strict=True) if seen.outcome == "ok"]
        if not ran:
            reasons = sorted({seen.reason for seen in self.measurements})
            raise ValueError(f"no plan of {self.header['name']} ran to the end: {'; '.join(reasons) or 'none tried'}")
        return plans_graph(
            self.profiled, [plan for plan, _ in ran], np.array([seen.median_ms for _, seen in ran]) * 1e6
        )


def write_header(directory: Path, header: dict[str, Any], profiled: Profiled) -> None:
    """Write the graph, then the first line of the log, of a directory of measured plans, each atomically."""
    graph = profiled.graph
    with atomic_path(directory / GRAPH) as partial, partial.open("wb") as file:
        np.savez_compressed(
            file, node_features=graph.node_features, edges=graph.edges, opcodes=graph.opcodes,
            output_bytes=profiled.output_bytes,
        )  # fmt: skip
    on_devices = {"devices": [asdict(each) for each in profiled.devices], "times_us": profiled.times_us.tolist()}
    Log(directory / LOG).append(header | on_devices)


def read_measured(directory: Path) -> MeasuredSet:
    """Read a directory of `gst measure`, complete or not.

    Raises:
        ValueError: the directory holds no measurements, or damaged ones.
    """
    records = Log(directory / LOG).read()
    if not records:
        raise ValueError(f"{directory} holds no measured plans; make them with gst measure PROGRAM --out {directory}")
    header, *rest = records
    try:
        arrays = read_arrays(directory / GRAPH)
        graph = Graph(arrays["node_features"], arrays["edges"], arrays["opcodes"], name=header["name"])
        devices = tuple(Device(**{**each, "cores": tuple(each["cores"])}) for each in header["devices"])
        profiled = Profiled(graph, arrays["output_bytes"], devices, np.array(header["times_us"], np.float64))
        plans = tuple(Plan.from_dict(record["plan"]) for record in rest)
        measurements = tuple(Measurement.from_dict(record["measurement"]) for record in rest)
        _check(profiled, plans, measurements)
        return MeasuredSet(header, profiled, plans, measurements)
    except (OSError, KeyError, TypeError, ValueError, AttributeError, OverflowError, IndexError) as error:
        raise ValueError(
            f"{directory} does not hold what gst measure writes ({type(error).__name__}: {plain(error)}); measure again"
        ) from error


def _check(profiled: Profiled, plans: Sequence[Plan], measurements: Sequence[Measurement]) -> None:
    nodes, names = profiled.graph.num_nodes, [device.name for device in profiled.devices]
    graph, output_bytes, times = profiled.graph, profiled.output_bytes, profiled.times_us
    if (graph.node_features.dtype, graph.edges.dtype, graph.opcodes.dtype) != (np.float32, np.int64, np.int64):
        raise ValueError("node_features is not float32, or edges or opcodes are not int64")
    if output_bytes.shape != (nodes,) or output_bytes.dtype != np.int64 or output_bytes.min() < 0:
        raise ValueError(f"output_bytes is {output_bytes.dtype} {output_bytes.shape}, want bytes of {nodes} nodes")
    if times.shape != (len(names), nodes) or not np.isfinite(times).all() or times.min() < 0:
        raise ValueError(f"times_us has shape {times.shape}, want times of {nodes} nodes on {len(names)} devices")
    if not all(type(core) is int for device in profiled.devices for core in device.cores):
        raise ValueError("cores of a device are no numbers")
    for plan in plans:
        if len(plan.placement) != nodes or not set(plan.devices) <= set(names):
            raise ValueError(f"a plan places {len(plan.placement)} nodes on {', '.join(plan.devices)}")
    for seen in measurements:
        if seen.outcome == "ok" and not 0 < seen.median_ms < np.inf:
            raise ValueError(f"a plan ran for {shown(seen.median_ms)} ms")


class MeasuredPlans(ItemSource):
    """Programs and their measured plans, one graph for each directory that `gst measure` wrote; targets are ns.

    Args:
        directories: of `gst measure --out`, or patterns of them (`runs/measured/*`); they share a list of devices.
    """

    unit = "ns"

    def __init__(self, directories: Sequence[str]) -> None:
        self.directories = tuple(directories)

    def paths(self) -> list[Path]:
        """Return the matching directories by name, each once; ValueError if nothing was measured in one."""
        paths: set[Path] = set()
        for pattern in self.directories:
            logs = glob.glob(f"{pattern}/{LOG}")  # noqa: PTH207 (absolute patterns too)
            if not logs:
                raise ValueError(f"no measured plans in {pattern!r}; make them with gst measure PROGRAM --out DIR")
            paths |= {Path(log).parent for log in logs}
        return sorted(paths)

    def fingerprint(self) -> str:
        """Return the same text for equal files."""
        files = [path / name for path in self.paths() for name in (GRAPH, LOG)]
        return fingerprint_of_files(files, f"measured plans {VERSION}")

    def items(self) -> list[Path]:
        """Return the directories, which hosts may read at once."""
        return self.paths()

    def load(self, item: Path) -> Graph:
        """Return the graph of a directory; ValueError if its list of devices is not that of the first directory."""
        measured = read_measured(item)
        ours, theirs = ([each.name for each in one.profiled.devices] for one in (self._first, measured))
        if ours != theirs:
            raise ValueError(
                f"{item} was measured on {', '.join(theirs)}, the first directory on {', '.join(ours)}; a dataset has "
                "one list of devices"
            )
        try:
            return measured.graph()
        except ValueError as error:
            raise ValueError(f"{item}: {plain(error, 400)}") from error

    @cached_property
    def _first(self) -> MeasuredSet:
        return read_measured(self.paths()[0])
