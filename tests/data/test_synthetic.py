from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from reference import slow_work_and_copies

from gst.data.synthetic import SyntheticPrograms, synthetic_program


def small(**changes: float) -> dict:
    return {"num_nodes": 300, "num_configs": 80, "num_regions": 5, "configurable": 0.3, "seed": 2} | changes


def test_a_program_depends_on_its_arguments_alone() -> None:
    digests = [
        synthetic_program(**small(**change)).digest() for change in ({}, {}, {"seed": 3}, {"num_regions": 6})
    ]
    assert digests[0] == digests[1] and len(set(digests)) == 3


def test_runtimes_are_work_plus_copies() -> None:
    """The costs are not told, so solve for them: 80 equations in 32 unknowns leave no room for more."""
    graph = synthetic_program(**small())
    sizes = np.exp(graph.node_features[:, 0].astype(np.float64))
    work, copies = zip(*(slow_work_and_copies(graph, sizes, config) for config in range(80)), strict=True)
    cost = np.linalg.lstsq(np.array(work), graph.targets / 1000 - np.array(copies), rcond=None)[0]
    np.testing.assert_allclose(np.array(work) @ cost + copies, graph.targets / 1000, rtol=1e-6)
    assert min(copies) > 0


def test_programs_are_acyclic_and_configurable_nodes_come_in_pairs() -> None:
    graph = synthetic_program(**small())
    assert (
        (graph.edges[0] < graph.edges[1]).all()
        and graph.config_features.max() == 3
        and graph.config_features.min() == 0
    )
    pairs = graph.config_nodes.reshape(-1, 2)
    assert (pairs[:, 1] == pairs[:, 0] + 1).all()
    edges = set(map(tuple, graph.edges.T.tolist()))
    assert len(edges) == graph.num_edges and all(tuple(pair) in edges for pair in pairs.tolist())


def test_no_region_tells_the_runtime() -> None:
    """Best linear guess of the runtime from the choices made in one region of ten."""
    graph = synthetic_program(4000, 1500, 10, 0.1, seed=0)
    region = graph.config_nodes * 10 // graph.num_nodes
    half = graph.num_configs // 2
    for r in range(10):
        mix = np.stack([(graph.config_features[:, region == r, 0] == c).mean(1) for c in range(4)], 1)
        coefficients = np.linalg.lstsq(mix[:half], graph.targets[:half], rcond=None)[0]
        assert np.corrcoef(mix[half:] @ coefficients, graph.targets[half:])[0, 1] < 0.7


@pytest.mark.parametrize("num_nodes", [3, 4, 10, 1000])
@pytest.mark.parametrize("configurable", [0.01, 0.5, 1.0])
def test_any_size_makes_a_program(num_nodes: int, configurable: float) -> None:
    graph = synthetic_program(num_nodes, 2, 1, configurable)
    assert graph.num_nodes == num_nodes and graph.num_configs == 2 and len(graph.config_nodes)


def test_small_programs_are_made_or_refused() -> None:
    for num_nodes in (0, 1, 2):
        try:
            assert synthetic_program(num_nodes, 2, 1).num_nodes == num_nodes
        except ValueError as refusal:
            assert "node" in str(refusal)


def test_a_dataset_holds_different_programs_and_repeats_them() -> None:
    dataset = SyntheticPrograms(3, **small())
    graphs = list(dataset)
    assert (
        len({graph.name for graph in graphs})
        == 3
        == len({replace(graph, name="").digest() for graph in graphs})
    )
    assert [graph.digest() for graph in dataset] == [graph.digest() for graph in graphs]
