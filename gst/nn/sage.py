"""GraphSAGE over both edge directions, for any number of configurations at once."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from gst.batch import SegmentBatch
from gst.nn.inputs import InputProjection
from gst.nn.message_passing import Adjacency, neighbour_mean


class SAGELayer(nn.Module):
    """h + relu(norm(W h + W_in mean(producers) + W_out mean(consumers))); the mean aggregator of Hamilton et al. 2017.

    LayerNorm looks at one node alone, so nothing leaks from one segment of a batch to another.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.own = nn.Linear(channels, channels)
        self.producers = nn.Linear(channels, channels, bias=False)
        self.consumers = nn.Linear(channels, channels, bias=False)
        self.norm = nn.LayerNorm(channels)

    def forward(
        self, hidden: Float[Tensor, "nodes configs channels"], adjacency: Adjacency
    ) -> Float[Tensor, "nodes configs channels"]:
        message = self.own(hidden)
        message = message + self.producers(neighbour_mean(hidden, adjacency))
        message = message + self.consumers(neighbour_mean(hidden, adjacency.reversed()))
        return hidden + self.norm(message).relu()


class SAGE(nn.Module):
    """Encoder of computation graphs: `SegmentBatch` -> node embeddings.

    Args:
        channels: width of every layer and of the embeddings.
        num_layers: depth; a node hears of others up to so many edges away.
        num_opcodes, config_symbols, log_config: see `InputProjection`.
    """

    def __init__(
        self, channels: int = 64, num_layers: int = 3, num_opcodes: int = 256, config_symbols: int = 0,
        log_config: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.inputs = InputProjection(channels, num_opcodes, config_symbols, log_config)
        self.layers = nn.ModuleList(SAGELayer(channels) for _ in range(num_layers))

    def forward(self, batch: SegmentBatch) -> Float[Tensor, "nodes configs channels"]:
        hidden = self.inputs(batch)
        adjacency = Adjacency.from_edges(batch.edge_index, batch.num_nodes)
        for layer in self.layers:
            hidden = layer(hidden, adjacency)
        return hidden
