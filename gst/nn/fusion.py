"""Intermediate fusion: the graph is encoded once, and configurations enter where its nodes are configurable."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float, Int64
from torch import Tensor, nn

from gst.graphs.segments import SegmentedGraph
from gst.method.batch import NodeStates, SegmentBatch
from gst.method.fixed_batch import Sizes
from gst.nn.bounds import Direction, PlanOptions
from gst.nn.encoders import BOTH, InputProjection, SAGELayer
from gst.nn.plans import FixedPlans, planned
from gst.nn.sharing import Plan
from gst.nn.sparse import by_rows, product


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
    `before + after` hops. The other arguments are those of `SAGE`.
    """

    def __init__(
        self, channels: int = 64, before: int = 2, after: int = 1, num_opcodes: int = 256, config_symbols: int = 0,
        log_config: bool = True, directions: Sequence[Direction] = BOTH, share: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.inputs = InputProjection(channels, num_opcodes, config_symbols, log_config)
        self.before = nn.ModuleList(SAGELayer(channels, directions) for _ in range(before))
        self.fusion = Fusion(channels)
        self.after = nn.ModuleList(SAGELayer(channels, directions) for _ in range(after))
        self.directions: tuple[Direction, ...] = tuple(directions)
        self.share = share

    def forward(self, batch: SegmentBatch) -> NodeStates:
        sharing = planned(batch, self._plans[1])
        rows = self._fuse(self._without_configurations(batch), batch, sharing)
        for number, layer in enumerate(self.after):
            rows = layer(rows, sharing, number)
        return NodeStates(rows, sharing.row_of())

    @property
    def _plans(self) -> tuple[PlanOptions, PlanOptions]:
        """Of the layers before fusion, and of those after it."""
        before = PlanOptions(len(self.before), self.directions, one_config=True)
        return before, PlanOptions(len(self.after), self.directions, self.share)

    def fixed_plans(self, sizes: Sizes, graphs: Sequence[SegmentedGraph], num_fresh: int) -> FixedPlans:
        """Plans of fixed shapes for training steps of `num_fresh` segments of some of the graphs each."""
        return FixedPlans(self._plans, sizes, graphs, num_fresh)

    def _without_configurations(self, batch: SegmentBatch) -> Float[Tensor, "nodes channels"]:
        sharing = planned(batch, self._plans[0])
        rows = product(sharing.inputs()[0], self.inputs.of_nodes(batch))
        for number, layer in enumerate(self.before):
            rows = layer(rows, sharing, number)
        return rows[: batch.num_nodes]

    def _fuse(
        self, states: Float[Tensor, "nodes channels"], batch: SegmentBatch, sharing: Plan
    ) -> Float[Tensor, "rows channels"]:
        nodes, rows, (slots, configs) = sharing.inputs()
        configurations = self.inputs.of_configurations(batch.config_features[slots, configs])
        change = self.fusion(states.index_select(0, batch.config_nodes), slots, configurations)
        return product(nodes, states).index_add(0, rows, change.to(states.dtype))
