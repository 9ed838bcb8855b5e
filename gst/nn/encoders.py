"""Message-passing encoders for any number of configurations at once: inputs, layers, GraphSAGE, GCN and GIN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gst.graphs.segments import SegmentedGraph
from gst.method.batch import NodeStates, SegmentBatch
from gst.method.fixed_batch import Sizes
from gst.nn.plans import FixedPlans, planned
from gst.nn.sharing import Direction, Part, Plan, PlanOptions
from gst.nn.sparse import by_rows, neighbour_max, product


class LazyLinear(nn.LazyLinear):
    """A lazy linear layer whose bias is 0 where there is nothing to read; PyTorch does not initialise it then."""

    def initialize_parameters(self, input: Tensor) -> None:
        super().initialize_parameters(input)
        if self.in_features == 0 and self.bias is not None:
            nn.init.zeros_(self.bias)


class InputProjection(nn.Module):
    """Opcode embedding + projected node features + projected configuration where a node has one, each computed once.

    Args:
        channels: width of the hidden state.
        num_opcodes: opcodes are 0 .. num_opcodes - 1.
        config_symbols: if > 0, configuration features are symbols -1 .. config_symbols - 2 (layouts: -1 .. 5, so 7)
            and each (column, symbol) has an embedding; if 0 they are numbers.
        log_config: scale configuration features that are numbers by `signed_log`.
    """

    def __init__(self, channels: int, num_opcodes: int = 256, config_symbols: int = 0, log_config: bool = True) -> None:
        super().__init__()
        self.config_symbols, self.log_config = config_symbols, log_config
        self.num_opcodes = num_opcodes
        self.opcode = nn.Embedding(num_opcodes, channels)
        self.static = LazyLinear(channels)
        self.config = nn.LazyLinear(channels, bias=False)

    def forward(self, batch: SegmentBatch, sharing: Plan) -> Float[Tensor, "rows channels"]:
        nodes, rows, (slots, configs) = sharing.inputs()
        common = self.of_nodes(batch)
        configured = self.of_configurations(batch.config_features[slots, configs])
        return product(nodes, common).index_add(0, rows, configured.to(common.dtype))

    def of_nodes(self, batch: SegmentBatch) -> Float[Tensor, "nodes channels"]:
        """Return the features of each node that do not depend on the configuration."""
        self.check_batch(batch.on_host)
        features = batch.node_features.to(torch.promote_types(batch.node_features.dtype, self.opcode.weight.dtype))
        return by_rows(self.static, signed_log(features)) + self.opcode(batch.opcodes)

    @torch.compiler.disable
    def check_batch(self, batch: SegmentBatch) -> None:
        """Raise ValueError for a batch of the host with an opcode of `num_opcodes` or more."""
        largest = int(batch.opcodes.max())
        if largest >= self.num_opcodes:
            raise ValueError(
                f"opcode {largest} found, but the encoder embeds 0..{self.num_opcodes - 1}; raise num_opcodes"
            )

    def of_configurations(self, features: Float[Tensor, "pairs columns"]) -> Float[Tensor, "pairs channels"]:
        """Return the features that a configuration gives a configurable node, row by row."""
        if self.config_symbols:
            features = self._symbols(features)
        elif self.log_config:
            features = signed_log(features)
        return by_rows(self.config, features)

    def _symbols(self, features: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows width"]:
        index = features.long() + 1
        on_host = index.device.type == "cpu"  # an accelerator refuses what is out of range by itself
        if on_host and index.numel() and not 0 <= int(index.min()) <= int(index.max()) < self.config_symbols:
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

    With a `halo` of its number of layers and `further_hops` a segment sees what the whole graph sees.
    """

    further_hops = 0

    def __init__(
        self,
        inputs: InputProjection,
        layers: Sequence[nn.Module],
        directions: Sequence[Direction] = BOTH,
        share: bool = True,
    ) -> None:
        super().__init__()
        self.inputs, self.layers = inputs, nn.ModuleList(layers)
        self.directions, self.share = tuple(directions), share

    def forward(self, batch: SegmentBatch) -> NodeStates:
        sharing = self.sharing(batch)
        rows = self.inputs(batch, sharing)
        for number, layer in enumerate(self.layers):
            rows = layer(rows, sharing, number)
        return NodeStates(rows, sharing.row_of())

    def sharing(self, batch: SegmentBatch) -> Plan:
        """Return the groups of equal states of `batch`, computed once for each batch."""
        return planned(batch, self._plan)

    @property
    def _plan(self) -> PlanOptions:
        return PlanOptions(len(self.layers), self.directions, self.share)

    def fixed_plans(self, sizes: Sizes, graphs: Sequence[SegmentedGraph], num_fresh: int) -> FixedPlans:
        """Return plans for training steps of fixed shapes."""
        return FixedPlans(self._plan, sizes, graphs, num_fresh)


class ResidualLayer(nn.Module):
    """h + relu(norm(convolution of h)); LayerNorm looks at one row alone, so segments of a batch stay apart."""

    def __init__(self, channels: int, convolution: nn.Module) -> None:
        super().__init__()
        self.convolution, self.norm = convolution, nn.LayerNorm(channels)

    def forward(self, rows: Before, sharing: Plan, number: int) -> After:
        message = self.convolution(rows, sharing, number)
        return product(sharing.matrix(number, ("own",)), rows) + self.norm(message).relu()


Aggregation = Literal["mean", "sum", "max"]


class SAGELayer(nn.Module):
    """h + relu(norm(W h + sum of aggregation(W_d neighbours in direction d) + b)), after Hamilton et al. 2017: the mean
    aggregator, or for `max` the pooling aggregator (eq. 3) without its nonlinearity. Rows are projected before they are
    aggregated, by one product for the node and all directions.
    """

    def __init__(
        self, channels: int, directions: Sequence[Direction] = BOTH, aggregation: Aggregation = "mean"
    ) -> None:
        super().__init__()
        if aggregation not in get_args(Aggregation):
            raise ValueError(f"aggregation {aggregation!r}? neighbours give their {', '.join(get_args(Aggregation))}")
        self.aggregation = aggregation
        self.parts: tuple[Part, ...] = ("own", *directions)
        self.project = nn.Linear(channels, len(self.parts) * channels, bias=False)
        self.bias = nn.Parameter(torch.zeros(channels))
        self.norm = nn.LayerNorm(channels)

    def forward(self, rows: Before, sharing: Plan, number: int) -> After:
        message = self.norm(self.message(rows, sharing, number))
        return product(sharing.matrix(number, ("own",)), rows).add_(message.relu_())

    def message(self, rows: Before, sharing: Plan, number: int) -> After:
        """Return W h + sum of aggregation(W_d neighbours in direction d) + b."""
        by_part = self.project(rows).unflatten(1, (len(self.parts), -1))
        if self.aggregation != "max":
            matrix = sharing.matrix(number, self.parts, self.aggregation, stacked=True)
            message = product(matrix, by_part.flatten(0, 1))
        else:
            message = product(sharing.matrix(number, ("own",)), by_part[:, 0])
            for i, part in enumerate(self.parts[1:], start=1):
                message = message + neighbour_max(sharing.matrix(number, (part,)), by_part[:, i])
        return message.add_(self.bias.to(message.dtype))


class SAGE(Encoder):
    """GraphSAGE encoder over directed edges: `SegmentBatch` -> `NodeStates`.

    Args:
        channels: width of every layer and of the embeddings.
        num_layers: depth; a node hears of others up to so many edges away.
        num_opcodes, config_symbols, log_config: see `InputProjection`.
        directions: of messages, `forward` from producers to consumers, `backward` or both.
        share: compute equal states once. False computes every node under every configuration: the same result, slower.
        aggregation: of the neighbours of a direction, channel by channel.
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
    ) -> None:
        inputs = InputProjection(channels, num_opcodes, config_symbols, log_config)
        layers = [SAGELayer(channels, directions, aggregation) for _ in range(num_layers)]
        super().__init__(inputs, layers, directions, share)


class ConvolutionEncoder(Encoder):
    """Residual layers of one convolution."""

    convolution: Callable[[int, Sequence[Direction]], nn.Module]

    def __init__(
        self,
        channels: int = 64,
        num_layers: int = 3,
        num_opcodes: int = 256,
        config_symbols: int = 0,
        log_config: bool = True,
        directions: Sequence[Direction] = BOTH,
        share: bool = True,
    ) -> None:
        inputs = InputProjection(channels, num_opcodes, config_symbols, log_config)
        layers = [ResidualLayer(channels, self.convolution(channels, directions)) for _ in range(num_layers)]
        super().__init__(inputs, layers, directions, share)


class GCNConvolution(nn.Module):
    """D^-1/2 (A + I) D^-1/2 H W (Kipf and Welling 2017, eq. 2); A holds the edges of all directions in use."""

    def __init__(self, channels: int, directions: Sequence[Direction]) -> None:
        super().__init__()
        self.parts: tuple[Part, ...] = ("own", *directions)
        self.project = nn.Linear(channels, channels, bias=False)

    def forward(self, rows: Before, sharing: Plan, number: int) -> After:
        return product(sharing.matrix(number, self.parts, "symmetric"), self.project(rows))


class GCN(ConvolutionEncoder):
    """Graph convolutional encoder (GCN): a sum over neighbours and the node itself, scaled by square roots of degrees.

    A message weighs by the degree of its sender, so a segment sees what the whole graph sees with a `halo` of one hop
    more than there are layers. Arguments are those of `SAGE`; both directions are one relation, as in the paper.
    """

    convolution = GCNConvolution
    further_hops = 1


class GINConvolution(nn.Module):
    """MLP((1 + eps) h + sum of neighbours), eps learnt (Xu et al. 2019, eq. 4.1)."""

    def __init__(self, channels: int, directions: Sequence[Direction]) -> None:
        super().__init__()
        self.parts: tuple[Part, ...] = tuple(directions)
        self.eps = nn.Parameter(torch.zeros(1))
        self.mlp = nn.Sequential(nn.Linear(channels, channels), nn.ReLU(), nn.Linear(channels, channels))

    def forward(self, rows: Before, sharing: Plan, number: int) -> After:
        own = product(sharing.matrix(number, ("own",)), rows)
        return self.mlp((1 + self.eps) * own + product(sharing.matrix(number, self.parts), rows))


class GIN(ConvolutionEncoder):
    """Graph isomorphism encoder (GIN): messages are summed, not averaged, so that repeated neighbours count.

    Arguments are those of `SAGE`; both directions are one relation, as in the undirected graphs of the paper."""

    convolution = GINConvolution


ENCODERS: dict[str, Callable[..., nn.Module]] = {"SAGE": SAGE, "GCN": GCN, "GIN": GIN}
"""Encoders by name. Each is called with `channels`, `num_layers` and further arguments of `SAGE`."""


class Head(nn.Module):
    """Score of each graph and configuration from its pooled embedding: a linear term plus an MLP.

    Args:
        channels: width of the embedding and of the hidden layer of the MLP.
        outputs: numbers per graph and configuration; if more than one (classes), they are the last axis.

    Examples:
        >>> import torch
        >>> Head(channels=8)(torch.zeros(2, 5, 8)).shape
        torch.Size([2, 5])
    """

    def __init__(self, channels: int = 64, outputs: int = 1) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, outputs)
        self.mlp = nn.Sequential(nn.Linear(channels, channels), nn.ReLU(), nn.Linear(channels, outputs))

    def forward(self, embedding: Float[Tensor, "graphs configs channels"]) -> Float[Tensor, "graphs configs *classes"]:
        scores = self.linear(embedding) + self.mlp(embedding)
        return scores.squeeze(-1) if scores.shape[-1] == 1 else scores
