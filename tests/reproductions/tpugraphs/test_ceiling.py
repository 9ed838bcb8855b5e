from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.reproductions.tpugraphs.ceiling import noise_ceiling
from gst.cost.metrics import kendall_tau
from gst.data.tpugraphs import merge_repeats, read
from gst.graphs.graph import Graph, groups_of_equals
from gst.graphs.segments import segment

NOISE = 3e4
TRUTHS: dict[str, Callable] = {
    "wide": lambda rng, n: rng.normal(0, 5, n),
    "narrow": lambda rng, n: rng.normal(0, 1, n),
    "clusters": lambda rng, n: rng.choice([0.0, 3.0, 4.0, 10.0, 2e4], n) + rng.normal(0, 0.3, n),
}


def simulated(kind: str, seed: int, noise: Callable | None = None, distinct: int = 800) -> tuple[Graph, np.ndarray]:
    """Single runs of configurations measured once to eight times, as rows of a file, and the true runtime of each."""
    rng = np.random.default_rng(seed)
    truth = 8e7 + NOISE * TRUTHS[kind](rng, distinct)
    which = rng.permutation(np.repeat(np.arange(distinct), np.minimum(rng.geometric(0.65, distinct), 8)))
    errors = (noise or (lambda rng, n: rng.normal(0, 1, n)))(rng, len(which))
    features = ((which[:, None] >> np.arange(10)) & 1).astype(np.int8)
    runs = Graph(
        np.zeros((2, 1), np.float32), np.zeros((2, 0), np.int64), config_nodes=np.array([1]),
        config_features=features[:, None], targets=truth[which] + NOISE * errors,
    )  # fmt: skip
    return runs, truth[which]


def errors_of_ceiling(
    kind: str, merge: bool, noise: Callable | None = None, times: int = 6
) -> tuple[np.ndarray, np.ndarray]:
    """Estimated minus true ceiling, and the standard errors given with it."""
    errors, standard_errors = [], []
    for seed in range(times):
        graph, truth = simulated(kind, seed, noise)
        if merge:
            of_row = replace(graph, targets=truth)
            graph, truth = merge_repeats(graph), merge_repeats(of_row).targets
        ceiling = noise_ceiling(graph, draws=4, seed=seed)
        errors.append(ceiling.tau - kendall_tau(truth, graph.targets))
        standard_errors.append(ceiling.standard_error)
        assert noise is not None or ceiling.noise == pytest.approx(NOISE, rel=0.15)
    return np.array(errors), np.array(standard_errors)


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("kind", TRUTHS)
def test_the_ceiling_is_that_of_the_truth_within_its_error(kind: str, merge: bool) -> None:
    errors, standard_errors = errors_of_ceiling(kind, merge)
    assert abs(errors.mean()) < 0.012 + 2 * errors.std() / len(errors) ** 0.5
    assert (abs(errors) < 0.02 + 4 * standard_errors.mean()).all() and standard_errors.max() < 0.06


def test_noise_of_two_humps_moves_it_little() -> None:
    """As AlexNet's: about half of the runs take 65 microseconds more than the others."""
    errors, _ = errors_of_ceiling("wide", True, lambda rng, n: rng.choice([-1.0, 1.0], n) + rng.normal(0, 0.2, n))
    assert abs(errors.mean()) < 0.03


@pytest.mark.e2e
def test_noise_is_as_large_as_repeats_of_about_that_runtime_say() -> None:
    """Pooled over all of them it would be far too large for the half that is measured exactly."""
    exact, truth = simulated("wide", 2, lambda rng, n: np.zeros(n), distinct=1000)
    rng = np.random.default_rng(0)
    deviation = np.where(truth > 8e7, 0.05 * NOISE, NOISE)
    graph = replace(exact, targets=truth + deviation * rng.normal(size=len(truth)))
    for part in (truth > 8e7 + 4 * NOISE, truth < 8e7 - 4 * NOISE):
        part = np.flatnonzero(part)
        ceiling = noise_ceiling(graph, part, draws=3)
        assert ceiling.tau == pytest.approx(kendall_tau(truth[part], graph.targets[part]), abs=0.03)


def test_what_the_noise_leaves_open_counts_nothing() -> None:
    """Noise added to measured means would find more order than there is."""
    graph, truth = simulated("narrow", 0)
    rng = np.random.default_rng(0)
    naive = kendall_tau(graph.targets + rng.normal(0, NOISE, graph.num_configs), graph.targets)
    ceiling = noise_ceiling(graph, draws=4)
    assert naive - kendall_tau(truth, graph.targets) > 0.05 > abs(ceiling.tau - kendall_tau(truth, graph.targets))


def test_a_part_is_held_against_its_own_targets() -> None:
    """A part whose runtimes lie close together is harder to order than all; its noise is known from all."""
    graph, truth = simulated("wide", 1)
    part = np.flatnonzero(abs(truth - 8e7) < NOISE)
    ceiling = noise_ceiling(graph, part, draws=4)
    assert ceiling.tau == pytest.approx(kendall_tau(truth[part], graph.targets[part]), abs=0.08)
    assert ceiling.tau < noise_ceiling(graph, draws=4).tau - 0.2


def test_the_seed_is_all_the_randomness_and_segmented_graphs_have_the_same_ceiling() -> None:
    graph, _ = simulated("wide", 0, distinct=100)
    ceiling = noise_ceiling(graph, draws=2)
    assert noise_ceiling(graph, draws=2) == ceiling == noise_ceiling(segment(graph), draws=2)
    assert noise_ceiling(graph, draws=2, seed=1) != ceiling


def test_exact_measurements_leave_nothing_open() -> None:
    graph, truth = simulated("wide", 0, distinct=50)
    ceiling = noise_ceiling(replace(graph, targets=truth))
    assert (ceiling.tau, ceiling.standard_error, ceiling.noise) == (1, 0, 0)


def test_without_repeats_or_runtimes_there_is_no_ceiling() -> None:
    graph, truth = simulated("wide", 0, distinct=50)
    once = merge_repeats(graph)
    once = replace(once, counts=np.ones(50, np.int64), spreads=np.zeros(50))
    with pytest.raises(ValueError, match="no configuration measured twice"):
        noise_ceiling(once)
    with pytest.raises(ValueError, match="placeholders"):
        noise_ceiling(replace(graph, targets=np.zeros_like(truth)))


@pytest.mark.e2e
def test_alexnet_agrees_with_its_repeats(alexnet: Path) -> None:
    """A pair of configurations that a run orders rightly with the balance c is ordered alike by two runs with c * c.
    So the tau between two runs of each configuration bounds the ceiling of one: c * c <= c, and by Jensen its root."""
    runs = read(alexnet, merge=False)
    group = groups_of_equals(runs.config_features)[1]
    repeated = np.flatnonzero(np.bincount(group)[group] > 1)
    first = repeated[np.unique(group[repeated], return_index=True)[1]]
    others = np.setdiff1d(repeated, first)
    second = others[np.unique(group[others], return_index=True)[1]]
    between_runs = kendall_tau(runs.targets[first], runs.targets[second])
    ceiling = noise_ceiling(runs, first, draws=3)
    assert between_runs + 0.02 < ceiling.tau < between_runs**0.5 - 0.02
    assert 15e3 < ceiling.noise < 35e3
    graph = read(alexnet)
    assert noise_ceiling(graph, np.flatnonzero(graph.counts > 1), draws=3).tau > ceiling.tau  # means are less noisy


@pytest.mark.parametrize("draws", [-1, 0, 1])
def test_one_draw_has_no_spread(draws: int) -> None:
    with pytest.raises(ValueError, match=f"draws is {draws}"):
        noise_ceiling(simulated("wide", 0, distinct=50)[0], draws=draws)
