"""Synthetic programs of any size, whose runtimes are sums over the whole graph and therefore known exactly."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int8, Int64

from gst.data.source import ItemSource
from gst.graphs.graph import CHUNK, Graph, chunks, empty_array

NUM_OPCODES = 8
NUM_LAYOUTS = 2
COPY = 16.0  # cost of a copy, times the size of the value
EVENNESS = 5.0  # of the two layouts in a region: parameter of a beta distribution
RUNS = 30.0  # mean number of neighbouring nodes with one layout, at most
VERSION = 2  # of what is drawn
IN_MEMORY = 1_000_000  # nodes; the arrays of a larger program are files while it is read


def synthetic_program(
    num_nodes: int = 50_000, num_configs: int = 256, num_regions: int = 4, configurable: float = 0.5, seed: int = 0,
    scratch: Path | None = None, chunk: int = CHUNK,
) -> Graph:  # fmt: skip
    """Generate a directed acyclic graph in which every configurable node has one of two layouts.

    The runtime of a configuration, in ns, is the sum over configurable nodes of size x cost[opcode, layout] plus, for
    every edge between two configurable nodes of different layouts, `COPY` times the size of the producer. In each
    region of each configuration neighbours share a layout in runs of another mean length. Counts of layouts do not show
    these lengths, on which the number of copies depends: a model needs messages along the edges, and all regions. Less
    than one node raises ValueError.

    Examples:
        >>> graph = synthetic_program(num_nodes=100, num_configs=4, seed=0)
        >>> graph.num_nodes, graph.config_features.shape[0]
        (100, 4)

    Args:
        configurable: share of configurable nodes. They come in pairs joined by an edge.
        scratch: an empty directory for the arrays, which are then memory-mapped; without one they are in memory.
        chunk: numbers drawn at once. It bounds the memory besides the arrays and does not change the graph.
    """
    if num_nodes < 1:
        raise ValueError(f"num_nodes is {num_nodes}; a program needs at least one")
    generator = np.random.default_rng(seed)
    first = np.arange(1, num_nodes - 1, max(2, round(2 / configurable)))
    config_nodes = np.sort(np.concatenate([first, first + 1])) if num_nodes > 2 else np.arange(num_nodes)
    edges = _edges(generator, num_nodes, first, scratch, chunk)
    opcodes = empty_array(scratch, "opcodes", (num_nodes,), np.int64)
    for part in chunks(num_nodes, chunk):
        opcodes[part] = generator.integers(NUM_OPCODES, size=part.stop - part.start)
    sizes = empty_array(scratch, "sizes", (num_nodes,), np.float64)
    node_features = empty_array(scratch, "node_features", (num_nodes, 1), np.float32)
    for part in chunks(num_nodes, chunk):
        sizes[part] = np.exp(generator.normal(3.0, 1.0, part.stop - part.start))
        node_features[part, 0] = np.log(sizes[part])

    cost = generator.uniform(0.5, 4.0, (NUM_OPCODES, NUM_LAYOUTS))
    layouts = _layouts(generator, (num_configs, num_regions), config_nodes * num_regions // num_nodes, scratch, chunk)
    work, kinds = sizes[config_nodes], opcodes[config_nodes]
    producers, consumers = _edges_between(edges, config_nodes, num_nodes, scratch, chunk)
    copied = work[producers]
    runtimes = np.array([(work * cost[kinds, chosen]).sum() for chosen in layouts])
    runtimes += COPY * np.array([(copied * (chosen[producers] != chosen[consumers])).sum() for chosen in layouts])
    return Graph(
        node_features=node_features,
        edges=edges,
        opcodes=opcodes,
        config_nodes=config_nodes,
        config_features=layouts[..., None],
        targets=np.round(runtimes * 1000),
        name=f"synthetic-{num_nodes}-{seed}",
    )


def _edges(
    generator: np.random.Generator, num_nodes: int, first: np.ndarray, scratch: Path | None, chunk: int
) -> Int64[np.ndarray, "2 edges"]:
    """Draw edges to every node but the first from two nodes shortly before it, and join pairs; sorted, each once."""
    reach = empty_array(scratch, "reach", (2, num_nodes - 1), np.int32)
    for row in reach:
        for part in chunks(num_nodes - 1, chunk):
            row[part] = np.minimum(
                generator.geometric(0.2, part.stop - part.start), np.arange(part.start, part.stop) + 1
            )
    farthest = max((int(row[part].max()) for row in reach for part in chunks(num_nodes - 1, chunk)), default=0)

    def of_producers(part: slice) -> tuple[np.ndarray, np.ndarray]:
        consumers = np.arange(part.start + 1, min(part.stop + farthest, num_nodes))
        producers = (consumers - reach[:, part.start : part.start + len(consumers)]).ravel()
        here = producers < part.stop
        here &= producers >= part.start
        joined = first[np.searchsorted(first, part.start) : np.searchsorted(first, part.stop)]
        keys = np.concatenate([(producers * num_nodes + np.tile(consumers, 2))[here], joined * num_nodes + joined + 1])
        keys.sort()
        return np.divmod(keys[np.diff(keys, prepend=-1) > 0], num_nodes)

    ends = np.cumsum([len(of_producers(part)[0]) for part in chunks(num_nodes, chunk)])
    edges = empty_array(scratch, "edges", (2, int(ends[-1])), np.int64)
    for part, end in zip(chunks(num_nodes, chunk), ends, strict=True):
        producers, consumers = of_producers(part)
        edges[:, end - len(producers) : end] = producers, consumers
    return edges


def _layouts(
    generator: np.random.Generator, regions: tuple[int, int], region: np.ndarray, scratch: Path | None, chunk: int
) -> Int8[np.ndarray, "configs configurable"]:
    """Draw runs of equal layouts, whose mean length and share of the second layout are those of a region."""
    is_second = generator.beta(EVENNESS, EVENNESS, regions)
    begins = np.exp(generator.uniform(-np.log(RUNS), 0.0, regions))
    layouts = empty_array(scratch, "layouts", (len(begins), len(region)), np.int8)
    for row, second, begin in zip(layouts, is_second, begins, strict=True):
        last = np.int8(0)
        for part in chunks(len(region), chunk):
            draws = generator.random(part.stop - part.start) / begin[region[part]]  # below 1 where a run begins
            latest = np.maximum.accumulate(np.where(draws < 1, np.arange(len(draws)), -1))
            row[part] = np.where(latest < 0, last, (draws < second[region[part]])[latest])
            last = row[part][-1]
    return layouts


def _edges_between(
    edges: np.ndarray, config_nodes: np.ndarray, num_nodes: int, scratch: Path | None, chunk: int
) -> Int64[np.ndarray, "2 between"]:
    """Return the edges from one configurable node to another, as positions among these."""
    position = empty_array(scratch, "position", (num_nodes,), np.int64)
    position[:] = -1
    position[config_nodes] = np.arange(len(config_nodes))
    between = [np.zeros((2, 0), np.int64)]
    for part in chunks(edges.shape[1], chunk):
        ends = position[edges[:, part]]
        between.append(ends[:, (ends >= 0).all(0)])
    return np.concatenate(between, axis=1)


@dataclass(frozen=True)
class SyntheticPrograms(ItemSource):
    """A dataset of `num_graphs` synthetic programs; arguments as in `synthetic_program`.

    Programs of more than a million nodes are files below `scratch` while they are read.
    """

    num_graphs: int = 1
    num_nodes: int = 50_000
    num_configs: int = 256
    num_regions: int = 4
    configurable: float = 0.5
    seed: int = 0
    scratch: str | None = None

    def items(self) -> range:
        """Return the seeds of the programs, which hosts may make at once."""
        return range(self.seed, self.seed + self.num_graphs)

    def load(self, item: int) -> Graph:
        """Return the program of a seed."""
        arguments = (self.num_nodes, self.num_configs, self.num_regions, self.configurable, item)
        if self.num_nodes <= IN_MEMORY:
            return synthetic_program(*arguments)
        # Mapped files stay readable until the arrays are garbage.
        with tempfile.TemporaryDirectory(prefix="synthetic-", dir=self.scratch, ignore_cleanup_errors=True) as scratch:
            return synthetic_program(*arguments, Path(scratch))

    def fingerprint(self) -> str:
        """Return the same text for equal programs."""
        arguments = {key: value for key, value in asdict(self).items() if key != "scratch"}
        return f"synthetic programs {VERSION}, numpy {np.__version__}: {arguments}"
