from __future__ import annotations

from functools import partial
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gst.method.batch import NodeStates, SegmentBatch
from gst.method.encoding import Call, embed_segments
from gst.method.readouts import (
    GraphPool,
    Pooling,
    SegmentMaxima,
    SegmentSums,
    _pool_owned_with_torch,
    _pool_with_torch,
    pool_nodes,
)

POOLINGS = get_args(Pooling)


def pool_segments(
    embeddings: Tensor, weights: Tensor, counts: Tensor, graphs: Tensor, graph_counts: Tensor, pooling: Pooling
) -> Tensor:
    """One segment at a time."""
    pool = GraphPool(graph_counts, pooling)
    for row in torch.arange(len(embeddings)).split(1):
        pool.add(embeddings[row], weights[row], counts[row], graphs[row])
    return pool.result()


def batch_of(segment_of_node: Tensor, owned: Tensor, counts: Tensor) -> SegmentBatch:
    nodes, none = len(owned), torch.zeros(0, dtype=torch.long)
    return SegmentBatch(
        torch.zeros(nodes, 1), torch.zeros(nodes, dtype=torch.long), torch.zeros(2, 0, dtype=torch.long),
        segment_of_node, owned, counts, none, torch.zeros(0, 2, 1),
    )  # fmt: skip


@pytest.mark.parametrize("pooling", POOLINGS)
@given(
    owned_counts=st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=3),
    context=st.integers(0, 2),
    share_alike=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_nodes_to_segments_to_graphs_is_nodes_to_graphs(
    pooling: Pooling, owned_counts: list[list[int]], context: int, share_alike: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    flat = [count for graph in owned_counts for count in graph]
    owned = torch.cat([torch.arange(count + context) < count for count in flat])
    segment_of_node = torch.repeat_interleave(torch.arange(len(flat)), torch.tensor(flat) + context)
    graph_of_segment = torch.tensor([g for g, graph in enumerate(owned_counts) for _ in graph])
    rows = torch.arange(2 * len(owned)).view(-1, 2)
    rows[torch.rand(len(owned), generator=generator) < share_alike, 1] -= 1  # one row for both configurations
    states = NodeStates(torch.randn(2 * len(owned), 3, dtype=torch.float64, generator=generator), rows)
    counts = torch.tensor(flat)
    segments = pool_nodes(states, batch_of(segment_of_node, owned, counts), pooling)
    graph_counts = torch.tensor([sum(g) for g in owned_counts])
    pooled = pool_segments(segments, torch.ones(len(flat), 2), counts, graph_of_segment, graph_counts, pooling)
    readout = {"sum": lambda x: x.sum(0), "mean": lambda x: x.mean(0), "max": lambda x: x.amax(0)}[pooling]
    for g in range(len(owned_counts)):
        nodes = states.dense()[owned & (graph_of_segment[segment_of_node] == g)]
        torch.testing.assert_close(pooled[g], readout(nodes), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_short_numbers_are_summed_as_long_ones(pooling: Pooling) -> None:
    """257 ones are no bf16 number."""
    states = NodeStates(torch.ones(257, 1, dtype=torch.bfloat16), torch.arange(257)[:, None])
    zeros, counts = torch.zeros(257, dtype=torch.long), torch.tensor([257])
    pooled = pool_nodes(states, batch_of(zeros, zeros == 0, counts), pooling)
    assert pooled.dtype == torch.float32 and pooled.item() == {"sum": 257, "mean": 1, "max": 1}[pooling]


def test_weights_count_per_configuration() -> None:
    embeddings = torch.tensor([[[1.0], [1.0]], [[10.0], [10.0]]])
    weights = torch.tensor([[1.0, 0.0], [0.5, 3.0]])

    def pool(pooling: Pooling) -> list[float]:
        one_graph = torch.tensor([0, 0])
        counts = torch.tensor([3, 1])
        return pool_segments(embeddings, weights, counts, one_graph, torch.tensor([4]), pooling).flatten().tolist()

    assert pool("sum") == [6.0, 30.0]
    assert pool("mean") == [0.75 + 1.25, 7.5]
    assert pool("max") == [10.0, 10.0]


def test_segments_of_weight_zero_cannot_be_the_maximum() -> None:
    one = torch.ones(2, dtype=torch.long)
    weights, embeddings = torch.tensor([[1.0], [0.0]]), torch.tensor([[[1.0]], [[9.0]]])
    assert pool_segments(embeddings, weights, one, one - 1, torch.tensor([2]), "max").item() == 1


def shared_states(seed: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Rows that stand for one, some or all of 5 configurations of 12 nodes, with ties, and the segment of each node."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(5, (12, 5), generator=generator)
    labels[torch.rand(12, generator=generator) < 0.4] = 0
    rows = torch.randint(-3, 3, (60, 7), generator=generator).to(dtype)
    return rows, 5 * torch.arange(12)[:, None] + labels, torch.randint(3, (12,), generator=generator).sort().values


@pytest.mark.parametrize(("kernel", "pooling"), [(SegmentSums, "sum"), (SegmentMaxima, "max")])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@given(seed=st.integers(0, 9999))
def test_kernels_pool_and_hand_back_as_torch_does(
    dtype: torch.dtype, kernel: type[SegmentSums | SegmentMaxima], pooling: Pooling, seed: int
) -> None:
    rows, row_of, segment = shared_states(seed, dtype)
    gradient = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(seed)).to(dtype).double()
    results = []
    for pool in (kernel.apply, partial(_pool_with_torch, pooling=pooling)):
        leaf = rows.clone().requires_grad_()
        pooled = pool(leaf, row_of, segment, 3)
        (pooled.double() * gradient).sum().backward()
        results.append((pooled, leaf.grad))
    (fast, fast_gradient), (slow, slow_gradient) = results
    assert fast.dtype == slow.dtype == torch.promote_types(dtype, torch.float32)
    assert torch.equal(fast, slow)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.05}[dtype]
    torch.testing.assert_close(fast_gradient, slow_gradient, rtol=tolerance, atol=tolerance)


def test_equal_maxima_share_the_gradient_and_what_is_no_number_stays() -> None:
    rows, both = torch.tensor([[1.0], [2.0], [2.0]], requires_grad=True), torch.tensor([[0, 0], [1, 1], [2, 0]])
    unknown = rows.detach().where(rows.detach() != 1, torch.nan).requires_grad_()
    for pool in (SegmentMaxima.apply, partial(_pool_with_torch, pooling="max")):
        pooled = pool(rows, both, torch.zeros(3, dtype=torch.long), 1)
        (gradient,) = torch.autograd.grad(pooled.sum(), rows)
        assert pooled.flatten().tolist() == [2, 2] and gradient.flatten().tolist() == [0, 1.5, 0.5]
        pooled = pool(unknown, both, torch.zeros(3, dtype=torch.long), 1)
        assert pooled.isnan().all() and torch.autograd.grad(pooled.sum(), unknown)[0].isnan().all()


@pytest.mark.parametrize("pooling", ["sum", "mean", "max"])
def test_rows_shared_by_nodes_and_configurations_are_pooled_without_a_copy_for_each(pooling: Pooling) -> None:
    nodes, configs, channels = 1000, 8, 64
    rows, row_of = torch.randn(5, channels, requires_grad=True), torch.randint(5, (nodes, configs))
    batch = batch_of(torch.zeros(nodes, dtype=torch.long), torch.ones(nodes, dtype=torch.bool), torch.tensor([nodes]))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        pool_nodes(NodeStates(rows, row_of), batch, pooling).sum().backward()
    taken = [event.nbytes() for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    assert rows.nbytes < sum(each for each in taken if each > 0) < nodes * configs * channels * 4 / 4


@pytest.mark.parametrize("pooling", POOLINGS)
def test_pooling_on_an_accelerator_leaves_out_context_without_waiting_for_it(pooling: Pooling) -> None:
    rows, row_of, segment = shared_states(0, torch.float64)
    owned = torch.arange(12) % 4 != 1
    batch = batch_of(segment, owned, torch.bincount(segment[owned], minlength=3))
    on_host = pool_nodes(NodeStates(rows, row_of), batch, pooling)
    assert pool_nodes(
        NodeStates(rows.to("meta"), row_of.to("meta")), batch.to(torch.device("meta"), torch.float64), pooling
    ).is_meta
    pool = _pool_owned_with_torch(NodeStates(rows, row_of), batch, pooling)
    torch.testing.assert_close(pool, on_host * batch.node_counts[:, None, None] if pooling == "mean" else on_host)


def test_rows_that_are_not_there_are_refused(unchecked: None) -> None:
    batch = batch_of(torch.zeros(2, dtype=torch.long), torch.ones(2, dtype=torch.bool), torch.tensor([2]))
    states = NodeStates(torch.ones(2, 1), torch.tensor([[0, 1], [1, 2]]))
    with pytest.raises(ValueError, match="row_of points outside its 2 rows"):
        embed_segments(lambda batch: states, batch, Call("batch"), "sum")


@pytest.mark.parametrize("pooling", ["mean", "sum", "softmax"])
def test_a_million_equal_rows_have_their_mean(pooling: str) -> None:
    none, everything = torch.zeros(0, dtype=torch.int64), torch.zeros(10**6, dtype=torch.int64)
    batch = SegmentBatch(
        torch.zeros(10**6, 1), everything, none.view(2, 0), everything, everything == 0, torch.tensor([10**6]), none,
        torch.zeros(0, 1, 0),
    )  # fmt: skip
    rows = torch.full((10**6, 2), 0.1)
    states = NodeStates(rows, torch.arange(10**6)[:, None])
    for pool in (pool_nodes, _pool_owned_with_torch):
        got = pool(states, batch, pooling)[0, 0, 0]  # type: ignore[arg-type]
        got = got / 10**6 if pooling == "sum" or (pooling == "mean" and pool is not pool_nodes) else got
        assert float(got) == pytest.approx(0.1, rel=1e-4)
