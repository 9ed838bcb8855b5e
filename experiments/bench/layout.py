"""Programs of the size and the shape of TpuGraphs' layout collections, for benchmarks without such files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gst.data.tpugraphs import TpuGraphs
from gst.graphs.graph import Graph

SIZES = (4000, 7500, 5500, 9000, 6000, 7000)
LAYOUTS = 6  # that a tensor may have


def programs(data: Path | None, seed: int = 0) -> list[Graph]:
    """The npz files below `data`, or six made ones of 4,000 to 9,000 nodes.

    Raises:
        ValueError: there are no files.
    """
    if data is None:
        return [layout_program(nodes, seed + i) for i, nodes in enumerate(SIZES)]
    return list(TpuGraphs([str(data / "**" / "*.npz")]))


def layout_program(num_nodes: int, seed: int, num_configs: int = 200) -> Graph:
    """140 node features, 1.7 edges per node and 8 % configurable nodes, as in the genuine AlexNet; each of their 18
    configuration columns is part of one of three tensor layouts. The runtime is additive, with noise."""
    random = np.random.default_rng(seed)
    nodes = np.arange(1, num_nodes)
    near = nodes - np.minimum(random.geometric(0.3, len(nodes)), nodes)
    far_ends = random.choice(nodes, int(0.7 * num_nodes))
    far = far_ends - np.minimum(random.geometric(0.05, len(far_ends)), far_ends)
    edges = np.unique(np.stack([np.append(near, far), np.append(nodes, far_ends)]), axis=1)
    step = random.integers(1, 24, num_nodes)
    config_nodes = np.unique(np.minimum(np.cumsum(step), num_nodes - 1)[: int(0.08 * num_nodes)])
    layouts = random.integers(-1, 6, (LAYOUTS, 6)).astype(np.int8)
    chosen = random.integers(LAYOUTS, size=(num_configs, len(config_nodes), 3))
    cost = random.lognormal(0, 1, (len(config_nodes), 3, LAYOUTS))
    runtime = cost[np.arange(len(config_nodes))[:, None], np.arange(3), chosen].sum((1, 2))
    return Graph(
        random.normal(size=(num_nodes, 140)).astype(np.float32),
        edges,
        random.integers(0, 120, num_nodes),
        config_nodes,
        layouts[chosen].reshape(num_configs, len(config_nodes), 18),
        np.round(1e4 * runtime * random.normal(1, 0.005, num_configs)),
        name=f"layout-{num_nodes}-{seed}",
    )
