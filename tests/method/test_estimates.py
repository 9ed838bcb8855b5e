"""Estimates: bias of value and gradient by enumeration of all draws, and one implementation for all kinds of steps."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from reference import models, random_graph
from torch import Tensor, nn

import gst
from embedding_cache import EmbeddingTable
from gst.method.draws import choose_fresh, choose_kept
from gst.method.estimates import (
    ESTIMATES,
    Estimate,
    FilledSum,
    Sample,
    Weights,
    checked_estimate,
    composite_weights,
    dropout_weights,
)
from gst.method.estimator import GraphSegmentTraining
from gst.method.fixed_batch import NoFixedShapes, Sizes
from gst.method.fixed_step import FixedStep
from gst.method.recorded import Recorded
from gst.method.regression import RowRegression, moments, residual_products
from tests.method.host_waits import Messages, graphs

NUM_SEGMENTS = 3


def trained(
    estimate: str | Estimate, pooling: str, table: bool, **arguments: Any
) -> tuple[GraphSegmentTraining, list[Any]]:
    """A model with a linear head, two graphs, and a table that holds old rows of some segments."""
    data = [
        gst.segment(random_graph(seed, 24, 40, 5, 3), parts=torch.arange(24).numpy() % NUM_SEGMENTS)
        for seed in (0, 1)
    ]  # fmt: skip
    encoder, _ = models("sage", random_graph(0, 24, 40, 5, 3))
    head = nn.Linear(6, 2, dtype=torch.float64)
    model = GraphSegmentTraining(encoder, head, pooling, 2, table=table, estimate=estimate, **arguments)
    if table:
        for _ in range(2):  # at most all segments are known; of the second graph fewer
            model(data[:1])
        model(data)
        with torch.no_grad():
            for parameter in encoder.parameters():
                parameter.add_(0.3)  # the rows are stale by far
    return model, data


def values_and_gradients(model: GraphSegmentTraining, data: list[Any], fresh: Tensor, chance: float) -> list[Tensor]:
    model = copy.deepcopy(model)
    draw = model.draw(data)
    inclusion = torch.full_like(draw.inclusion, chance)
    prediction = model(prefetched=model.load(dataclasses.replace(draw, fresh=fresh, inclusion=inclusion)))
    weights = torch.linspace(1, 2, prediction.numel(), dtype=prediction.dtype).view_as(prediction)
    parameters = list(model.encoder.parameters())
    return [prediction.detach(), *torch.autograd.grad((prediction * weights).sum(), parameters)]


def over_all_draws(model: GraphSegmentTraining, data: list[Any]) -> tuple[list[Tensor], list[Tensor]]:
    """Value and gradients from all segments, and their means over all draws of two."""
    every = torch.ones(2 * NUM_SEGMENTS, dtype=torch.bool)
    truth, runs = values_and_gradients(model, data, every, 1.0), []
    torch.testing.assert_close(truth[0], model.exact(data), rtol=1e-9, atol=1e-9)
    for pair in itertools.combinations(range(NUM_SEGMENTS), 2):
        fresh = torch.isin(torch.arange(2 * NUM_SEGMENTS) % NUM_SEGMENTS, torch.tensor(pair))
        runs.append(values_and_gradients(model, data, fresh, 2 / NUM_SEGMENTS))
    return truth, [torch.stack(each).mean(0) for each in zip(*runs, strict=True)]


def weights_by_age(sample: Sample) -> Weights:
    trust = 0.5**sample.ages * sample.is_known
    return Weights(sample.inverse, trust * (1 - sample.inverse))


BY_AGE = Estimate("by_age", "rows trusted by their age", weights_by_age, fixed_shapes=True, is_unbiased=True)
UNBIASED = [each for each in (*ESTIMATES.values(), BY_AGE) if each.is_unbiased]


@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize(
    ("estimate", "table"),
    [(each, table) for each in UNBIASED for table in (True, False) if not table or each.reads != "nothing"],
    ids=lambda value: getattr(value, "name", value),
)
def test_value_and_gradient_are_those_of_all_segments_on_average_over_all_draws(
    estimate: Estimate, table: bool, pooling: str
) -> None:
    for expected, mean in zip(*over_all_draws(*trained(estimate, pooling, table)), strict=True):
        torch.testing.assert_close(mean, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("products", [[0.0, 1.0], [0.3, 1.0], [1.0, 1.0]])
def test_the_gradient_of_the_composite_estimator_has_no_bias_and_its_value_has_none_where_residuals_are_alike(
    products: list[float],
) -> None:
    model, data = trained("composite", "sum", table=True)
    assert model.learned is not None
    model.learned._products = torch.tensor(products, dtype=torch.float64)
    truth, means = over_all_draws(model, data)
    for expected, mean in zip(truth[1:], means[1:], strict=True):
        torch.testing.assert_close(mean, expected, rtol=1e-9, atol=1e-9)
    assert torch.allclose(means[0], truth[0], rtol=1e-9) == (products[0] == 1)


# One implementation of all steps -------------------------------------------------------------------


def losses_of(estimate: str | Estimate, padded: bool, table: bool = True, **options: Any) -> list[float]:
    """Losses of a few steps; the second graph is left out of one, so that there is padding of every kind."""
    torch.manual_seed(0)
    data = graphs()
    rows = EmbeddingTable(1, 16) if table else None
    model = GraphSegmentTraining(Messages(), nn.Linear(16, 1), "mean", 2, table=rows, estimate=estimate, **options)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)

    def loss_of(scores: Tensor, targets: Tensor) -> Tensor:
        return (scores - targets).nan_to_num().square().sum()

    step = Recorded(FixedStep(model, loss_of, optimizer, Sizes.of(data, 2, 2, 3))) if padded else None
    losses = []
    for number in range(6):
        chosen = data[: 1 + (number != 2)]
        configs, targets = torch.tensor([[0, 1, number % 5], [1, -1, 3]])[: len(chosen)], torch.ones(len(chosen), 3)
        targets[configs < 0] = torch.nan
        if step is not None:
            losses.append(step.run(step.step.load(step.step.draw(chosen, configs)), targets).item())
            continue
        loss = loss_of(model(chosen, configs).squeeze(-1), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("estimate", [*ESTIMATES.values(), BY_AGE], ids=lambda each: each.name)
def test_padded_steps_are_eager_ones_or_the_estimate_is_refused_by_name(estimate: Estimate) -> None:
    table = estimate.reads != "nothing"
    if not estimate.fixed_shapes:
        with pytest.raises(NoFixedShapes, match=f"fixed_shapes .* {estimate.name!r} does not"):
            losses_of(estimate, True, table)
        return
    losses = losses_of(estimate, True, table)
    assert losses == pytest.approx(losses_of(estimate, False, table), rel=1e-5) and losses[0] != losses[-1]


def test_an_estimate_of_a_user_is_one_of_all_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ESTIMATES, "by_age", BY_AGE)
    assert checked_estimate("mean", 1, 1.0, True, "by_age") is BY_AGE
    own = losses_of("by_age", False)
    assert all(own != losses_of(each, False) for each in ("dropout", "difference", "composite"))
    undeclared = dataclasses.replace(BY_AGE, name="undeclared", fixed_shapes=False)
    assert losses_of(undeclared, False) == own
    with pytest.raises(NoFixedShapes, match="'undeclared' does not"):
        losses_of(undeclared, True)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"estimate": "differences"}, "use one of auto, fresh, dropout, difference, composite"),
        ({"estimate": "difference", "keep_probability": 0.5}, "uses all rows"),
        ({"estimate": "difference", "pooling": "max"}, "use 'sum' or 'mean'"),
        ({"estimate": "difference", "pooling": "softmax"}, "corrects a sum, and pooling='softmax' is none"),
        ({"estimate": "fresh", "table": EmbeddingTable(1, 1)}, "use one of the two"),
        ({"pooling": "median"}, "median.*does not decompose over segments.*sum, mean, max"),
        ({"num_fresh": 0}, "num_fresh is 0"),
        ({"num_fresh": 1.5}, "num_fresh is 1.5; want a whole number"),
        ({"keep_probability": 1.5}, "keep_probability is 1.5"),
        ({"keep_probability": -0.1}, "keep_probability is -0.1"),
        ({"keep_probability": float("nan")}, "keep_probability is nan"),
    ],
    ids=str,
)
def test_impossible_arguments_are_refused(arguments: dict[str, Any], problem: str, unchecked: None) -> None:
    with pytest.raises(ValueError, match=problem):
        GraphSegmentTraining(nn.Linear(2, 2), nn.Linear(2, 1), **arguments)


@pytest.mark.parametrize(
    ("arguments", "estimate", "rows"),
    [
        ({}, "difference", 4),  # one is the origin of the segment with two
        ({"estimate": "composite"}, "composite", 4),
        ({"keep_probability": 0.5}, "dropout", 4),
        ({"pooling": "max"}, "dropout", 4),
        ({"table": None}, "dropout", 0),
    ],
)
def test_configurations_that_are_alike_on_a_segment_share_a_row_unless_rows_are_dropped(
    arguments: dict[str, Any], estimate: str, rows: int
) -> None:
    features = torch.tensor([[[1], [2]], [[1], [3]]], dtype=torch.int8).numpy()
    edges = torch.tensor([[0, 2], [1, 3]]).numpy()
    nodes = torch.arange(8.0).view(4, 2).numpy()
    graph = gst.Graph(nodes, edges, config_nodes=torch.tensor([0, 2]).numpy(), config_features=features)
    table = EmbeddingTable(1, 3)
    settings: dict[str, Any] = {"table": table, "num_fresh": 2} | arguments
    model = GraphSegmentTraining(
        lambda batch: batch.expanded().x.view(2, 4, 3).transpose(0, 1), nn.Linear(3, 1), **settings
    )
    model([gst.segment(graph, parts=torch.tensor([0, 0, 1, 1]).numpy())])
    assert model.estimate.name == estimate and table.rows_in_use == rows


# Weights -------------------------------------------------------------------------------------------


def sample_of(
    fresh: Tensor, is_known: Tensor, graph: Tensor | None = None, kept: Tensor | None = None,
    inclusion: float | Tensor = 0.5, keep: float = 1.0, common: float = 0.0,
) -> Sample:  # fmt: skip
    graph = torch.zeros(len(fresh), dtype=torch.int64) if graph is None else graph
    nodes = torch.ones(len(fresh), dtype=torch.int64)
    return Sample(
        fresh, torch.as_tensor(inclusion, dtype=torch.float64).expand(len(fresh)), fresh if kept is None else kept,
        torch.where(is_known, 1, -1), graph, nodes, graph.bincount(), keep, SimpleNamespace(common=common),
    )  # fmt: skip


@pytest.mark.parametrize("keep", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("num_segments", "num_fresh"), [(1, 1), (5, 2), (9, 1), (7, 7)])
def test_the_expected_weight_of_every_segment_is_one(num_segments: int, num_fresh: int, keep: float) -> None:
    """Known and unknown ones, 4 standard errors: with the seeds given, 1 in 16,000 would miss by chance."""
    generator = torch.Generator().manual_seed(num_segments * 100 + num_fresh)
    is_known = torch.tensor([[True, False]]).expand(num_segments, 2)

    def draw() -> Tensor:
        fresh = choose_fresh(num_segments, num_fresh, generator)
        kept = choose_kept(fresh, keep, generator)
        sample = sample_of(fresh, is_known, kept=kept, inclusion=num_fresh / num_segments, keep=keep)
        return sum(dropout_weights(sample)[:2])  # type: ignore[return-value]

    weights = torch.stack([draw() for _ in range(500)])
    error = weights.std(0) / 500**0.5
    assert ((weights.mean(0) - 1).abs() <= 4 * error + 1e-6).all()


def test_dropout_weighs_known_fresh_segments_eta_and_unknown_stale_ones_nothing() -> None:
    fresh, kept = torch.arange(5) < 2, torch.arange(5) % 2 == 0
    is_known = torch.tensor([[True, True, False, False, True]]).T.expand(5, 2)
    sample = sample_of(fresh, is_known, kept=kept, inclusion=0.4, keep=0.25)
    weights = dropout_weights(sample)
    assert weights.fresh[:, 0].tolist() == [0.25 + 0.75 * 5 / 2] * 2 + [0] * 3
    assert weights.stale.tolist() == [[0, 0]] * 4 + [[1, 1]] and weights.fresh.dtype == torch.float64


def residuals_of_graphs(common: float, number: int) -> Tensor:
    """Residuals of 6 segments of each graph, under one configuration and of one channel, of variance 1."""
    generator = torch.Generator().manual_seed(0)
    own = torch.randn(number, 6, generator=generator, dtype=torch.float64)
    return common**0.5 * torch.randn(number, 1, generator=generator).double() + (1 - common) ** 0.5 * own


@pytest.mark.parametrize("common", [0.0, 0.2, 0.7])
@pytest.mark.parametrize("num_fresh", [1, 4])
def test_no_other_weight_of_fresh_residuals_has_a_smaller_error(common: float, num_fresh: int) -> None:
    residuals, fresh = residuals_of_graphs(common, 20_000), torch.arange(6) < num_fresh
    is_known = torch.ones(6, 1, dtype=torch.bool)
    ours = composite_weights(sample_of(fresh, is_known, inclusion=num_fresh / 6, common=common)).fresh[0].item()

    def error(weight: float) -> float:
        return float((weight * residuals[:, fresh].sum(1) - residuals.sum(1)).square().mean())

    others = torch.linspace(0.5, 6 / num_fresh, 40).tolist()
    assert error(ours) <= 1.02 * min(map(error, others))
    assert max(map(error, others)) > 1.2 * error(ours)


# Rows that are missing, and rows under a learned map -----------------------------------------------


def test_a_segment_without_a_row_has_the_mean_of_its_own_or_else_of_its_graph() -> None:
    total = FilledSum(torch.tensor([0, 0, 1, 1]), torch.ones(4, 1), 2, 2, 1)
    rows = torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])[..., None]
    total.add(torch.arange(4), rows, torch.tensor([[True, False], [False, False], [False, False], [False, False]]))
    assert total.result(None).squeeze(-1).tolist() == [[4, 4], [0, 0]]


@pytest.mark.parametrize("common", [0.0, 0.7, 1.0])
def test_the_share_that_residuals_have_in_common_is_estimated(common: float) -> None:
    residuals = residuals_of_graphs(common, 20_000)[:, :2]
    regression, graph = RowRegression(), torch.arange(20_000).repeat_interleave(2)
    assert regression.common == 0.5
    is_known = torch.ones(40_000, 1, dtype=torch.bool)
    products = residual_products(residuals.reshape(-1, 1, 1), is_known, graph, 20_000)
    regression.observe(torch.zeros(2, 3).double(), products)
    assert regression.common == pytest.approx(common, abs=0.04)


def test_old_steps_are_forgotten() -> None:
    regression, rows = RowRegression(), torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    for factor, products in ((4.0, [1.0, 1.0]), (-1.0, [0.0, 1.0])):
        for _ in range(30):
            regression.observe(moments(rows, factor * rows), torch.tensor(products).double())
    assert (regression(rows) * rows).sum() < -0.8 * rows.square().sum(), "the ridge shrinks the last map"
    assert regression.common < 0.01


def test_residuals_count_by_the_shares_of_their_segments() -> None:
    regression, ones = RowRegression(), torch.ones(2, 1, 1)
    shares, graph = torch.tensor([1.0, 3.0]).double(), torch.zeros(2, dtype=torch.int64)
    regression.learn(0 * ones, ones, shares, torch.ones(2, 1, dtype=torch.bool), graph, 1, lambda values: values)
    assert regression.common == pytest.approx(1 * 3 / ((1 + 9) / 2))


def test_residuals_and_rows_that_are_unknown_or_not_finite_say_nothing() -> None:
    residuals, graph = torch.tensor([3.0, 2.0, 5.0]).view(3, 1, 1), torch.zeros(3, dtype=torch.int64)
    is_known = torch.tensor([[True], [True], [False]])
    assert residual_products(residuals, is_known, graph, 1).tolist() == [6.0, 6.5]
    assert residual_products(residuals, ~is_known, graph, 1).tolist() == [0.0, 0.0]
    residuals[0] = torch.inf
    assert residual_products(residuals, is_known, graph, 1).tolist() == [0.0, 0.0]
    assert (moments(torch.tensor([[1.0, torch.nan]]), torch.ones(1, 2)) == 0).all()


def test_the_learned_map_does_not_depend_on_the_scale_of_embeddings() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(40, 3, generator=generator).double()
    now, maps = rows @ torch.randn(3, 3, generator=generator).double() + 0.5, []
    for scale in (1.0, 1e-2):
        regression = RowRegression()
        regression.observe(moments(scale * rows, scale * now))
        linear = regression.map()
        assert linear is not None
        maps.append((linear[0], linear[1] / scale))
    torch.testing.assert_close(maps[1], maps[0], rtol=1e-6, atol=1e-6)


def test_a_linear_change_of_all_embeddings_is_learned() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(3, 3, generator=generator), torch.randn(3, generator=generator)
    regression = RowRegression()
    assert regression.map() is None
    for _ in range(20):
        rows = torch.randn(500, 3, generator=generator)
        regression.observe(moments(rows, rows @ a + b))
    rows = torch.randn(200, 3, generator=generator)
    mapped = regression(rows)
    assert (mapped - (rows @ a + b)).square().mean() < 0.02 * (rows @ a).square().mean()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(regression(rows), mapped), "autocast blurs no mapped row"


def test_a_resumed_training_with_a_learned_map_is_bit_identical() -> None:
    model, data = trained("composite", "mean", table=True)
    again, _ = trained("composite", "mean", table=True)
    for _ in range(3):
        model(data)
    again.load_state_dict(copy.deepcopy(model.state_dict()))
    torch.testing.assert_close(again(data), model(data), rtol=0, atol=0)


# table=True ----------------------------------------------------------------------------------------


def test_a_table_as_wide_as_the_embeddings_is_made_in_the_first_step() -> None:
    data = graphs()

    def made(table: Any) -> GraphSegmentTraining:
        torch.manual_seed(0)
        return GraphSegmentTraining(Messages(), nn.Linear(16, 1), table=table)

    def losses(model: GraphSegmentTraining) -> list[Tensor]:
        return [model(data).detach() for _ in range(3)]

    assert made(False).table is None and made(None).table is None
    lazy, plain = made(True), made(EmbeddingTable(1, 16))
    assert lazy.table is None and lazy.estimate.name == "difference"
    early = copy.deepcopy(lazy.state_dict())
    assert all(map(torch.equal, losses(lazy), losses(plain)))
    assert lazy.table.channels == 16 and lazy.table.rows_in_use == plain.table.rows_in_use > 0
    late = copy.deepcopy(lazy.state_dict())
    expected, again = losses(lazy), made(True)
    again.load_state_dict(late)  # before its first step
    assert all(map(torch.equal, losses(again), expected))
    again.load_state_dict(early)  # after it
    assert again.step == 0 and again.table.rows_in_use == 0
    assert all(map(torch.equal, losses(again), losses(made(True))))
    frozen = made(True)
    frozen.freeze_encoder()
    torch.testing.assert_close(frozen(data), frozen.exact(data))
    assert frozen.table.rows_in_use > 0
