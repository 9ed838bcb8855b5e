"""Plans padded to bounds: every step fits, and encoders compute with them what they compute without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import graphs_and_parts, random_graph
from slow_encoders import CASES, made
from torch import Tensor, nn

from gst.data.synthetic import synthetic_program
from gst.graphs.graph import Graph
from gst.graphs.segments import SegmentedGraph, segment
from gst.method.batch import SegmentBatch, assemble
from gst.method.encoding import call_of, embed_segments
from gst.method.fixed_batch import DoesNotFit, Sizes
from gst.nn import SAGE
from gst.nn.plans import DeviceSharing, FixedPlans, further
from gst.nn.sharing import PARTS, PlanOptions

DOUBLE = torch.device("cpu"), torch.float64
CONFIGS = 3
OPTIONS = [
    PlanOptions(2, ("forward", "backward")),
    PlanOptions(1, ("backward",)),
    PlanOptions(2, ("forward",), share=False),
]


def cut_graphs() -> list[SegmentedGraph]:
    """Of two sizes, the second with few configurable nodes."""
    return [segment(random_graph(1, 14, 24, 3), 5), segment(random_graph(2, 20, 30, 1), 5)]


def batch_of(graphs: Sequence[SegmentedGraph], picks: list[tuple[int, int]], configs: list[int]) -> SegmentBatch:
    return assemble(graphs, picks, torch.tensor([configs] * len(graphs))).to(*DOUBLE)


def padded(batch: SegmentBatch, sizes: Sizes) -> SegmentBatch:
    """The batch with its plans."""
    assert sizes.plans is not None
    sizes.plans.check(batch)
    new = batch.padded_to(*sizes[:4])
    new.plans.update(sizes.plans.of(new))
    return new


def outcome(encoder: nn.Module, batch: SegmentBatch, segments: int, pooling: Any = "sum") -> list[Tensor]:
    """Embeddings of the first segments, and the gradients of all parameters."""
    embedded = embed_segments(encoder, batch, call_of(encoder), pooling)[:segments]
    weights = torch.linspace(-1, 1, embedded.numel(), dtype=embedded.dtype).view_as(embedded)
    parameters = list(encoder.parameters())
    found = torch.autograd.grad((embedded * weights).sum(), parameters, allow_unused=True)
    gradients = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
    return [embedded.detach(), *gradients]


def assert_same(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("pooling", ["sum", "max"])
@pytest.mark.parametrize("case", CASES)
def test_a_padded_plan_changes_neither_embeddings_nor_gradients(case: str, pooling: str, share: bool) -> None:
    graphs = cut_graphs()
    steps = [([(0, 0), (0, 1), (1, 2)], [0, 1, 2]), ([(1, 0), (1, 3)], [2, 2, 0]), ([(0, 2), (1, 1)], [1, 0, 1])]
    batches = [batch_of(graphs, *step) for step in steps]
    encoder = made(case, batches[0], share=share)
    sizes, shapes = Sizes.of(graphs, 2, 2, CONFIGS, encoder), set[Any]()
    for batch in batches:
        want, larger = outcome(encoder, batch, batch.num_segments, pooling), padded(batch, sizes)
        assert_same(outcome(encoder, larger, batch.num_segments, pooling), want)
        shapes.add(str([{k: [t.shape for t in each] for k, each in p._tensors.items()} for p in larger.plans.values()]))
    assert len(shapes) == 1, "so that a recording fits all"


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@settings(max_examples=25)
@given(given_graph=graphs_and_parts(), num_fresh=st.integers(1, 3), configs=st.lists(st.integers(0, 2), min_size=3))
def test_every_step_fits_and_no_unused_row_has_much_padding(
    options: PlanOptions, given_graph: tuple[Graph, np.ndarray], num_fresh: int, configs: list[int]
) -> None:
    graph, parts = given_graph
    cut = segment(graph, parts=parts)
    chosen = [each % graph.num_configs for each in configs[:CONFIGS]]
    sizes = Sizes.of([cut], 1, num_fresh, CONFIGS)
    plans = FixedPlans(options, sizes, [cut], num_fresh)
    for start in range(0, cut.num_segments, num_fresh):
        picks = [(0, j) for j in range(start, min(start + num_fresh, cut.num_segments))]
        batch = assemble([cut], picks, torch.tensor([chosen]))
        plans.check(batch)
        (plan,) = plans.of(batch.padded_to(*sizes[:4])).values()
        for layer in range(options.num_layers):
            matrix, used = plan.matrix(layer, ("own", *options.directions)), int(plan.levels[layer + 1].used)
            entries = matrix.row_ptr.diff()[used:]
            assert len(entries) and int(entries.max()) <= 64 + 1
            assert not matrix.weights[int(matrix.row_ptr[used]) :].any()
            assert int(matrix.row_ptr[-1]) == len(matrix.columns) and int(matrix.columns.max()) < matrix.shape[1]


def test_bounds_are_reached_where_all_configurations_differ() -> None:
    """Of a single segment: so many rows and messages, and not one more."""
    features = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    path = np.stack([np.arange(9), np.arange(1, 10)])
    graph = Graph(np.ones((10, 1), np.float32), path, config_nodes=np.array([0, 6]), config_features=features)
    cut, options = segment(graph, 10), PlanOptions(2, ("forward", "backward"))
    sizes = Sizes.of([cut], 1, 1, 3)
    plans = FixedPlans(options, sizes, [cut], 1)
    bounds = plans.bounds
    more = np.array([2, 5, 8, 5, 4, 5, 8, 7, 8])  # rows of three levels; messages of two layers, by part
    assert bounds.most == tuple((2 * more).tolist()), "two further configurations"
    padded = assemble([cut], [(0, 0)], torch.tensor([[0, 1, 2]])).padded_to(*sizes[:4])
    (plan,) = plans.of(padded).values()
    assert [int(level.used) for level in plan.levels] == [sizes.nodes + 2 * more for more in (2, 5, 8)]
    for layer, entries in enumerate(bounds.entries):
        for part, count in entries.items():
            assert int((plan.matrix(layer, (part,)).weights != 0).sum()) == count


def test_large_steps_are_padded_to_little_more_than_those_drawn_have() -> None:
    """Where no more than the configurations of a node differ, a step has far fewer rows than if all states did. A step
    either fits, with every row and message in its place, or is refused."""
    graph, configs, options = segment(synthetic_program(6_000, 60, num_regions=20), 500), 24, OPTIONS[0]
    sizes = Sizes.of([graph], 4, 1, configs)
    surely = FixedPlans(options, sizes, [graph], 1).bounds
    plans = FixedPlans(options, sizes._replace(likely=True), [graph], 1)
    bounds = plans.bounds
    generator, fitting = np.random.default_rng(1), 0
    for _ in range(12):
        picks = [(each, int(generator.integers(graph.num_segments))) for each in range(4)]
        chosen = torch.from_numpy(np.stack([generator.permutation(60)[:configs] for _ in range(4)]))
        batch = assemble([graph] * 4, picks, chosen)
        more = further(batch, options)
        free = DeviceSharing(batch, options)
        assert [int(level.used) - batch.num_nodes for level in free.levels] == more[: options.num_layers + 1].tolist()
        layer = options.num_layers - 1
        entries = [int((free.matrix(layer, (part,)).weights != 0).sum()) for part in options.directions]
        edges = batch.edge_index.shape[1]
        by_part = dict(zip(PARTS, more[-3:].tolist(), strict=True))
        assert entries == [by_part[part] + edges for part in options.directions]
        try:
            plans.check(batch)
        except DoesNotFit:
            assert (more > bounds.most).any()
            continue
        fitting += 1
        (plan,) = plans.of(batch.padded_to(*sizes[:4])).values()
        assert all(int(level.used) <= rows for level, rows in zip(plan.levels, bounds.rows, strict=True))
    assert fitting >= 8
    assert all(one <= other for one, other in zip(bounds.most, surely.most, strict=True))
    assert sum(bounds.most) < 0.8 * sum(surely.most)


def test_a_plan_of_other_graphs_that_does_not_fit_is_refused() -> None:
    small, large = segment(random_graph(1, 8, 9, 2), 8), segment(random_graph(2, 60, 90, 20), 60)
    plans = Sizes.of([small], 1, 1, CONFIGS, SAGE(8, 1)).plans
    assert plans is not None
    with pytest.raises(ValueError, match="a plan has more rows or messages than the padded"):
        plans.check(assemble([large], [(0, 0)], torch.tensor([[0, 1, 2]])))
