"""The graph transformer GPS of Rampasek et al. 2022, attention staying inside segments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from gst.nn.bounds import Direction
from gst.nn.encoders import BOTH, After, Before, Encoder, InputProjection, SAGELayer
from gst.nn.sharing import Plan, Sharing
from gst.nn.sparse import check_heads, product


class SegmentAttention(nn.Module):
    """Every node hears all nodes of its segment, under each class of configurations by itself.

    All nodes of a segment then tell the same classes apart (`Sharing.of`, `whole_segments`), so that the rows of a
    segment are a grid, nodes times classes."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def forward(self, rows: Before, sharing: Plan, number: int) -> After:
        assert isinstance(sharing, Sharing), "of the host: it has no `reads_plan_tensors`"
        order, grids = _grids(sharing, number)
        projected = product(sharing.matrix(number, ("own",)), self.project(rows))
        pieces = projected.index_select(0, order).split([nodes * classes for nodes, classes in grids])
        heard = torch.cat([self._within(piece, *grid) for piece, grid in zip(pieces, grids, strict=True)])
        return self.out(heard.new_zeros(len(projected), heard.shape[1]).index_copy(0, order, heard))

    def _within(
        self, projected: Float[Tensor, "rows three_channels"], nodes: int, classes: int
    ) -> Float[Tensor, "rows channels"]:
        query, key, value = projected.view(nodes, classes, 3, self.heads, -1).permute(2, 1, 3, 0, 4)
        heard = nn.functional.scaled_dot_product_attention(query, key, value)
        return heard.permute(2, 0, 1, 3).reshape(nodes * classes, -1)


def _grids(sharing: Sharing, number: int) -> tuple[Int64[Tensor, " rows"], list[tuple[int, int]]]:
    """The rows after a layer segment by segment, and how many nodes and classes of configurations each segment has."""
    level, segment_of_node = sharing.levels[number + 1], sharing.segment_of_node
    order = np.argsort(segment_of_node[level.node_of_row()], kind="stable")
    _, first, nodes = np.unique(segment_of_node, return_index=True, return_counts=True)
    grids = list(zip(nodes.tolist(), np.diff(level.first)[first].tolist(), strict=True))
    return torch.from_numpy(order).to(sharing.device, non_blocking=True), grids


class GPSLayer(nn.Module):
    """X = local(h) + norm(h + attention(h)), then norm(X + MLP(X)) (Rampasek et al. 2022, eq. 1 to 4, which leave out
    residuals and normalisations). LayerNorm stands for BatchNorm, so that segments of a batch stay apart."""

    def __init__(self, channels: int, directions: Sequence[Direction], heads: int) -> None:
        super().__init__()
        self.local = SAGELayer(channels, directions)
        self.attention, self.attention_norm = SegmentAttention(channels, heads), nn.LayerNorm(channels)
        self.mlp = nn.Sequential(nn.Linear(channels, 2 * channels), nn.ReLU(), nn.Linear(2 * channels, channels))
        self.mlp_norm = nn.LayerNorm(channels)

    def forward(self, rows: Before, sharing: Plan, number: int) -> After:
        own = product(sharing.matrix(number, ("own",)), rows)
        everywhere = self.attention_norm(own + self.attention(rows, sharing, number))
        both = self.local(rows, sharing, number) + everywhere
        return self.mlp_norm(both + self.mlp(both))


class GPS(Encoder):
    """Graph transformer encoder (GPS): messages as in `SAGE`, and attention among all nodes of a segment.

    A node hears the whole of its segment, context nodes (`halo`) too, and nothing outside: segments are part of the
    model, not only of its training.

    Args:
        channels, num_layers, num_opcodes, config_symbols, log_config, directions, share: as of `SAGE`.
        heads: attentions side by side, which share the channels. Their time grows with the square of the nodes of a
            segment.

    Raises:
        ValueError: the heads do not divide the channels.
    """

    def __init__(
        self, channels: int = 64, num_layers: int = 3, num_opcodes: int = 256, config_symbols: int = 0,
        log_config: bool = True, directions: Sequence[Direction] = BOTH, share: bool = True, heads: int = 4,
    ) -> None:  # fmt: skip
        check_heads(channels, heads)
        inputs = InputProjection(channels, num_opcodes, config_symbols, log_config)
        layers = [GPSLayer(channels, directions, heads) for _ in range(num_layers)]
        super().__init__(inputs, layers, directions, share, whole_segments=True)
