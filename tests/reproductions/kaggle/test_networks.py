"""Encoders of Kaggle's contest: equal to slow twins, and the rows that fusion saves."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from reference import as_batch, random_graph
from torch import Tensor, nn

from experiments.reproductions.kaggle.networks import CrossConfigHead, FusedSAGE, NodeNorm, NormedSAGE
from gst.graphs.segments import segment
from gst.method.batch import SegmentBatch, assemble
from gst.method.fixed_batch import Sizes
from tests.nn.slow_encoders import messages, slow_given, slow_inputs, slow_sage, slow_sage_messages

CASES: dict[str, Callable[[], nn.Module]] = {
    "gated": lambda: NormedSAGE(8, 2, channel_attention=True),
    "over nodes": lambda: NormedSAGE(8, 2, normalise_over="nodes"),
    "fused": lambda: FusedSAGE(8, 1, 1),
    "late": lambda: FusedSAGE(8, 2, 0),
}


def in_double(encoder: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    encoder(as_batch(random_graph(0)))
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if name.endswith("bias"):
                parameter.uniform_(-0.5, 0.5)
    return encoder.double()


def made(before: int, after: int) -> FusedSAGE:
    return in_double(FusedSAGE(8, before, after))


def outcome(encoder: nn.Module, states: Tensor) -> list[Tensor]:
    weights = torch.linspace(-1, 1, states.numel(), dtype=states.dtype).view_as(states)
    parameters = list(encoder.parameters())
    return [
        states,
        *torch.autograd.grad((states * weights).sum(), parameters, materialize_grads=True, allow_unused=True),
    ]


def assert_same(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


# Slow twins: one configuration after the other, node by node ------------------------------------------


def slow_encode_under(encoder: nn.Module, batch: SegmentBatch, config: int) -> Tensor:
    given, hidden = slow_given(encoder.inputs, batch, config), slow_inputs(encoder.inputs, batch)
    by_direction = [messages(batch, direction) for direction in encoder.directions]
    if isinstance(encoder, FusedSAGE):
        for layer in encoder.before:
            hidden = slow_sage(layer, hidden, by_direction)
        for v in given:
            fusion = encoder.fusion
            hidden[v] = hidden[v] + fusion.mix(fusion.norm(fusion.state(hidden[v]) + given[v]).relu())
        for layer in encoder.after:
            hidden = slow_sage(layer, hidden, by_direction)
        return torch.stack(hidden)
    hidden = [hidden[v] + given[v] if v in given else hidden[v] for v in range(len(hidden))]
    for layer in encoder.layers:
        received = slow_sage_messages(layer, hidden, by_direction)
        normed = slow_norm(layer.norm, received, batch.segment_of_node.tolist())
        kept = [slow_gate(layer.attention, state) for state in hidden]
        hidden = [state + message.relu() for state, message in zip(kept, normed, strict=True)]
    return torch.stack(hidden)


def slow_norm(norm: nn.Module, states: list[Tensor], segment_of_node: list[int]) -> list[Tensor]:
    if not isinstance(norm, NodeNorm):
        return [norm(state) for state in states]
    after = []
    for v, state in enumerate(states):
        together = torch.stack([states[u] for u in range(len(states)) if segment_of_node[u] == segment_of_node[v]])
        scaled = (state - together.mean(0)) / (together.var(0, unbiased=False) + norm.eps).sqrt()
        after.append(scaled * norm.weight + norm.bias)
    return after


def slow_gate(attention: nn.Module, state: Tensor) -> Tensor:
    if isinstance(attention, nn.Identity):
        return state
    first, _, second, _ = attention.gate
    hidden = torch.clamp(first.weight @ state + first.bias, min=0)
    return state / (1 + torch.exp(-(second.weight @ hidden + second.bias)))


@pytest.mark.parametrize("case", CASES)
def test_an_encoder_does_what_its_source_says(case: str) -> None:
    graph = segment(random_graph(1, 14, 24, 3), 8)
    batch = assemble([graph], [(0, j) for j in range(graph.num_segments)], torch.tensor([[0, 2, 1]]))
    batch, encoder = batch.to(torch.device("cpu"), torch.float64), in_double(CASES[case]())
    twin = copy.deepcopy(encoder)
    slow = torch.stack([slow_encode_under(twin, batch, c) for c in range(batch.num_configs)], 1)
    assert_same(outcome(encoder, encoder(batch).dense()), outcome(twin, slow))


def test_a_padded_step_normalises_over_the_nodes_of_its_own_segments() -> None:
    graph, encoder = segment(random_graph(1, 14, 24, 3), 8), in_double(CASES["over nodes"]())
    batch = assemble([graph], [(0, 0), (0, 1)], torch.tensor([[0, 2, 1]])).to(torch.device("cpu"), torch.float64)
    sizes = Sizes.of([graph], 1, 2, 3, encoder)
    assert sizes.plans is not None
    larger = batch.padded_to(*sizes[:4])
    larger.plans.update(sizes.plans.of(larger))
    torch.testing.assert_close(encoder(larger).dense()[: batch.num_nodes], encoder(batch).dense())


# Fusion ---------------------------------------------------------------------------------------------


def test_configurations_attend_to_each_other_in_any_order() -> None:
    head, embedding = CrossConfigHead(8, heads=2), torch.randn(2, 5, 8)
    order = torch.randperm(5)
    torch.testing.assert_close(head(embedding)[:, order], head(embedding[:, order]))
    changed = embedding.clone()
    changed[0, 4] = torch.randn(8)
    assert (head(embedding)[0, :4] != head(changed)[0, :4]).all()
    torch.testing.assert_close(head(embedding)[1], head(changed)[1])
