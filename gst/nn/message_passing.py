"""What all encoders have in common: the first rows of node states, layers, and norms over segments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from gst.method.batch import NodeStates, SegmentBatch
from gst.nn.sharing import Direction, Sharing
from gst.nn.sparse import by_rows, product


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


Before = Float[Tensor, "before channels"]
After = Float[Tensor, "after channels"]
BOTH: tuple[Direction, ...] = ("forward", "backward")


class Encoder(nn.Module):
    """Inputs, then layers that take `(rows before, sharing, number of the layer)` to the rows after it.

    Args:
        inputs: makes the first rows.
        layers: message passing layers.
        directions, share, whole_segments: see `Sharing.of`.
    """

    def __init__(
        self,
        inputs: InputProjection,
        layers: Sequence[nn.Module],
        directions: Sequence[Direction] = BOTH,
        share: bool = True,
        whole_segments: bool = False,
    ) -> None:
        super().__init__()
        self.inputs, self.layers = inputs, nn.ModuleList(layers)
        self.directions, self.share, self.whole_segments = tuple(directions), share, whole_segments

    def forward(self, batch: SegmentBatch) -> NodeStates:
        sharing = self.sharing(batch)
        rows = self.inputs(batch, sharing)
        for number, layer in enumerate(self.layers):
            rows = layer(rows, sharing, number)
        return NodeStates(rows, sharing.row_of())

    def sharing(self, batch: SegmentBatch) -> Sharing:
        """Which states of `batch` are equal; found once for each batch."""
        return planned(batch, len(self.layers), self.directions, self.share, self.whole_segments)


def planned(
    batch: SegmentBatch, num_layers: int, directions: tuple[Direction, ...], share: bool, whole_segments: bool = False
) -> Sharing:
    """`Sharing.of` these, found once for each batch."""
    key = (num_layers, directions, share, whole_segments)
    if key not in batch.plans:
        batch.plans[key] = Sharing.of(batch, *key)
    return batch.plans[key]


class ResidualLayer(nn.Module):
    """h + relu(norm(convolution of h)). LayerNorm looks at one row alone, so nothing leaks from one segment of a batch
    to another.

    Args:
        convolution: takes `(rows before, sharing, number of the layer)` and returns what the rows after it hear.
    """

    def __init__(self, channels: int, convolution: nn.Module) -> None:
        super().__init__()
        self.convolution, self.norm = convolution, nn.LayerNorm(channels)

    def forward(self, rows: Before, sharing: Sharing, number: int) -> After:
        message = self.convolution(rows, sharing, number)
        return product(sharing.matrix(number, ("own",)), rows) + self.norm(message).relu()


class NodeNorm(nn.Module):
    """Every channel less its mean over the nodes of the segment, in standard deviations, scaled and shifted: instance
    normalisation (Ulyanov et al. 2016, arXiv 1607.08022) with nodes for pixels, as in the network that won Kaggle's
    "Predict AI Model Runtime" (its code: github.com/thanhhau097/google_fast_or_slow).

    No statistic crosses a segment or a class of configurations, so neither the other segments of a batch nor the other
    configurations of a list matter. Each node hears of all nodes of its segment, as with attention: sharing takes
    `whole_segments`.
    """

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, rows: Float[Tensor, "rows channels"], sharing: Sharing, number: int) -> Tensor:
        """Rows after layer `number`."""
        group = _groups(sharing, number)
        wide = rows.to(torch.promote_types(rows.dtype, torch.float32))[: len(group)]
        count = torch.bincount(group)[:, None].to(wide.dtype)

        def mean(x: Tensor) -> Tensor:
            return (x.new_zeros(len(count), x.shape[1]).index_add(0, group, x) / count).index_select(0, group)

        centred = wide - mean(wide)
        scaled = centred * (mean(centred.square()) + self.eps).rsqrt() * self.weight + self.bias
        return nn.functional.pad(scaled, (0, 0, 0, len(rows) - len(group))).to(rows.dtype)


def _groups(sharing: Sharing, number: int) -> Int64[Tensor, " used"]:
    """The segment and class of configurations of each row after a layer. All nodes of a segment tell the same classes
    apart, and number them alike."""
    level = sharing.levels[number + 1]
    node = level.node_of_row()
    segment, kind = sharing.segment_of_node[node], np.arange(len(node)) - level.first[node]
    return torch.from_numpy(np.unique(segment * (kind.max() + 1) + kind, return_inverse=True)[1]).to(sharing.device)
