"""Features that variants leave out, held-out configurations, and results computed once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from experiments.reproductions.kaggle import hlo_features as study
from experiments.reproductions.kaggle.node_features import FEATURES
from experiments.reproductions.tpugraphs.alexnet_columns import with_all_columns
from experiments.reproductions.tpugraphs.late_fusion import Settings
from experiments.reproductions.tpugraphs.tile import Kernel, leave_one_out, network
from gst.data.tpugraphs import read
from gst.graphs.graph import Graph
from tests.files import ROOT

FIXTURES = ROOT / "tests" / "fixtures"


@pytest.fixture(scope="module")
def alexnet() -> Graph:
    return with_all_columns(read(FIXTURES / "alexnet_small.npz"))


@pytest.fixture(scope="module")
def kernels() -> list[Kernel]:
    return [Kernel.of(path) for path in sorted((FIXTURES / "tile").glob("*.npz"))]


def test_each_variant_leaves_out_one_and_tiles_have_no_layouts() -> None:
    variants = study.variants("unet_3d")
    assert list(variants) == [study.ALL, *(f"without {name}" for name in FEATURES), "none"]
    assert variants[study.ALL] == tuple(FEATURES) and variants["none"] == ()
    for name in FEATURES:
        assert set(FEATURES) - set(variants[f"without {name}"]) == {name}
    assert set(study.variants("tile")[study.ALL]) == set(FEATURES) - {"layout"}
    assert "without layout" not in study.variants("tile")


def test_symbols_are_one_hot_and_nodes_alone_differ_between_variants(alexnet: Graph) -> None:
    none, rich = study.with_features(alexnet, ()), study.with_features(alexnet, ("costs", "modulo"))
    assert np.array_equal(none.config_features, rich.config_features)
    assert (none.node_features.shape[1], rich.node_features.shape[1]) == (140, 140 + 3 + 12)
    assert none.num_nodes == rich.num_nodes < alexnet.num_nodes  # pruned
    symbols = none.config_features.reshape(*none.config_features.shape[:2], 18, study.SYMBOLS)
    assert (symbols.sum(3) == 1).all()
    order = np.argsort(none.node_ids[none.config_rows])  # one segment: in the order of nodes, as in the file
    assert np.array_equal(symbols[:, none.config_columns[order]].argmax(3) - 1, alexnet.config_features)


def test_networks_score_what_they_did_not_learn_from(alexnet: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def perfect(kinds: list, seed: int, steps: int):  # type: ignore[no-untyped-def]
        ((_, known),) = kinds[0]
        seen.append(set(known.tolist()))
        return lambda graph: np.where(np.isin(np.arange(graph.num_configs), known), np.nan, graph.targets)

    monkeypatch.setattr(study, "gnn", perfect)
    assert study.layout_tau(alexnet, (), seed=0, steps=1, folds=3, held_out=300) == pytest.approx(1)
    held = [set(range(alexnet.num_configs)) - known for known in seen]
    assert [len(each) for each in held] == [300] * 3 and len(set.union(*held)) == 900


def test_a_network_learns_layouts_from_derived_features(alexnet: Graph) -> None:
    tau = study.layout_tau(alexnet, ("costs", "padding", "layout"), seed=0, steps=40, folds=1, held_out=300)
    assert tau > 0.3, tau


def test_the_error_of_tiles_is_that_of_leaving_kernels_out(kernels: list[Kernel]) -> None:
    """Kernels without a choice count too: one with a single tile size, measured twice."""
    graph, settings = kernels[0].graph, Settings(steps=6)
    one = replace(graph, config_features=graph.config_features[:1], targets=np.array([1.5]), counts=np.array([2]),
                  spreads=np.array([0.5]), name="one")  # fmt: skip
    kernels = [*kernels, Kernel(one, np.array([1.0, 2.0]), np.zeros(2, np.int64), kernels[0].features[:1])]
    expected = leave_one_out(kernels, network(settings), 2)["error_at_1_seeds"]
    assert [study.tile_error(kernels, (), seed, settings) for seed in range(2)] == pytest.approx(expected)


def test_kernels_are_known_by_the_features_asked_for(kernels: list[Kernel], monkeypatch: pytest.MonkeyPatch) -> None:
    def perfect(known: list[Kernel], held_out: Kernel, seed: int) -> np.ndarray:
        assert held_out not in known and len(known) == 2
        assert {kernel.graph.node_features.shape[1] for kernel in (*known, held_out)} == {140 + 3 + 2}
        return held_out.graph.targets

    monkeypatch.setattr(study, "network", lambda settings: perfect)
    assert study.tile_error(kernels, ("costs", "tiles"), 0, Settings()) < 1e-4  # of rows measured twice


def test_every_variant_is_asked_about_once_for_each_seed() -> None:
    asked = []
    found = study.run({"tile": lambda names, seed: asked.append((names, seed)) or float(seed)}, 2)
    assert len(asked) == 2 * len(study.variants("tile")) == len(set(asked))
    assert all(values == [0.0, 1.0] for values in found["tile"].values())


def test_the_interval_is_that_of_a_paired_t_test() -> None:
    values, base = [0.5, 0.7, 0.6, 0.9], [0.4, 0.65, 0.7, 0.6]
    row = study.row(values, base)
    low, high = stats.ttest_rel(values, base).confidence_interval(0.95)
    assert (row["difference"] - row["interval"], row["difference"] + row["interval"]) == pytest.approx((low, high))
    assert row["mean"] == pytest.approx(0.675)
