"""GraphSAGE over directed edges, for any number of configurations at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gst.nn.edges import neighbour_max
from gst.nn.message_passing import BOTH, After, Before, Encoder, InputProjection, NodeNorm
from gst.nn.sharing import Direction, Part, Sharing
from gst.nn.sparse import product

Aggregation = Literal["mean", "sum", "max"]
Over = Literal["channels", "nodes"]


class ChannelAttention(nn.Module):
    """h sigmoid(W2 relu(W1 h)): each row decides which of its channels go on. Squeeze and excitation (Hu et al. 2018,
    eq. 3) of single rows, as in the SAGE blocks that won Kaggle's "Predict AI Model Runtime" (their code:
    github.com/thanhhau097/google_fast_or_slow)."""

    def __init__(self, channels: int, reduction: int = 8) -> None:
        super().__init__()
        narrow = max(1, channels // reduction)
        self.gate = nn.Sequential(nn.Linear(channels, narrow), nn.ReLU(), nn.Linear(narrow, channels), nn.Sigmoid())

    def forward(self, rows: Float[Tensor, "rows channels"]) -> Float[Tensor, "rows channels"]:
        return rows * self.gate(rows).to(rows.dtype)


class SAGELayer(nn.Module):
    """h + relu(norm(W h + sum of aggregation(W_d neighbours in direction d) + b)), after Hamilton et al. 2017: the mean
    aggregator, or for `max` the pooling aggregator (eq. 3) without its nonlinearity. With channel attention the first
    h is gated.

    Rows are projected before they are aggregated, by one product for the node and all directions. LayerNorm looks at
    one row alone, and `NodeNorm` at one segment, so nothing leaks from one segment of a batch to another.
    """

    def __init__(
        self, channels: int, directions: Sequence[Direction] = BOTH, aggregation: Aggregation = "mean",
        normalise_over: Over = "channels", channel_attention: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        if aggregation not in get_args(Aggregation):
            raise ValueError(f"aggregation {aggregation!r}? neighbours give their {', '.join(get_args(Aggregation))}")
        if normalise_over not in get_args(Over):
            raise ValueError(f"normalise_over {normalise_over!r}? states are normalised over channels or nodes")
        self.aggregation = aggregation
        self.parts: tuple[Part, ...] = ("own", *directions)
        self.project = nn.Linear(channels, len(self.parts) * channels, bias=False)
        self.bias = nn.Parameter(torch.zeros(channels))
        self.norm = nn.LayerNorm(channels) if normalise_over == "channels" else NodeNorm(channels)
        self.attention = ChannelAttention(channels) if channel_attention else nn.Identity()

    def forward(self, rows: Before, sharing: Sharing, number: int) -> After:
        message = self._message(self.project(rows), sharing, number)
        message.add_(self.bias.to(message.dtype))
        message = self.norm(message, sharing, number) if isinstance(self.norm, NodeNorm) else self.norm(message)
        return product(sharing.matrix(number, ("own",)), self.attention(rows)).add_(message.relu_())

    def _message(self, projected: Float[Tensor, "before parts_channels"], sharing: Sharing, number: int) -> After:
        by_part = projected.unflatten(1, (len(self.parts), -1))
        if self.aggregation != "max":
            return product(sharing.matrix(number, self.parts, self.aggregation, stacked=True), by_part.flatten(0, 1))
        message = product(sharing.matrix(number, ("own",)), by_part[:, 0])
        for i, part in enumerate(self.parts[1:], start=1):
            message = message + neighbour_max(sharing.matrix(number, (part,)), by_part[:, i])
        return message


class SAGE(Encoder):
    """GraphSAGE encoder over directed edges: `SegmentBatch` -> `NodeStates`.

    Args:
        channels: width of every layer and of the embeddings.
        num_layers: depth; a node hears of others up to so many edges away.
        num_opcodes, config_symbols, log_config: see `InputProjection`.
        directions: which way messages run, `forward` from producers to consumers, `backward` or both.
        share: compute equal states once. False computes every node under every configuration: the same result, slower.
        aggregation: what a node takes from the neighbours of a direction, channel by channel.
        normalise_over: the `channels` of each state, or for each channel the `nodes` of a segment (`NodeNorm`), context
            nodes included. The latter makes segments part of the model, and every node then depends on all configurable
            nodes of its segment, so that little is left to share.
        channel_attention: gate what a node keeps of its own state, see `ChannelAttention`.
    """

    def __init__(
        self, channels: int = 64, num_layers: int = 3, num_opcodes: int = 256, config_symbols: int = 0,
        log_config: bool = True, directions: Sequence[Direction] = BOTH, share: bool = True,
        aggregation: Aggregation = "mean", normalise_over: Over = "channels", channel_attention: bool = False,
    ) -> None:  # fmt: skip
        inputs = InputProjection(channels, num_opcodes, config_symbols, log_config)
        options = (directions, aggregation, normalise_over, channel_attention)
        layers = [SAGELayer(channels, *options) for _ in range(num_layers)]
        super().__init__(inputs, layers, directions, share, whole_segments=normalise_over == "nodes")
