"""Difference, regression and composite estimator: bias of value and gradient, by enumeration of all draws."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from typing import Any

import pytest
import torch
from reference import models, random_graph
from torch import Tensor

import gst
from embedding_cache import EmbeddingTable
from gst.method.estimator import GraphSegmentTraining
from gst.method.regression import RowRegression, StaleSum, composite_weights, moments, residual_products

NUM_SEGMENTS = 4
NO_PRODUCTS = torch.zeros(0, dtype=torch.float64)


def trained(estimate: str, pooling: str, table: bool, **arguments: Any) -> tuple[GraphSegmentTraining, list[Any]]:
    """A model with a linear head, two graphs, and a table that holds old rows of some segments."""
    graphs = [
        gst.segment(random_graph(seed, 24, 40, 5, 3), parts=torch.arange(24).numpy() % NUM_SEGMENTS)
        for seed in (0, 1)
    ]  # fmt: skip
    encoder, _ = models("sage", random_graph(0, 24, 40, 5, 3))
    head = torch.nn.Linear(6, 2, dtype=torch.float64)
    rows = EmbeddingTable(1, 6, torch.float64) if table else None
    model = GraphSegmentTraining(encoder, head, pooling, 2, table=rows, estimate=estimate, **arguments)
    if rows is not None:
        for _ in range(2):  # at most 4 of 4 segments are known; of the second graph fewer
            model(graphs[:1])
        model(graphs)
        with torch.no_grad():
            for parameter in encoder.parameters():
                parameter.add_(0.3)  # the rows are stale by far
    return model, graphs


def values_and_gradients(
    model: GraphSegmentTraining, graphs: list[Any], fresh: Tensor, chance: float | Tensor
) -> list[Tensor]:
    model = copy.deepcopy(model)
    draw = model.draw(graphs)
    assert draw is not None
    inclusion = torch.as_tensor(chance, dtype=torch.float64).expand_as(draw.inclusion)
    prediction = model(prefetched=model.load(dataclasses.replace(draw, fresh=fresh, inclusion=inclusion)))
    weights = torch.linspace(1, 2, prediction.numel(), dtype=prediction.dtype).view_as(prediction)
    parameters = list(model.encoder.parameters())
    return [prediction.detach(), *torch.autograd.grad((prediction * weights).sum(), parameters)]


def over_all_draws(model: GraphSegmentTraining, graphs: list[Any]) -> tuple[list[Tensor], list[list[Tensor]]]:
    """Value and gradients from all segments, and those of each draw of two."""
    every = torch.ones(2 * NUM_SEGMENTS, dtype=torch.bool)
    truth, runs = values_and_gradients(model, graphs, every, 1.0), []
    for pair in itertools.combinations(range(NUM_SEGMENTS), 2):
        fresh = torch.isin(torch.arange(2 * NUM_SEGMENTS) % NUM_SEGMENTS, torch.tensor(pair))
        runs.append(values_and_gradients(model, graphs, fresh, 2 / NUM_SEGMENTS))
    return truth, runs


@pytest.mark.parametrize(
    ("estimate", "table"), [*itertools.product(["difference", "regression"], [True, False]), ("fresh", False)]
)
@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_value_and_gradient_are_those_of_all_segments_on_average_over_all_draws(
    estimate: str, table: bool, pooling: str
) -> None:
    truth, runs = over_all_draws(*trained(estimate, pooling, table))
    for expected, each in zip(truth, zip(*runs, strict=True), strict=True):
        torch.testing.assert_close(torch.stack(each).mean(0), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("products", [[0.0, 1.0], [0.3, 1.0], [1.0, 1.0]])
@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_the_gradient_of_the_composite_estimator_has_no_bias_and_its_value_has_none_where_residuals_are_alike(
    pooling: str, products: list[float]
) -> None:
    model, graphs = trained("composite", pooling, table=True)
    assert model._regression is not None
    model._regression._products = torch.tensor(products, dtype=torch.float64)
    truth, runs = over_all_draws(model, graphs)
    means = [torch.stack(each).mean(0) for each in zip(*runs, strict=True)]
    for expected, mean in zip(truth[1:], means[1:], strict=True):
        torch.testing.assert_close(mean, expected, rtol=1e-9, atol=1e-9)
    assert torch.allclose(means[0], truth[0], rtol=1e-9) == (products[0] == 1)


def residuals_of_graphs(common: float, number: int) -> Tensor:
    """Residuals of 6 segments of each graph, under one configuration and of one channel, of variance 1."""
    generator = torch.Generator().manual_seed(0)
    own = torch.randn(number, 6, generator=generator, dtype=torch.float64)
    return common**0.5 * torch.randn(number, 1, generator=generator).double() + (1 - common) ** 0.5 * own


@pytest.mark.parametrize("common", [0.0, 0.2, 0.7, 1.0])
def test_the_share_that_residuals_have_in_common_is_estimated(common: float) -> None:
    residuals = residuals_of_graphs(common, 20_000)[:, :2]
    regression, graph = RowRegression(), torch.arange(20_000).repeat_interleave(2)
    assert regression.common == 0.5
    known = torch.ones(40_000, 1, dtype=torch.bool)
    regression.observe(torch.zeros(2, 3).double(), residual_products(residuals.reshape(-1, 1, 1), known, graph, 20_000))
    assert regression.common == pytest.approx(common, abs=0.04)


@pytest.mark.parametrize("common", [0.0, 0.2, 0.7])
@pytest.mark.parametrize("num_fresh", [1, 2, 4])
def test_no_other_weight_of_fresh_residuals_has_a_smaller_error(common: float, num_fresh: int) -> None:
    residuals = residuals_of_graphs(common, 20_000)
    graph, fresh = torch.zeros(6, dtype=torch.int64), torch.arange(6) < num_fresh
    inclusion = (fresh * 6 / num_fresh).double()[:, None]
    ours = composite_weights(graph, fresh, inclusion, torch.ones(6, 1, dtype=torch.bool), common)[0].item()

    def error(weight: float) -> float:
        return float((weight * residuals[:, fresh].sum(1) - residuals.sum(1)).square().mean())

    others = torch.linspace(0.5, 6 / num_fresh, 40).tolist()
    assert error(ours) <= 1.02 * min(map(error, others))
    assert max(map(error, others)) > 1.2 * error(ours)


@pytest.mark.parametrize(
    ("arguments", "estimate", "rows"),
    [
        ({}, "difference", 3),
        ({"estimate": "composite"}, "composite", 3),
        ({"keep_probability": 0.5}, "dropout", 4),
        ({"pooling": "max"}, "dropout", 4),
        ({"table": None}, "dropout", 0),
    ],
)
def test_configurations_that_are_alike_on_a_segment_share_a_row_unless_rows_are_dropped(
    arguments: dict[str, Any], estimate: str, rows: int
) -> None:
    """Two segments of two nodes under two configurations that differ on the second alone."""
    features = torch.tensor([[[1], [2]], [[1], [3]]], dtype=torch.int8).numpy()
    edges = torch.tensor([[0, 2], [1, 3]]).numpy()
    nodes = torch.arange(8.0).view(4, 2).numpy()
    graph = gst.Graph(nodes, edges, config_nodes=torch.tensor([0, 2]).numpy(), config_features=features)
    table = EmbeddingTable(1, 3)
    settings: dict[str, Any] = {"table": table, "num_fresh": 2} | arguments
    model = GraphSegmentTraining(
        lambda batch: batch.expanded().x.view(2, 4, 3).transpose(0, 1), torch.nn.Linear(3, 1), **settings
    )
    model([gst.segment(graph, parts=torch.tensor([0, 0, 1, 1]).numpy())])
    assert model.estimate == estimate and table.rows_in_use == rows


def test_a_graph_without_rows_is_estimated_from_its_fresh_segments_alone() -> None:
    graph, fresh = torch.tensor([0, 0, 1, 1]), torch.tensor([True, False, True, False])
    is_known = torch.tensor([[False], [True], [False], [False]])
    weights = composite_weights(graph, fresh, 2.0 * fresh.double()[:, None], is_known, common=0.0)
    assert weights.flatten().tolist() == [1, 0, 2, 0]


def test_residuals_that_are_unknown_or_not_finite_say_nothing() -> None:
    residuals, graph = torch.tensor([3.0, 2.0, 5.0]).view(3, 1, 1), torch.zeros(3, dtype=torch.int64)
    known = torch.tensor([[True], [True], [False]])
    assert residual_products(residuals, known, graph, 1).tolist() == [6.0, 6.5]
    assert residual_products(residuals, ~known, graph, 1).tolist() == [0.0, 0.0]
    residuals[0] = torch.inf
    assert residual_products(residuals, known, graph, 1).tolist() == [0.0, 0.0]


def test_the_estimate_is_exact_as_soon_as_rows_are() -> None:
    model, graphs = trained("difference", "mean", table=True)
    model.num_fresh = NUM_SEGMENTS
    model(graphs)  # all rows are of now
    model.num_fresh = 1
    torch.testing.assert_close(model(graphs), model.exact(graphs), rtol=1e-9, atol=1e-9)


def test_a_linear_change_of_all_embeddings_is_learnt() -> None:
    """Rows x, embeddings x A + b: after a few steps the map is that one, and a residual is nowhere left."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(3, 3, generator=generator), torch.randn(3, generator=generator)
    regression = RowRegression()
    assert regression.map() is None
    for _ in range(20):
        rows = torch.randn(500, 3, generator=generator)
        regression.observe(moments(rows, rows @ a + b), NO_PRODUCTS)
    learnt = regression.map()
    assert learnt is not None
    rows = torch.randn(200, 3, generator=generator)
    error = rows.double() @ learnt[0] + learnt[1] - (rows @ a + b)
    assert error.square().mean() < 0.02 * (rows @ a).square().mean()


def test_autocast_blurs_no_mapped_row() -> None:
    generator = torch.Generator().manual_seed(0)
    regression, rows = RowRegression(), torch.randn(500, 3, generator=generator)
    regression.observe(moments(rows, 2 * rows + 1e-3), NO_PRODUCTS)
    want = regression(rows)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(regression(rows), want)


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0, 1e6])
def test_rows_that_are_all_alike_teach_where_they_went_and_nothing_else(scale: float) -> None:
    rows, embedded = scale * torch.ones(3, 4), scale * 2 * torch.ones(3, 4)
    regression = RowRegression()
    regression.observe(moments(rows, embedded), NO_PRODUCTS)
    learnt = regression.map()
    assert learnt is not None and learnt[0].abs().max() < 1.01
    torch.testing.assert_close((rows.double() @ learnt[0] + learnt[1]).float(), embedded, rtol=1e-5, atol=0)


def test_a_row_that_is_not_finite_teaches_nothing() -> None:
    rows = torch.tensor([[1.0, torch.nan]])
    assert (moments(rows, torch.ones(1, 2)) == 0).all()


def test_a_segment_without_a_row_has_the_mean_of_its_own_or_else_of_its_graph() -> None:
    """Two graphs of two segments under two configurations, all weights 1; the second has no row at all."""
    stale = StaleSum(torch.tensor([0, 0, 1, 1]), torch.ones(4), 2, 2, 1)
    rows = torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])[..., None]
    stale.add(torch.arange(4), rows, torch.tensor([[True, False], [False, False], [False, False], [False, False]]))
    assert stale.result(None).squeeze(-1).tolist() == [[4, 4], [0, 0]]


@pytest.mark.parametrize("estimate", ["regression", "composite"])
def test_a_resumed_training_with_a_regression_is_bit_identical(estimate: str) -> None:
    model, graphs = trained(estimate, "mean", table=True)
    again, _ = trained(estimate, "mean", table=True)
    for _ in range(3):
        model(graphs)
    again.load_state_dict(copy.deepcopy(model.state_dict()))
    torch.testing.assert_close(again(graphs), model(graphs), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            {"estimate": "differences"},
            "use one of auto, fresh, dropout, fixed_dropout, difference, regression, composite",
        ),
        ({"estimate": "difference", "keep_probability": 0.5}, "uses all rows"),
        ({"estimate": "difference", "pooling": "max"}, "use 'sum' or 'mean'"),
    ],
)
def test_what_makes_no_difference_estimator_is_refused(
    arguments: dict[str, Any], problem: str, unchecked: None
) -> None:
    with pytest.raises(ValueError, match=problem):
        GraphSegmentTraining(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1), **arguments)
