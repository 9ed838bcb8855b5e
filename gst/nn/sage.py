"""GraphSAGE over directed edges, for any number of configurations at once."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from gst.batch import SegmentBatch
from gst.nn.inputs import InputProjection
from gst.nn.message_passing import add, neighbour_sum
from gst.nn.reach import Direction, Hop, Reach
from gst.states import NodeStates

BOTH: tuple[Direction, ...] = ("forward", "backward")


class SAGELayer(nn.Module):
    """h + relu(norm(W h + sum of W_d mean(neighbours in direction d))); the mean aggregator of Hamilton et al. 2017.

    Neighbours are projected before they are averaged: fewer of them depend on the configuration than of the nodes
    that hear them. LayerNorm looks at one node alone, so nothing leaks from one segment of a batch to another.
    """

    def __init__(self, channels: int, directions: Sequence[Direction] = BOTH) -> None:
        super().__init__()
        self.own = nn.Linear(channels, channels)
        self.heard = nn.ModuleList(nn.Linear(channels, channels, bias=False) for _ in directions)
        self.norm = nn.LayerNorm(channels)

    def forward(self, hidden: NodeStates, hops: Sequence[Hop]) -> NodeStates:
        messages = [neighbour_sum(hidden.map(heard), hop) for heard, hop in zip(self.heard, hops, strict=True)]
        message = add(messages[0], hidden.map(self.own))
        for other in messages[1:]:
            message = add(message, other)
        return add(message.map(self.norm), hidden, relu=True)


class SAGE(nn.Module):
    """Encoder of computation graphs: `SegmentBatch` -> states of its nodes.

    Args:
        channels: width of every layer and of the embeddings.
        num_layers: depth; a node hears of others up to so many edges away.
        num_opcodes, config_symbols, log_config: see `InputProjection`.
        directions: which way messages run, `forward` from producers to consumers, `backward` or both.
        share: compute once what no configuration reaches. False computes everything for each configuration: the same
            result, slower.
    """

    def __init__(
        self, channels: int = 64, num_layers: int = 3, num_opcodes: int = 256, config_symbols: int = 0,
        log_config: bool = True, directions: Sequence[Direction] = BOTH, share: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.inputs = InputProjection(channels, num_opcodes, config_symbols, log_config)
        self.layers = nn.ModuleList(SAGELayer(channels, directions) for _ in range(num_layers))
        self.directions, self.share = tuple(directions), share

    def forward(self, batch: SegmentBatch) -> NodeStates:
        reach = Reach.of(batch, len(self.layers), self.directions, "mean", self.share)
        hidden = self.inputs(batch, reach)
        for layer, hops in zip(self.layers, reach.hops, strict=True):
            hidden = layer(hidden, hops)
        return hidden
