"""Tasks of random costs, and plans made slowly."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gst.graphs.graph import Graph
from gst.lowering.calls import Costs, Storages
from gst.machine.devices import Device
from gst.placement.task import Task
from gst.simulation.simulator import Contention

NO_OVERHEAD = Contention(switch_us=0.0, hand_over_us=0.0, wake_us=0.0)
MANY = 10**8  # bytes that every node takes of its memory


def apart(count: int, limit: int | None = None) -> tuple[Device, ...]:
    """Devices with a memory each."""
    return tuple(Device(f"cuda:{n}", "cuda", (), 1, f"cuda:{n}", "test", limit) for n in range(count))


def core_sets(count: int = 2) -> tuple[Device, ...]:
    """Cores of one memory, and all of them together."""
    alone = tuple(Device(f"cpu:{n}", "cpu", (n,), 1, "host", "test") for n in range(count))
    return *alone, Device(f"cpu:0-{count - 1}", "cpu", tuple(range(count)), count, "host", "test")


def made_up(
    edges: np.ndarray, times_us: np.ndarray, devices: Sequence[Device], output_bytes: np.ndarray | None = None,
    colocation: np.ndarray | None = None, resident_bytes: np.ndarray | None = None, latency_us: float = 2.0,
    contention: Contention = NO_OVERHEAD,
) -> Task:  # fmt: skip
    """A task without a program. Copies take `latency_us` and go at 1,000 bytes/us."""
    nodes = times_us.shape[1]
    zeros = np.zeros(nodes, np.int64)
    different = np.array([[a.memory != b.memory for b in devices] for a in devices])
    none = np.zeros(0, np.int64)
    costs = Costs(
        tuple(devices), edges, np.ones(nodes, bool), zeros.astype(bool), times_us,
        zeros if output_bytes is None else output_bytes, np.zeros((len(devices), nodes), np.int64),
        Storages(none, none, np.zeros((2, 0), np.int64)),
        latency_us * different, np.where(different, 1_000.0, np.inf),
    )  # fmt: skip
    return Task(
        "random", Graph(np.zeros((nodes, 1), np.float32), edges), costs,
        np.arange(nodes) if colocation is None else colocation,
        zeros if resident_bytes is None else resident_bytes, contention,
    )  # fmt: skip


def random_edges(generator: np.random.Generator, nodes: int, degree: float) -> np.ndarray:
    """Each node reads about `degree` of the 20 before it."""
    pairs = {
        (int(generator.integers(max(0, node - 20), node)), node)
        for node in range(1, nodes)
        for _ in range(generator.poisson(degree))
    }
    return np.array(sorted(pairs), np.int64).reshape(-1, 2).T


def random_task(seed: int, nodes: int = 40, devices: Sequence[Device] = (), grouped: bool = True) -> Task:
    """Devices of different speeds; some nodes cannot run on the last; groups of up to three nodes."""
    generator = np.random.default_rng(seed)
    devices = devices or apart(int(generator.integers(2, 5)))
    times = generator.lognormal(2, 1, nodes) * generator.uniform(0.5, 2.0, (len(devices), nodes))
    times[-1, generator.random(nodes) < 0.2] = np.inf
    groups = generator.integers(nodes // 2, size=nodes) if grouped else np.arange(nodes)
    return made_up(
        random_edges(generator, nodes, 1.5), times, devices, generator.integers(1, 20_000, nodes),
        np.unique(groups, return_inverse=True)[1].astype(np.int64), np.full(nodes, MANY),
        contention=Contention(hand_over_us=1.5),
    )  # fmt: skip


class Slow:
    """What both list schedules know, in lists and dictionaries."""

    def __init__(self, task: Task) -> None:
        costs, self.task = task.costs, task
        self.nodes, self.devices = range(task.num_nodes), range(len(task.devices))
        self.producers = {n: [p for p, c in costs.edges.T.tolist() if c == n] for n in self.nodes}
        self.consumers = {n: [c for p, c in costs.edges.T.tolist() if p == n] for n in self.nodes}
        self.members = {g: [n for n in self.nodes if task.colocation[n] == g] for g in set(task.colocation.tolist())}
        self.room = {name: math.inf if limit is None else limit for name, limit in task.memories.items()}
        self.place: dict[int, int] = {}
        self.end: dict[int, float] = {}
        self.decided: dict[int, int] = {}
        self.free = dict.fromkeys(self.devices, 0.0)
        self.memory = [device.memory for device in task.devices]
        self.copied: dict[tuple[int, str], float] = {}  # value, memory -> when it is there
        self.lanes: dict[str, float] = {}  # memory -> when its lane of copies is free
        self.rank: dict[int, float] = {}
        for node in reversed(self.nodes):
            able = [float(costs.times_us[d, node]) for d in self.devices if costs.times_us[d, node] < math.inf]
            moves = [self.transfer(node, a, b) for a in self.devices for b in self.devices]
            on = max((sum(moves) / len(moves) + self.rank[c] for c in self.consumers[node]), default=0.0)
            self.rank[node] = sum(able) / len(able) + on
        self.order = sorted(self.nodes, key=lambda n: (-self.rank[n], n))

    def transfer(self, node: int, a: int, b: int) -> float:
        costs = self.task.costs
        moved = costs.latency_us[a, b] + costs.output_bytes[node] / costs.bytes_per_us[a, b]
        return float(moved + self.task.contention.hand_over_us * (a != b))

    def group_time(self, node: int, device: int) -> float:
        """Of all that goes with a node where nothing is decided yet, otherwise of the node."""
        group = self.task.colocation[node]
        members = [node] if group in self.decided else self.members[group]
        return float(sum(self.task.times_us[device, each] for each in members))

    def may(self, node: int, device: int) -> bool:
        group = self.task.colocation[node]
        if group in self.decided:
            return self.decided[group] == device
        load = sum(int(self.task.resident_bytes[each]) for each in self.members[group])
        return self.group_time(node, device) < math.inf and load <= self.room[self.task.devices[device].memory]

    def arrives(self, node: int, device: int, is_placed: bool = False) -> float:
        """When all values are there; the lanes of copies carry them if it is placed."""
        memory, there, copied, lanes = self.memory[device], [0.0], dict(self.copied), dict(self.lanes)
        for p in self.producers[node]:
            source, moved = self.memory[self.place[p]], self.transfer(p, self.place[p], device)
            if not self.task.costs.copies_queue or source == memory:
                there.append(self.end[p] + moved)
                continue
            if (p, memory) not in copied:
                copied[p, memory] = lanes[source] = max(self.end[p], lanes.get(source, 0.0)) + moved
            there.append(copied[p, memory])
        if is_placed:
            self.copied, self.lanes = copied, lanes
        return max(there)

    def put(self, node: int, device: int, start: float) -> None:
        group = self.task.colocation[node]
        if group not in self.decided:
            self.decided[group] = device
            for each in self.members[group]:
                self.room[self.task.devices[device].memory] -= int(self.task.resident_bytes[each])
        self.place[node] = device
        self.end[node] = self.free[device] = start + float(self.task.times_us[device, node])

    def heft(self) -> list[int] | None:
        for node in self.order:
            able = [device for device in self.devices if self.may(node, device)]
            if not able:
                return None
            start = {device: max(self.free[device], self.arrives(node, device)) for device in able}
            best = min(able, key=lambda device: start[device] + self.group_time(node, device))
            self.arrives(node, best, is_placed=True)
            self.put(node, best, start[best])
        return [self.place[node] for node in self.nodes]

    def etf(self) -> list[int] | None:
        while len(self.place) < len(self.nodes):
            offers = []
            for device in self.devices:
                ready = [
                    n for n in self.order if n not in self.place and all(p in self.place for p in self.producers[n])
                ]
                ready = [n for n in ready if self.may(n, device)]
                if ready:
                    node = min(
                        ready, key=lambda n: (max(self.arrives(n, device), self.free[device]), self.order.index(n))
                    )
                    start = max(self.arrives(node, device), self.free[device])
                    lost = self.group_time(node, device) - min(self.group_time(node, other) for other in self.devices)
                    decided = self.task.colocation[node] in self.decided
                    offers.append((start + (0.0 if decided else lost), self.order.index(node), device, node, start))
            if not offers:
                return None
            _, _, device, node, start = min(offers)
            self.put(node, device, start)
        return [self.place[node] for node in self.nodes]
