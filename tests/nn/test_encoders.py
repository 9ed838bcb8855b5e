"""Laws that every encoder keeps."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from reference import as_batch, graphs_and_parts, nodes_within, random_graph
from slow_encoders import CASES, made, slow_encode
from torch import Tensor, nn

from gst.graphs.graph import Graph
from gst.graphs.segments import segment
from gst.method.batch import NodeStates, SegmentBatch, assemble
from gst.nn import SAGE
from tests.choices import with_rest

PRECISE = {torch.float64: 1e-10, torch.float32: 1e-5}


def batch_of(graph: Graph, dtype: torch.dtype = torch.float64) -> SegmentBatch:
    return as_batch(graph).to(torch.device("cpu"), dtype)


def unshared(encoder: nn.Module) -> nn.Module:
    twin = copy.deepcopy(encoder)
    twin.share = False
    return twin


def num_rows(states: NodeStates) -> int:
    return states.row_of.unique().numel()


def outcome(encoder: nn.Module, states: Tensor) -> list[Tensor]:
    """The states, and the gradient of every parameter of something that depends on all of them unequally, brought to
    size 1."""
    weights = torch.linspace(-1, 1, states.numel(), dtype=states.dtype).view_as(states)
    found = torch.autograd.grad((states * weights).mean(), list(encoder.parameters()), allow_unused=True)
    gradients = [torch.zeros_like(p) if g is None else g for p, g in zip(encoder.parameters(), found, strict=True)]
    return [states.detach(), *gradients]


def assert_equal(ours: list[Tensor], theirs: list[Tensor], tolerance: float) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


# Equal to the slow twins ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", PRECISE, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_an_encoder_does_what_its_paper_says(case: str, dtype: torch.dtype) -> None:
    graph = segment(random_graph(1, 14, 24, 3), 8)
    batch = assemble([graph], [(0, j) for j in range(graph.num_segments)], torch.tensor([[0, 2, 1]]))
    batch = batch.to(torch.device("cpu"), dtype)
    encoder = made(case, batch)
    twin = copy.deepcopy(encoder)
    ours, theirs = encoder(batch).dense(), slow_encode(twin, batch)
    assert_equal(outcome(encoder, ours), outcome(twin, theirs), PRECISE[dtype])


@pytest.mark.parametrize("directions", [("forward",), ("backward",)], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_messages_may_run_one_way_only(case: str, directions: tuple[str]) -> None:
    batch = batch_of(random_graph(2, 10, 16, 3))
    encoder = made(case, batch, directions=directions)
    assert_equal([encoder(batch).dense()], [slow_encode(encoder, batch)], 1e-10)


@pytest.mark.parametrize("dtype", with_rest(PRECISE, [torch.float64]), ids=str)
@pytest.mark.parametrize("case", CASES)
@settings(max_examples=8)
@given(given_graph=graphs_and_parts())
def test_states_that_are_shared_are_those_of_every_configuration(
    case: str, dtype: torch.dtype, given_graph: tuple[Graph, np.ndarray]
) -> None:
    batch = batch_of(given_graph[0], dtype)
    encoder = made(case, batch)
    twin = unshared(encoder)
    ours, theirs = encoder(batch), twin(batch)
    assert num_rows(ours) <= num_rows(theirs) == batch.num_nodes * batch.num_configs
    assert_equal(outcome(encoder, ours.dense()), outcome(twin, theirs.dense()), PRECISE[dtype])


@pytest.mark.parametrize("case", CASES)
def test_what_no_configuration_reaches_is_computed_once(case: str) -> None:
    """Two segments, one without a configurable node; in the other a path of which one end is configurable."""
    path = np.array([[0, 1, 2, 3, 4, 6, 7], [1, 2, 3, 4, 5, 7, 8]])
    features = np.arange(4, dtype=np.int8).reshape(4, 1, 1)
    graph = Graph(np.eye(9, 3, dtype=np.float32), path, np.arange(9), np.array([0]), features, np.ones(4))
    cut = segment(graph, parts=np.array([0] * 6 + [1] * 3))
    batch = assemble([cut], [(0, 0), (0, 1)], torch.tensor([[0, 1, 2, 3]]))
    states = made(case, batch)(batch)
    assert num_rows(states) == 3 * 4 + 3 * 1 + 3


@pytest.mark.parametrize("case", CASES)
def test_bfloat16_is_near(case: str) -> None:
    batch = batch_of(random_graph(3), torch.float32)
    encoder = made(case, batch)
    truth = encoder(batch).dense()
    short = copy.deepcopy(encoder).bfloat16()
    rounded = short(batch.to(torch.device("cpu"), torch.bfloat16)).dense()
    assert rounded.dtype == torch.bfloat16
    assert (rounded.float() - truth).norm() < 0.02 * truth.norm()
    ours, theirs = outcome(short, rounded), outcome(encoder, truth)
    apart = torch.cat([(a.float() - b).flatten() for a, b in zip(ours[1:], theirs[1:], strict=True)])
    assert apart.norm() < 0.15 * torch.cat([b.flatten() for b in theirs[1:]]).norm()


@pytest.mark.parametrize("case", CASES)
def test_autocast_computes_in_bfloat16_and_learns_in_float32(case: str) -> None:
    batch = batch_of(random_graph(3), torch.float32)
    encoder = made(case, batch)
    truth = encoder(batch).dense()
    with torch.autocast("cpu", torch.bfloat16):
        rounded = encoder(batch).dense()
    assert 0 < (rounded.float() - truth).norm() < 0.02 * truth.norm()
    assert all(g.dtype == torch.float32 and g.isfinite().all() for g in outcome(encoder, rounded.float())[1:])


# Who hears whom ------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_layers", [0, 1, 2])
@pytest.mark.parametrize("case", CASES)
def test_a_node_hears_of_others_up_to_the_depth_and_no_further(case: str, num_layers: int) -> None:
    """Distances are those of the graph without direction. Where maxima are taken, some neighbours are not heard."""
    graph = random_graph(0, num_edges=20)
    batch = batch_of(graph)
    encoder = made(case, batch, num_layers=num_layers)
    features = batch.node_features.clone().requires_grad_()
    for node in range(0, 24, 5):
        hidden = encoder(replace(batch, node_features=features)).dense()
        (gradient,) = torch.autograd.grad(hidden[node].square().sum(), features)
        heard = set(gradient.abs().sum(1).nonzero().flatten().tolist())
        near = nodes_within(graph, {node}, num_layers)
        if case == "SAGE max":
            assert {node} <= heard <= near
        else:
            assert heard == near


@pytest.mark.parametrize("case", CASES)
def test_configurations_are_encoded_apart(case: str) -> None:
    batch = batch_of(random_graph(0))
    encoder = made(case, batch)
    hidden = encoder(batch).dense()
    assert hidden.shape == (24, 3, 8)
    for c in range(3):
        alone = encoder(replace(batch, config_features=batch.config_features[:, c : c + 1])).dense()
        torch.testing.assert_close(hidden[:, c : c + 1], alone)
    order = torch.tensor([2, 0, 1])
    reordered = encoder(replace(batch, config_features=batch.config_features[:, order])).dense()
    torch.testing.assert_close(reordered, hidden[:, order])


@pytest.mark.parametrize("case", CASES)
def test_segments_of_a_batch_are_encoded_apart(case: str) -> None:
    graph, configs = segment(random_graph(0), 8), torch.tensor([[0, 2]])
    together = assemble([graph], [(0, 1), (0, 0), (0, 2)], configs)
    encoder = made(case, together)
    apart = [encoder(assemble([graph], [(0, j)], configs)).dense() for j in (1, 0, 2)]
    torch.testing.assert_close(encoder(together).dense(), torch.cat(apart), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_names_of_nodes_and_order_of_edges_do_not_matter(case: str) -> None:
    """Nor does it matter that the nodes of a segment stand apart in the batch."""
    graph = segment(random_graph(5), 8)
    batch = assemble([graph], [(0, 0), (0, 1), (0, 2)], torch.tensor([[0, 2]]))
    batch = batch.to(torch.device("cpu"), torch.float64)
    encoder, generator = made(case, batch), torch.Generator().manual_seed(0)
    order = torch.randperm(batch.num_nodes, generator=generator)  # new node i is old node order[i]
    name = torch.argsort(order)
    by_node = {key: getattr(batch, key)[order] for key in ("node_features", "opcodes", "segment_of_node", "owned")}
    edges = name[batch.edge_index][:, torch.randperm(batch.edge_index.shape[1], generator=generator)]
    renamed = replace(batch, edge_index=edges, config_nodes=name[batch.config_nodes], **by_node)
    ours, theirs = encoder(renamed).dense(), encoder(batch).dense()
    assert_equal(outcome(encoder, ours[name]), outcome(encoder, theirs), 1e-9)


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=8)
@given(given_graph=graphs_and_parts())
def test_with_a_halo_of_the_depth_segments_see_what_the_whole_graph_sees(
    case: str, given_graph: tuple[Graph, np.ndarray]
) -> None:
    """Messages of GCN weigh by the degrees of their senders, which are known one hop further only."""
    graph, parts = given_graph
    whole = batch_of(graph)
    encoder = made(case, whole)
    truth = encoder(whole).dense()
    cut = segment(graph, parts=parts, halo=2 + getattr(encoder, "further_hops", 0))
    configs = torch.arange(graph.num_configs)[None]
    for j in range(cut.num_segments):
        batch = assemble([cut], [(0, j)], configs).to(torch.device("cpu"), torch.float64)
        owned = encoder(batch).dense()[batch.owned]
        torch.testing.assert_close(owned, truth[torch.from_numpy(np.flatnonzero(parts == j))], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_edges_have_a_direction_where_the_paper_knows_one(case: str) -> None:
    batch = batch_of(random_graph(0))
    encoder = made(case, batch)
    turned = encoder(replace(batch, edge_index=batch.edge_index.flip(0))).dense()
    assert torch.allclose(encoder(batch).dense(), turned) != case.startswith("SAGE")


# Construction --------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("num_configurable", [0, 5])
def test_one_batch_makes_all_parameters(case: str, num_configurable: int) -> None:
    encoder = made(case, batch_of(random_graph(0, num_configurable=num_configurable)))
    assert not any(nn.parameter.is_lazy(p) for p in encoder.parameters())
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in encoder.modules())


def test_what_is_not_known_is_named(unchecked: None) -> None:
    with pytest.raises(ValueError, match=r"'median'.*mean, sum, max"):
        SAGE(8, aggregation="median")
    batch = as_batch(random_graph(0))
    with pytest.raises(ValueError, match="'sideways'"):
        SAGE(8, directions=("sideways",))(batch)
