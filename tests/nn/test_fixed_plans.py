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

from gst.graphs.graph import Graph
from gst.graphs.segments import SegmentedGraph, segment
from gst.method.batch import SegmentBatch, assemble
from gst.method.encoding import call_of, embed_segments
from gst.method.fixed_step import Sizes
from gst.nn import SAGE
from gst.nn.bounds import PlanOptions
from gst.nn.encoders import Encoder, InputProjection
from gst.nn.sharing import FixedPlans, Sharing

DOUBLE = torch.device("cpu"), torch.float64
FIXED = [name for name in CASES if not name.startswith("GPS")]
CONFIGS = 3
OPTIONS = [
    PlanOptions(2, ("forward", "backward")), PlanOptions(1, ("backward",)), PlanOptions(2, ("forward",), share=False),
    PlanOptions(2, ("forward",), whole_segments=True), PlanOptions(2, ("forward", "backward"), one_config=True),
]  # fmt: skip


def cut_graphs() -> list[SegmentedGraph]:
    """Of two sizes, the second with few configurable nodes."""
    return [segment(random_graph(1, 14, 24, 3), 5), segment(random_graph(2, 20, 30, 1), 5)]


def batch_of(graphs: Sequence[SegmentedGraph], picks: list[tuple[int, int]], configs: list[int]) -> SegmentBatch:
    return assemble(graphs, picks, torch.tensor([configs] * len(graphs))).to(*DOUBLE)


def padded(batch: SegmentBatch, sizes: Sizes, into: SegmentBatch | None = None) -> SegmentBatch:
    """The batch with its plans, in the tensors of another one if it is given."""
    assert sizes.plans is not None
    plans, new = sizes.plans.of(batch), batch.padded_to(*sizes[:4])
    if into is not None:
        for name, tensor in new.tensors().items():
            into.tensors()[name].copy_(tensor)
        new = into
    sizes.plans.put(plans, new)
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
@pytest.mark.parametrize("case", FIXED)
def test_a_padded_plan_changes_neither_embeddings_nor_gradients(case: str, pooling: str, share: bool) -> None:
    """Nor does what the tensors held before: the second batch is put into those of the first."""
    graphs = cut_graphs()
    steps = [([(0, 0), (0, 1), (1, 2)], [0, 1, 2]), ([(1, 0), (1, 3)], [2, 2, 0]), ([(0, 2), (1, 1)], [1, 0, 1])]
    batches = [batch_of(graphs, *step) for step in steps]
    encoder = made(case, batches[0], share=share)
    sizes, kept = Sizes.of(graphs, 2, 2, CONFIGS, encoder), None
    for batch in batches:
        want = outcome(encoder, batch, batch.num_segments, pooling)
        kept = padded(batch, sizes, kept)
        assert_same(outcome(encoder, kept, batch.num_segments, pooling), want)


def test_a_plan_stays_in_the_tensors_of_the_first() -> None:
    graphs = cut_graphs()
    first = batch_of(graphs, [(0, 0), (1, 1)], [0, 1, 2])
    encoder = made("SAGE mean", first)
    sizes = Sizes.of(graphs, 2, 1, CONFIGS, encoder)
    kept = padded(first, sizes)
    outcome(encoder, kept, 2)
    (plan,) = kept.plans.values()
    places = {key: [each.data_ptr() for each in made_of] for key, made_of in plan._tensors.items()}
    assert len(places) == 7  # two matrices of each layer, one of the inputs, what is given, rows of nodes
    padded(batch_of(graphs, [(0, 1), (1, 0)], [2, 1, 1]), sizes, kept)
    (plan,) = kept.plans.values()
    assert {key: [each.data_ptr() for each in made_of] for key, made_of in plan._tensors.items()} == places


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
    plans = FixedPlans.made_for([], [options], sizes, [cut], num_fresh)
    for start in range(0, cut.num_segments, num_fresh):
        picks = [(0, j) for j in range(start, min(start + num_fresh, cut.num_segments))]
        (plan,) = plans.of(assemble([cut], picks, torch.tensor([chosen]))).values()
        for layer in range(options.num_layers):
            matrix, level = plan.matrix(layer, ("own", *options.directions)), plan.levels[layer + 1]
            entries = matrix.row_ptr.diff()[len(level.config_of_row) :]
            assert level.num_rows > len(level.config_of_row) and int(entries.max()) <= 64 + 1
            assert not matrix.weights[int(matrix.row_ptr[len(level.config_of_row)]) :].any()


def test_bounds_are_reached_where_all_configurations_differ() -> None:
    """Of a single segment: so many messages, and not one more."""
    features = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    path = np.stack([np.arange(9), np.arange(1, 10)])
    graph = Graph(np.ones((10, 1), np.float32), path, config_nodes=np.array([0, 6]), config_features=features)
    cut, options = segment(graph, 10), PlanOptions(2, ("forward", "backward"))
    (bounds,) = FixedPlans.made_for([], [options], Sizes.of([cut], 1, 1, 3), [cut], 1).bounds.values()
    plan = Sharing.of(assemble([cut], [(0, 0)], torch.tensor([[0, 1, 2]])), *options)
    assert [len(level.config_of_row) for level in plan.levels] == [10 + 2 * 2, 10 + 2 * 5, 10 + 2 * 8]
    for layer, entries in enumerate(bounds.entries):
        for part, count in entries.items():
            assert len(plan.matrix(layer, (part,)).columns) == count


def test_a_plan_of_other_graphs_that_does_not_fit_is_refused() -> None:
    small, large = segment(random_graph(1, 8, 9, 2), 8), segment(random_graph(2, 60, 90, 20), 60)
    plans = Sizes.of([small], 1, 1, CONFIGS, SAGE(8, 1)).plans
    assert plans is not None
    with pytest.raises(ValueError, match=r"a plan of \d+ rows does not fit into \d+"):
        plans.of(assemble([large], [(0, 0)], torch.tensor([[0, 1, 2]])))


class OfAnother(nn.Module):
    """A layer that may read anything of a plan."""


@pytest.mark.parametrize("case", ["GPS softmax", "GPS linear", "another"])
def test_layers_of_other_shapes_in_each_step_are_refused(case: str) -> None:
    encoder = Encoder(InputProjection(8), [OfAnother()]) if case == "another" else CASES[case](8, 1)
    with pytest.raises(ValueError, match=r"(OfAnother|GPSLayer) has other shapes in each step; use SAGE, GCN"):
        Sizes.of(cut_graphs(), 1, 1, 3, encoder)
