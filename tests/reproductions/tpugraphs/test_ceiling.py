from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from experiments.reproductions.tpugraphs.ceiling import noise_ceiling
from gst.cost.metrics import kendall_tau
from gst.data.tpugraphs import merge_repeats
from gst.graphs.graph import Graph
from gst.graphs.segments import segment

NOISE = 3e4
TRUTHS: dict[str, Callable] = {
    "wide": lambda rng, n: rng.normal(0, 5, n),
    "narrow": lambda rng, n: rng.normal(0, 1, n),
    "clusters": lambda rng, n: rng.choice([0.0, 3.0, 4.0, 10.0, 2e4], n) + rng.normal(0, 0.3, n),
}


def simulated(kind: str, seed: int, distinct: int = 800) -> tuple[Graph, np.ndarray]:
    """Single runs of configurations measured once to eight times, as rows of a file, and the true runtime of each."""
    rng = np.random.default_rng(seed)
    truth = 8e7 + NOISE * TRUTHS[kind](rng, distinct)
    which = rng.permutation(np.repeat(np.arange(distinct), np.minimum(rng.geometric(0.65, distinct), 8)))
    features = ((which[:, None] >> np.arange(10)) & 1).astype(np.int8)
    runs = Graph(
        np.zeros((2, 1), np.float32), np.zeros((2, 0), np.int64), config_nodes=np.array([1]),
        config_features=features[:, None], targets=truth[which] + NOISE * rng.normal(0, 1, len(which)),
    )  # fmt: skip
    return runs, truth[which]


def errors_of_ceiling(kind: str, merge: bool) -> tuple[np.ndarray, np.ndarray]:
    """Estimated minus true ceiling, and the standard errors given with it."""
    errors, standard_errors = [], []
    for seed in range(6):
        graph, truth = simulated(kind, seed)
        if merge:
            of_row = replace(graph, targets=truth)
            graph, truth = merge_repeats(graph), merge_repeats(of_row).targets
        ceiling = noise_ceiling(graph, draws=4, seed=seed)
        errors.append(ceiling.tau - kendall_tau(truth, graph.targets))
        standard_errors.append(ceiling.standard_error)
        assert ceiling.noise == pytest.approx(NOISE, rel=0.15)
    return np.array(errors), np.array(standard_errors)


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("kind", TRUTHS)
def test_the_ceiling_is_that_of_the_truth_within_its_error(kind: str, merge: bool) -> None:
    errors, standard_errors = errors_of_ceiling(kind, merge)
    assert abs(errors.mean()) < 0.012 + 2 * errors.std() / len(errors) ** 0.5
    assert (abs(errors) < 0.02 + 4 * standard_errors.mean()).all() and standard_errors.max() < 0.06


def test_the_seed_is_all_the_randomness_and_segmented_graphs_have_the_same_ceiling() -> None:
    graph, _ = simulated("wide", 0, distinct=100)
    ceiling = noise_ceiling(graph, draws=2)
    assert noise_ceiling(graph, draws=2) == ceiling == noise_ceiling(segment(graph), draws=2)
    assert noise_ceiling(graph, draws=2, seed=1) != ceiling


def test_without_repeats_or_runtimes_there_is_no_ceiling() -> None:
    graph, truth = simulated("wide", 0, distinct=50)
    once = merge_repeats(graph)
    once = replace(once, counts=np.ones(50, np.int64), spreads=np.zeros(50))
    with pytest.raises(ValueError, match="no configuration measured twice"):
        noise_ceiling(once)
    with pytest.raises(ValueError, match="placeholders"):
        noise_ceiling(replace(graph, targets=np.zeros_like(truth)))
