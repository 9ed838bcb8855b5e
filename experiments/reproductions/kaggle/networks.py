"""Networks of Kaggle's "Predict AI Model Runtime" and of TGraph: fusion within the encoder, norms, gates and a head.

A configuration names them by their import path: `experiments.reproductions.kaggle.networks.FusedSAGE`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from gst.method.batch import NodeStates, SegmentBatch
from gst.nn import Head
from gst.nn.encoders import BOTH, Aggregation, Encoder, InputProjection, SAGELayer
from gst.nn.plans import planned
from gst.nn.sharing import Direction, PlanOptions
from gst.nn.sparse import by_rows, product

Over = Literal["channels", "nodes"]


class Fusion(nn.Module):
    """h + W relu(norm(U h + c)): the effect of the configuration c on a configurable node in the state h."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.state, self.norm = nn.Linear(channels, channels), nn.LayerNorm(channels)
        self.mix = nn.Linear(channels, channels)

    def forward(
        self,
        states: Float[Tensor, "configurable channels"],
        slots: Int64[Tensor, " given"],
        configurations: Float[Tensor, "given channels"],
    ) -> Float[Tensor, "given channels"]:
        """Return the terms added to the states of nodes `slots` under these configurations."""
        both = by_rows(self.state, states).index_select(0, slots) + configurations
        return by_rows(self.mix, self.norm(both).relu())


class FusedSAGE(nn.Module):
    """SAGE layers on the graph without configurations, fusion at the configurable nodes, SAGE layers under every
    configuration: `SegmentBatch` -> `NodeStates`.

    `before` and `after` count the layers on either side. With `before=0` configurations enter early, as in `SAGE`; with
    `after=0` late: nodes know only their own configuration (the early and the late join of Phothilimthana et al. 2023,
    arXiv 2308.13490). Layers before fusion have one row for each node, those after it one for each node and class of
    configurations within their own number of hops. A segment sees what the whole graph sees with a `halo` of
    `before + after` hops. The other arguments are those of `gst.nn.SAGE`. Its training steps are not padded.
    """

    def __init__(
        self,
        channels: int = 64,
        before: int = 2,
        after: int = 1,
        num_opcodes: int = 256,
        config_symbols: int = 0,
        log_config: bool = True,
        directions: Sequence[Direction] = BOTH,
        share: bool = True,
    ) -> None:
        super().__init__()
        self.inputs = InputProjection(channels, num_opcodes, config_symbols, log_config)
        self.before = nn.ModuleList(SAGELayer(channels, directions) for _ in range(before))
        self.fusion = Fusion(channels)
        self.after = nn.ModuleList(SAGELayer(channels, directions) for _ in range(after))
        self.directions: tuple[Direction, ...] = tuple(directions)
        self.share = share

    def forward(self, batch: SegmentBatch) -> NodeStates:
        sharing = planned(batch, PlanOptions(len(self.after), self.directions, self.share))
        nodes, places, (slots, configs) = sharing.inputs()
        states = self._without_configurations(batch)
        configurations = self.inputs.of_configurations(batch.config_features[slots, configs])
        change = self.fusion(states.index_select(0, batch.config_nodes), slots, configurations)
        rows = product(nodes, states).index_add(0, places, change.to(states.dtype))
        for number, layer in enumerate(self.after):
            rows = layer(rows, sharing, number)
        return NodeStates(rows, sharing.row_of())

    def _without_configurations(self, batch: SegmentBatch) -> Float[Tensor, "nodes channels"]:
        one = replace(batch, config_features=batch.config_features[:, :1])
        sharing = planned(one, PlanOptions(len(self.before), self.directions))
        rows = product(sharing.inputs()[0], self.inputs.of_nodes(batch))
        for number, layer in enumerate(self.before):
            rows = layer(rows, sharing, number)
        return rows[: batch.num_nodes]


class NodeNorm(nn.Module):
    """Every channel less its mean over the nodes of the segment, in standard deviations, scaled and shifted.

    This is instance normalisation (Ulyanov et al. 2016, arXiv 1607.08022) with nodes for pixels, as in the network that
    won Kaggle's "Predict AI Model Runtime" (github.com/thanhhau097/google_fast_or_slow). No statistic crosses a
    segment or a configuration.
    """

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, rows: Float[Tensor, "rows channels"], group: Int64[Tensor, " rows"], num_groups: int) -> Tensor:
        """Normalise the rows of each group, a segment under a configuration."""
        wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
        empty = wide.new_zeros(num_groups, rows.shape[1])
        count = empty[:, :1].index_add(0, group, torch.ones_like(wide[:, :1])).clamp(min=1)

        def mean(x: Tensor) -> Tensor:
            return (empty.index_add(0, group, x) / count).index_select(0, group)

        centred = wide - mean(wide)
        scaled = centred * (mean(centred.square()) + self.eps).rsqrt() * self.weight + self.bias
        return scaled.to(rows.dtype)


class ChannelAttention(nn.Module):
    """h sigmoid(W2 relu(W1 h)): squeeze and excitation (Hu et al. 2018, eq. 3) of single rows, as in the network that
    won Kaggle's "Predict AI Model Runtime"."""

    def __init__(self, channels: int, reduction: int = 8) -> None:
        super().__init__()
        narrow = max(1, channels // reduction)
        self.gate = nn.Sequential(nn.Linear(channels, narrow), nn.ReLU(), nn.Linear(narrow, channels), nn.Sigmoid())

    def forward(self, rows: Float[Tensor, "rows channels"]) -> Float[Tensor, "rows channels"]:
        return rows * self.gate(rows).to(rows.dtype)


class NormedSAGE(Encoder):
    """SAGE whose layers normalise over nodes, or gate the part of its own state that a node keeps.

    Args:
        normalise_over: the `channels` of each state, or for each channel the `nodes` of a segment (`NodeNorm`), context
            nodes included. Every node then depends on all configurable nodes of its segment: equal states are not
            looked for.
        channel_attention: see `ChannelAttention`. The other arguments are those of `gst.nn.SAGE`.
    """

    def __init__(
        self,
        channels: int = 64,
        num_layers: int = 3,
        num_opcodes: int = 256,
        config_symbols: int = 0,
        log_config: bool = True,
        directions: Sequence[Direction] = BOTH,
        share: bool = True,
        aggregation: Aggregation = "mean",
        normalise_over: Over = "channels",
        channel_attention: bool = False,
    ) -> None:
        if normalise_over not in get_args(Over):
            raise ValueError(f"normalise_over {normalise_over!r}? states are normalised over channels or nodes")
        inputs = InputProjection(channels, num_opcodes, config_symbols, log_config)
        layers = []
        for _ in range(num_layers):
            layers.append(layer := SAGELayer(channels, directions, aggregation))
            layer.norm = nn.LayerNorm(channels) if normalise_over == "channels" else NodeNorm(channels)
            layer.attention = ChannelAttention(channels) if channel_attention else nn.Identity()
        super().__init__(inputs, layers, directions, share and normalise_over == "channels")

    def forward(self, batch: SegmentBatch) -> NodeStates:
        sharing = self.sharing(batch)
        rows = self.inputs(batch, sharing)
        for number, layer in enumerate(self.layers):
            message = self._normed(layer, layer.message(rows, sharing, number), batch)
            rows = product(sharing.matrix(number, ("own",)), layer.attention(rows)).add_(message.relu_())
        return NodeStates(rows, sharing.row_of())

    @staticmethod
    def _normed(layer: nn.Module, message: Float[Tensor, "rows channels"], batch: SegmentBatch) -> Tensor:
        if isinstance(layer.norm, nn.LayerNorm):
            return layer.norm(message)
        configs = torch.arange(batch.num_configs, device=message.device)  # unshared: a row for each of a node
        group = (batch.segment_of_node[:, None] * batch.num_configs + configs).flatten()
        normed = layer.norm(message[: len(group)], group, batch.num_segments * batch.num_configs)
        return nn.functional.pad(normed, (0, 0, 0, len(message) - len(normed)))  # unused rows


class CrossConfigHead(nn.Module):
    """Head in which the configurations of a graph that are scored together attend to each other, as in TGraph
    (Khizbullin et al. 2024, arXiv 2405.16623), by scaled dot products (Vaswani et al. 2017, eq. 1).

    Scores therefore depend on the list of configurations; rank all of a graph in one list."""

    def __init__(self, channels: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.attention = nn.MultiheadAttention(channels, heads, batch_first=True)
        self.head = Head(channels)

    def forward(self, embedding: Float[Tensor, "graphs configs channels"]) -> Float[Tensor, "graphs configs"]:
        normed = self.norm(embedding)
        attended, _ = self.attention(normed, normed, normed, need_weights=False)
        return self.head(embedding + attended)
