"""Hosts of a Ray cluster, by kind of machine."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from gst.execution.measure import Log
from gst.machine.devices import Device, select, with_core_sets
from gst.placement.fleet.host import Host, RemoteWorker, WorkerLost
from gst.util.cluster import MEASUREMENTS
from gst.util.process import DISTRIBUTION, version

START_S = 90.0  # for the workers of all hosts to start, or to become free


@dataclass(eq=False)
class Kind:
    """Hosts with equal machines, whose measurements are comparable.

    Args:
        machine: see `gst.machine.devices.this_machine`.
        devices: of one of them; the numbers of their cores are those of that host.
        stopping: set when answers are not wanted any more.
        node_ids: Ray's identities of the hosts of all kinds, shared by all kinds; others came later.
        workers: started processes that measure there.
    """

    machine: dict[str, Any]
    devices: tuple[Device, ...]
    stopping: Event
    node_ids: set[str]
    workers: list[RemoteWorker] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Hash of the machine, 16 hexadecimal digits."""
        return hashlib.sha256(json.dumps(self.machine, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def num_hosts(self) -> int:
        return len({worker.node for worker in self.workers})

    @property
    def title(self) -> str:
        """Number of hosts, key, processor and cores, as text."""
        hosts = "1 host" if self.num_hosts == 1 else f"{self.num_hosts} hosts"
        return f"{hosts} of kind {self.key} ({self.machine['cpu']}, {self.machine['cores']} cores)"

    def selected(self, names: Sequence[str] | None, with_sets: bool) -> list[Device]:
        """Return its devices by name; all of them if None, with the sets of its cores if `with_sets`.

        Raises:
            ValueError: it has no such device.
        """
        if names is not None:
            return select(names, self.devices)
        return with_core_sets(self.devices) if with_sets else list(self.devices)


def kinds_with(names: Sequence[str] | None) -> list[Kind]:
    """Start workers and return all kinds of hosts that have these devices, those of most hosts first.

    Raises:
        ValueError: no host is free or has the devices, or one runs another version of this package.
    """
    stopping, nodes = Event(), _nodes()
    node_ids = {str(node["NodeID"]) for node in nodes}
    kinds: dict[str, Kind] = {}
    for worker, description in _start_all(nodes, stopping):
        kind = Kind(description["machine"], _devices(description), stopping, node_ids)
        kinds.setdefault(kind.key, kind).workers.append(worker)
    try:
        fit = select_kinds(list(kinds.values()), names)
    except ValueError:
        end_workers(worker for kind in kinds.values() for worker in kind.workers)
        raise
    end_workers(worker for kind in kinds.values() if kind not in fit for worker in kind.workers)
    return fit


def select_kinds(kinds: Sequence[Kind], names: Sequence[str] | None) -> list[Kind]:
    """Return the kinds that have these devices, those of most hosts first.

    Raises:
        ValueError: there is none; the message lists the kinds.
    """
    fit = []
    for kind in kinds:
        with suppress(ValueError):
            kind.selected(names, with_sets=True)
            fit.append(kind)
    if not fit:
        choices = "; ".join(f"{', '.join(each.name for each in kind.devices)} on {kind.title}" for kind in kinds)
        raise ValueError(f"no host has all of the devices {', '.join(names or [])}; there are {choices}")
    return sorted(fit, key=lambda kind: (-kind.num_hosts, kind.key))


def kind_of_search(kinds: Sequence[Kind], log: Path | None) -> Kind:
    """Return the kind of host for a search on `log`, and end the workers of other kinds: the kind with which the search
    began, or the first of `kinds` if it begins now (`log` is None, or empty).

    Raises:
        ValueError: it began on hosts of a kind that is missing, or without a cluster.
    """
    measured_kinds = {row["measurement"]["machine"].get("kind") for row in (Log(log).read() if log else ())}
    fit = [kind for kind in kinds if measured_kinds <= {kind.key}]
    end_workers(worker for kind in kinds if kind not in fit[:1] for worker in kind.workers)
    if not fit:
        before = ", ".join(sorted(f"kind {each}" if each else "this host" for each in measured_kinds))
        choices = "; ".join(kind.title for kind in kinds)
        raise ValueError(f"{log} was measured on {before}, there are {choices}; give another --out")
    return fit[0]


def replacement_worker(kind: Kind, lost_node: str) -> RemoteWorker:
    """Start a worker of that kind on the host where one was lost, or on one that joined the cluster since.

    Raises:
        WorkerLost: there is none.
    """
    import ray

    try:
        nodes = _nodes()
    except (ray.exceptions.RayError, ConnectionError) as error:
        raise WorkerLost(f"the cluster does not answer ({type(error).__name__}), so no host is free") from error
    new = [node for node in nodes if node["NodeID"] not in kind.node_ids]
    for node in [*(node for node in nodes if node["NodeID"] == lost_node), *new]:
        kind.node_ids.add(node["NodeID"])
        worker = _start(node, kind.stopping)
        with suppress(WorkerLost):
            if worker.describe(START_S)["machine"] == kind.machine:
                return worker
        worker.end()
    raise WorkerLost(f"host {lost_node[:12]} is lost, and no other of its kind is free")


def end_workers(workers: Iterable[RemoteWorker]) -> None:
    """End workers and their children."""
    for worker in workers:
        worker.end()


def _nodes() -> list[dict[str, Any]]:
    """Return the running hosts that measure, as Ray describes them."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get(MEASUREMENTS, 0) >= 1]
    return sorted(nodes, key=lambda node: str(node["NodeID"]))


def _start(node: dict[str, Any], stopping: Event) -> RemoteWorker:
    """Start a worker of a host, which reserves its share of the cores and GPUs."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    resources = node["Resources"]
    number = int(resources[MEASUREMENTS])
    shares = {name: resources.get(name, 0) / number for name in ("CPU", "GPU")}
    cores, gpus = (share if share < 1 else int(share) for share in shares.values())  # Ray wants whole ones from 1 on
    every_gpu = {"env_vars": {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}} if gpus else None
    actor = ray.remote(Host).options(
        num_cpus=cores, num_gpus=gpus, resources={MEASUREMENTS: 1}, max_restarts=0, runtime_env=every_gpu,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
    ).remote()  # fmt: skip
    return RemoteWorker(actor, node["NodeID"], stopping)


def _start_all(nodes: Sequence[dict[str, Any]], stopping: Event) -> list[tuple[RemoteWorker, dict[str, Any]]]:
    """Start all workers of the hosts that are free, and return them with their descriptions."""
    if not nodes:
        raise ValueError(
            f"no host of the cluster offers to measure; start it by ray start --resources '{{\"{MEASUREMENTS}\": 1}}' "
            "(see docs/fleet.md)"
        )
    workers = [_start(node, stopping) for node in nodes for _ in range(int(node["Resources"][MEASUREMENTS]))]
    deadline, started, reasons = time.monotonic() + START_S, [], set()
    for worker in workers:
        try:
            description = worker.describe(max(0.0, deadline - time.monotonic()))
        except WorkerLost as lost:
            reasons.add(str(lost))
            worker.end()
            continue
        if description["version"] != version():
            end_workers(workers)
            raise ValueError(
                f"host {worker.host} has {DISTRIBUTION} {description['version']}, the controller "
                f"{version()}; install the same on all"
            )
        started.append((worker, description))
    if not started:
        raise ValueError(f"no host is free to measure: {'; '.join(sorted(reasons))}")
    return started


def _devices(description: dict[str, Any]) -> tuple[Device, ...]:
    return tuple(Device(**{**each, "cores": tuple(each["cores"])}) for each in description["devices"])
