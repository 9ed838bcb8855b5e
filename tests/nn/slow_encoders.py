"""Slow twins of the encoders: one configuration after the other, node by node, message by message, as in the papers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from gst.method.batch import SegmentBatch
from gst.nn import ENCODERS, GCN, GIN, SAGE

Messages = list[tuple[int, int]]
"""(sender, receiver) of every message."""

CASES: dict[str, Callable[..., nn.Module]] = {
    **ENCODERS,
    "SAGE sum": lambda *a, **k: SAGE(*a, aggregation="sum", **k),
    "SAGE max": lambda *a, **k: SAGE(*a, aggregation="max", **k),
}


def made(case: str, batch: SegmentBatch, channels: int = 8, num_layers: int = 2, **arguments) -> nn.Module:
    """An encoder of the dtype of `batch` without lazy layers; eps of GIN is not 0."""
    torch.manual_seed(0)
    encoder = CASES[case](channels, num_layers, **arguments)
    encoder(batch.to(torch.device("cpu"), torch.float32))
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if name.endswith(("eps", "bias")):
                parameter.uniform_(-0.5, 0.5)
    return encoder.to(batch.node_features.dtype)


def messages(batch: SegmentBatch, direction: str) -> Messages:
    pairs = [(int(u), int(v)) for u, v in batch.edge_index.T]
    return pairs if direction == "forward" else [(v, u) for u, v in pairs]


def senders(node: int, all_messages: Messages) -> list[int]:
    return [u for u, v in all_messages if v == node]


def slow_encode(encoder: nn.Module, batch: SegmentBatch) -> Tensor:
    """(nodes, configs, channels)"""
    return torch.stack([slow_encode_under(encoder, batch, c) for c in range(batch.num_configs)], 1)


def slow_encode_under(encoder: nn.Module, batch: SegmentBatch, config: int) -> Tensor:
    given = slow_given(encoder.inputs, batch, config)
    hidden = slow_inputs(encoder.inputs, batch)
    by_direction = [messages(batch, direction) for direction in encoder.directions]
    hidden = [hidden[v] + given[v] if v in given else hidden[v] for v in range(len(hidden))]
    for layer in encoder.layers:
        hidden = SLOW_LAYERS[type(encoder)](layer, hidden, by_direction)
    return torch.stack(hidden)


def slow_inputs(inputs: nn.Module, batch: SegmentBatch) -> list[Tensor]:
    return [
        inputs.static(slow_log(batch.node_features[v])) + inputs.opcode.weight[batch.opcodes[v]]
        for v in range(batch.num_nodes)
    ]


def slow_given(inputs: nn.Module, batch: SegmentBatch, config: int) -> dict[int, Tensor]:
    """What the configuration gives each configurable node."""
    return {
        int(v): inputs.config(slow_config(inputs, batch.config_features[i, config]))
        for i, v in enumerate(batch.config_nodes)
    }


def slow_config(inputs: nn.Module, given: Tensor) -> Tensor:
    if inputs.config_symbols:
        flags = [float(value == symbol - 1) for value in given.tolist() for symbol in range(inputs.config_symbols)]
        return torch.tensor(flags, dtype=given.dtype)
    return slow_log(given) if inputs.log_config else given


def slow_log(x: Tensor) -> Tensor:
    return x.sign() * (1 + x.abs()).log()


def slow_sage(layer: nn.Module, hidden: list[Tensor], by_direction: list[Messages]) -> list[Tensor]:
    received = slow_sage_messages(layer, hidden, by_direction)
    return [state + layer.norm(message).relu() for state, message in zip(hidden, received, strict=True)]


def slow_sage_messages(layer: nn.Module, hidden: list[Tensor], by_direction: list[Messages]) -> list[Tensor]:
    received = []
    for v in range(len(hidden)):
        own, *weights = layer.project.weight.chunk(1 + len(by_direction))
        message = own @ hidden[v] + layer.bias
        for weight, direction in zip(weights, by_direction, strict=True):
            heard = [weight @ hidden[u] for u in senders(v, direction)]
            if heard:
                message = message + slow_aggregate(heard, layer.aggregation)
        received.append(message)
    return received


def slow_aggregate(heard: list[Tensor], aggregation: str) -> Tensor:
    together = torch.stack(heard)
    return {"sum": together.sum(0), "mean": together.mean(0), "max": together.amax(0)}[aggregation]


def slow_gcn(layer: nn.Module, hidden: list[Tensor], by_direction: list[Messages]) -> list[Tensor]:
    """Kipf and Welling 2017, eq. 2, with matrices."""
    adjacency = torch.zeros(len(hidden), len(hidden), dtype=hidden[0].dtype)
    for u, v in [message for direction in by_direction for message in direction]:
        adjacency[v, u] += 1
    with_loops = adjacency + torch.eye(len(hidden), dtype=hidden[0].dtype)
    scale = torch.diag(with_loops.sum(1) ** -0.5)
    heard = scale @ with_loops @ scale @ torch.stack(hidden) @ layer.convolution.project.weight.T
    return list(torch.stack(hidden) + layer.norm(heard).relu())


def slow_gin(layer: nn.Module, hidden: list[Tensor], by_direction: list[Messages]) -> list[Tensor]:
    """Xu et al. 2019, eq. 4.1."""
    together, after = [message for direction in by_direction for message in direction], []
    for v in range(len(hidden)):
        heard = (1 + layer.convolution.eps) * hidden[v]
        for u in senders(v, together):
            heard = heard + hidden[u]
        after.append(hidden[v] + layer.norm(layer.convolution.mlp(heard)).relu())
    return after


SLOW_LAYERS = {SAGE: slow_sage, GCN: slow_gcn, GIN: slow_gin}
