"""From raw features to the first rows: the state of every node under every configuration, equal ones once."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gst.method.batch import SegmentBatch
from gst.nn.padding import by_rows
from gst.nn.sharing import Sharing
from gst.nn.sparse import product


class InputProjection(nn.Module):
    """Opcode embedding + projected node features + projected configuration where a node has one, each computed once.

    Feature widths are taken from the first batch (lazy layers, as in PyG).

    Args:
        channels: width of the hidden state.
        num_opcodes: opcodes are 0 .. num_opcodes - 1.
        config_symbols: if > 0, configuration features are symbols -1 .. config_symbols - 2 (layouts: -1 .. 5, so 7)
            and each (column, symbol) has an embedding; if 0 they are numbers.
        log_config: scale configuration features that are numbers by `signed_log`; otherwise they enter as they are.
    """

    def __init__(self, channels: int, num_opcodes: int = 256, config_symbols: int = 0, log_config: bool = True) -> None:
        super().__init__()
        self.config_symbols, self.log_config = config_symbols, log_config
        self.num_opcodes = num_opcodes
        self.opcode = nn.Embedding(num_opcodes, channels)
        self.static = nn.LazyLinear(channels)
        self.config = nn.LazyLinear(channels, bias=False)

    def forward(self, batch: SegmentBatch, sharing: Sharing) -> Float[Tensor, "rows channels"]:
        nodes, rows, (slots, configs) = sharing.inputs(batch)
        common = self.of_nodes(batch)
        given = self.of_configurations(batch.config_features[slots, configs])
        return product(nodes, common).index_add(0, rows, given.to(common.dtype))

    def of_nodes(self, batch: SegmentBatch) -> Float[Tensor, "nodes channels"]:
        """What is known of each node whatever the configuration."""
        if int(batch.opcodes.max()) >= self.num_opcodes:
            raise ValueError(
                f"opcode {int(batch.opcodes.max())} found, but the encoder embeds 0..{self.num_opcodes - 1}; "
                f"raise num_opcodes"
            )
        return by_rows(self.static, signed_log(batch.node_features)) + self.opcode(batch.opcodes)

    def of_configurations(self, features: Float[Tensor, "given columns"]) -> Float[Tensor, "given channels"]:
        """What a configuration gives a configurable node, row by row."""
        return by_rows(self.config, self._readable(features))

    def _readable(self, features: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows width"]:
        if self.config_symbols:
            return self._symbols(features)
        return signed_log(features) if self.log_config else features

    def _symbols(self, features: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows width"]:
        index = features.long() + 1
        if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < self.config_symbols:
            raise ValueError(
                f"configuration features {int(index.min()) - 1}..{int(index.max()) - 1} found, but the encoder knows "
                f"the symbols -1..{self.config_symbols - 2}; set config_symbols to 0 if they are numbers"
            )
        return nn.functional.one_hot(index, self.config_symbols).flatten(1).to(features.dtype)


def signed_log(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """sign(x) log(1 + |x|): sizes from 1 to 10^9 become numbers of one magnitude."""
    return torch.sign(x) * torch.log1p(x.abs())
