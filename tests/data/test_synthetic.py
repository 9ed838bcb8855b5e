from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gst.data.synthetic
from gst.data.synthetic import SyntheticPrograms, synthetic_program
from gst.graphs.graph import Graph


def drawn_at_once(
    num_nodes: int, num_configs: int, num_regions: int = 20, configurable: float = 0.1, seed: int = 0
) -> Graph:
    """Slow twin: every array whole, every draw a single call, every sum over all configurations at once."""
    generator = np.random.default_rng(seed)
    nodes = np.arange(1, num_nodes)
    reach = np.minimum(generator.geometric(0.2, (2, len(nodes))), nodes)
    edges = np.stack([np.concatenate([nodes - reach[0], nodes - reach[1]]), np.tile(nodes, 2)])
    opcodes = generator.integers(8, size=num_nodes)
    sizes = np.exp(generator.normal(3.0, 1.0, num_nodes))
    cost = generator.uniform(0.5, 4.0, (8, 4))

    first = np.arange(1, num_nodes - 1, max(2, round(2 / configurable)))
    config_nodes = np.sort(np.concatenate([first, first + 1])) if num_nodes > 2 else np.arange(num_nodes)
    edges = np.unique(np.concatenate([edges, np.stack([first, first + 1])], axis=1), axis=1)
    region = config_nodes * num_regions // num_nodes
    mixes = generator.dirichlet(np.full(4, 0.5), (num_configs, num_regions)).cumsum(-1)
    draws = generator.random((num_configs, len(config_nodes)))
    choices = np.minimum((draws[..., None] > mixes[:, region]).sum(-1), 3)

    column = np.full(num_nodes, -1)
    column[config_nodes] = np.arange(len(config_nodes))
    between = edges[:, (column[edges] >= 0).all(0)]
    runtimes = (sizes[config_nodes] * cost[opcodes[config_nodes], choices]).sum(1)
    differs = choices[:, column[between[0]]] != choices[:, column[between[1]]]
    runtimes += (differs * sizes[between[0]]).sum(1)
    features = np.log(sizes)[:, None].astype(np.float32)
    given = choices[..., None].astype(np.int8)
    return Graph(features, edges, opcodes, config_nodes, given, np.round(runtimes * 1000), name="twin")


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


def test_a_program_depends_on_its_arguments_alone() -> None:
    digests = [synthetic_program(**small(**change)).digest() for change in ({}, {}, {"seed": 3}, {"num_regions": 6})]
    assert digests[0] == digests[1] and len(set(digests)) == 3


def test_no_region_tells_the_runtime() -> None:
    """Best linear guess of the runtime from the choices made in one region of ten."""
    graph = synthetic_program(4000, 1500, 10, 0.1, seed=0)
    region = graph.config_nodes * 10 // graph.num_nodes
    half = graph.num_configs // 2
    for r in range(10):
        mix = np.stack([(graph.config_features[:, region == r, 0] == c).mean(1) for c in range(4)], 1)
        coefficients = np.linalg.lstsq(mix[:half], graph.targets[:half], rcond=None)[0]
        assert np.corrcoef(mix[half:] @ coefficients, graph.targets[half:])[0, 1] < 0.7


@pytest.mark.parametrize("num_nodes", [1, 2, 3, 4, 10, 1000])
@pytest.mark.parametrize("configurable", [0.01, 0.5, 1.0])
def test_any_size_makes_a_program(num_nodes: int, configurable: float) -> None:
    graph = synthetic_program(num_nodes, 2, 1, configurable)
    assert graph.num_nodes == num_nodes and graph.num_configs == 2 and len(graph.config_nodes)
    with pytest.raises(ValueError, match="needs at least one"):
        synthetic_program(0, 2, 1)


def test_a_dataset_holds_different_programs_and_repeats_them() -> None:
    dataset = SyntheticPrograms(3, **small())
    graphs = list(dataset)
    assert len({graph.name for graph in graphs}) == 3 == len({replace(graph, name="").digest() for graph in graphs})
    assert [graph.digest() for graph in dataset] == [graph.digest() for graph in graphs]
