"""Small tasks and cost graphs for the searches."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from experiments.reproductions.public_problems.cost_graphs import NO_OVERHEAD, CostGraph
from gst.graphs.graph import Graph
from gst.lowering.calls import Costs, Storages
from gst.machine.devices import Device
from gst.placement.task import Task

SHARED = Path(__file__).parents[3] / "shared" / "data" / "placement"
FIXTURE = Path(__file__).parents[1] / "fixtures" / "cost_graphs" / "bert24_inference.json"


def random_edges(nodes: int, generator: np.random.Generator, chance: float) -> np.ndarray:
    """Every node but the first reads the one of some lesser number."""
    pairs = {(int(generator.integers(node)), node) for node in range(1, nodes)}
    pairs |= {(a, b) for b in range(nodes) for a in range(b) if generator.random() < chance}
    return np.array(sorted(pairs), np.int64).reshape(-1, 2).T


def cost_graph(nodes: int, seed: int, accelerators: int = 3, limit: float = 400.0, together: bool = True) -> CostGraph:
    """Random times, sizes about 100, a node that cannot run on accelerators, and colocation of some pairs."""
    generator = np.random.default_rng(seed)
    edges = random_edges(nodes, generator, 1.5 / nodes)
    cpu_ms = generator.uniform(1, 20, nodes)
    accelerator_ms = cpu_ms / 10
    accelerator_ms[int(generator.integers(nodes))] = np.inf
    colocation = np.arange(nodes)
    if together:
        colocation[generator.integers(nodes)] = colocation[generator.integers(nodes)]
    transfer = np.where(np.isin(np.arange(nodes), edges[0]), generator.uniform(0, 4, nodes), 0.0)
    return CostGraph(
        "made", np.arange(nodes), edges, cpu_ms, accelerator_ms, transfer, generator.uniform(50, 150, nodes),
        np.unique(colocation, return_inverse=True)[1].astype(np.int64), np.zeros(nodes, bool), accelerators, 2, limit,
    )  # fmt: skip


def made_task(nodes: int, seed: int, devices: int = 2, limit: int | None = None, shared_core: bool = False) -> Task:
    """Costs only: nodes of 1 to 20 us that make 100 bytes each, 100 bytes a microsecond, 2 us latency."""
    generator = np.random.default_rng(seed)
    edges = random_edges(nodes, generator, 1.0 / nodes)
    each = tuple(
        Device(f"cpu:{n}", "cpu", (0, 1) if shared_core and n == devices - 1 else (n,), 1, f"m{n}", "made", limit)
        for n in range(devices)
    )
    apart = ~np.eye(devices, dtype=bool)
    size = np.full(nodes, 100, np.int64)
    costs = Costs(
        each, edges, np.ones(nodes, bool), ~np.isin(np.arange(nodes), edges[0]),
        np.round(generator.uniform(1, 20, (devices, nodes)), 3), size, np.zeros((devices, nodes), np.int64),
        Storages(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((2, 0), np.int64)),
        2.0 * apart, np.where(apart, 100.0, np.inf),
    )  # fmt: skip
    graph = Graph(np.ones((nodes, 1), np.float32), edges, name="made")
    return Task("made", graph, costs, np.arange(nodes), size, NO_OVERHEAD)
