from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import gst.data.synthetic
from gst.data.synthetic import SyntheticPrograms, synthetic_program
from gst.graphs.graph import Graph


def drawn_at_once(
    num_nodes: int, num_configs: int, num_regions: int = 4, configurable: float = 0.5, seed: int = 0
) -> Graph:
    """Slow twin: every array whole, every draw a single call, every sum over all configurations at once."""
    generator = np.random.default_rng(seed)
    nodes = np.arange(1, num_nodes)
    reach = np.minimum(generator.geometric(0.2, (2, len(nodes))), nodes)
    edges = np.stack([np.concatenate([nodes - reach[0], nodes - reach[1]]), np.tile(nodes, 2)])
    opcodes = generator.integers(8, size=num_nodes)
    sizes = np.exp(generator.normal(3.0, 1.0, num_nodes))
    cost = generator.uniform(0.5, 4.0, (8, 2))

    first = np.arange(1, num_nodes - 1, max(2, round(2 / configurable)))
    config_nodes = np.sort(np.concatenate([first, first + 1])) if num_nodes > 2 else np.arange(num_nodes)
    edges = np.unique(np.concatenate([edges, np.stack([first, first + 1])], axis=1), axis=1)
    region = config_nodes * num_regions // num_nodes
    is_second = generator.beta(5.0, 5.0, (num_configs, num_regions))
    begins = np.exp(generator.uniform(-np.log(30.0), 0.0, (num_configs, num_regions)))
    draws = generator.random((num_configs, len(config_nodes))) / begins[:, region]
    layouts = np.zeros(draws.shape, np.int8)
    for config, node in np.ndindex(*draws.shape):
        if draws[config, node] < 1:
            layouts[config, node] = draws[config, node] < is_second[config, region[node]]
        elif node:
            layouts[config, node] = layouts[config, node - 1]

    column = np.full(num_nodes, -1)
    column[config_nodes] = np.arange(len(config_nodes))
    between = edges[:, (column[edges] >= 0).all(0)]
    runtimes = (sizes[config_nodes] * cost[opcodes[config_nodes], layouts]).sum(1)
    differs = layouts[:, column[between[0]]] != layouts[:, column[between[1]]]
    runtimes += 16 * (differs * sizes[between[0]]).sum(1)
    features = np.log(sizes)[:, None].astype(np.float32)
    return Graph(features, edges, opcodes, config_nodes, layouts[..., None], np.round(runtimes * 1000), name="twin")


@pytest.mark.parametrize(
    "arguments",
    [(1, 2), (2, 3), (3, 2), (4, 2, 1, 1.0), (300, 80, 5, 0.3, 2), (1000, 4, 20, 1.0, 1), (20_000, 12, 20, 0.1, 3)],
)
def test_a_program_drawn_in_pieces_is_the_program_drawn_at_once(tmp_path: Path, arguments: tuple) -> None:
    truth = drawn_at_once(*arguments)
    in_files = {chunk: tmp_path / str(chunk) for chunk in (7, 64, 10**6) if arguments[0] < 2000 or chunk > 60}
    for chunk, scratch in in_files.items():
        scratch.mkdir()
        program = synthetic_program(*arguments, chunk=chunk, scratch=scratch)
        assert isinstance(program.edges, np.memmap) and program.digest() == truth.digest()
        assert synthetic_program(*arguments, chunk=chunk).digest() == truth.digest()


def test_memory_does_not_grow_with_a_program_in_files(tmp_path: Path) -> None:
    peaks = []
    for num_nodes in (40_000, 400_000):
        (tmp_path / str(num_nodes)).mkdir()
        tracemalloc.start()
        synthetic_program(num_nodes, 4, configurable=200 / num_nodes, scratch=tmp_path / str(num_nodes), chunk=5000)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]


def test_a_giant_program_is_read_from_files_that_are_gone_when_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory = next(iter(SyntheticPrograms(**small())))
    monkeypatch.setattr(gst.data.synthetic, "IN_MEMORY", 299)
    program = next(iter(SyntheticPrograms(**small(), scratch=str(tmp_path))))
    assert isinstance(program.node_features, np.memmap) and not list(tmp_path.iterdir())
    assert program.digest() == in_memory.digest()


def test_the_fingerprint_tells_programs_apart_without_making_them() -> None:
    changes: list[dict] = [
        {"seed": 3},
        {"num_nodes": 10**12},
        {"num_configs": 3},
        {"num_regions": 6},
        {"num_graphs": 2},
    ]
    prints = [SyntheticPrograms(**small(**change)).fingerprint() for change in [{}, *changes]]
    assert len(set(prints)) == len(prints)
    assert SyntheticPrograms(**small(), scratch="elsewhere").fingerprint() == prints[0]


def small(**changes: float) -> dict:
    return {"num_nodes": 300, "num_configs": 80, "num_regions": 5, "configurable": 0.3, "seed": 2} | changes


def test_sums_and_single_regions_do_not_show_the_runtime_and_copies_do() -> None:
    """Correlation of the runtime with its best linear prediction from counts of layouts by opcode, from the copies in
    one region, and from all copies."""
    graph = synthetic_program(4000, 1000)
    layouts, region = graph.config_features[..., 0], graph.config_nodes * 4 // graph.num_nodes
    column = np.full(graph.num_nodes, -1)
    column[graph.config_nodes] = np.arange(len(graph.config_nodes))
    producers, consumers = column[graph.edges[:, (column[graph.edges] >= 0).all(0)]]
    copies = layouts[:, producers] != layouts[:, consumers]
    kinds = graph.opcodes[graph.config_nodes]

    def correlation(features: np.ndarray) -> float:
        design = np.column_stack([features, np.ones(len(features))])
        fitted = np.linalg.lstsq(design[:500], graph.targets[:500], rcond=None)[0]
        return float(np.corrcoef(design[500:] @ fitted, graph.targets[500:])[0, 1])

    assert correlation(np.stack([layouts[:, kinds == kind].sum(1) for kind in range(8)], 1)) < 0.4
    assert all(correlation(copies[:, region[producers] == number].sum(1)) < 0.75 for number in range(4))
    assert correlation(copies.sum(1)) > 0.95


@pytest.mark.parametrize("num_nodes", [1, 2, 3, 4, 10, 1000])
@pytest.mark.parametrize("configurable", [0.01, 0.5, 1.0])
def test_any_size_makes_a_program(num_nodes: int, configurable: float) -> None:
    graph = synthetic_program(num_nodes, 2, 1, configurable)
    assert graph.num_nodes == num_nodes and graph.num_configs == 2 and len(graph.config_nodes)
    with pytest.raises(ValueError, match="needs at least one"):
        synthetic_program(0, 2, 1)
