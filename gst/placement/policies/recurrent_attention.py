"""Attention over long sequences, segment by segment, each of which also sees the one before it."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from gst.nn.gat import check_heads


class RecurrentAttention(nn.Module):
    """One layer of Transformer-XL (Dai et al., ACL 2019): the rows of a segment attend to each other and to the states
    of the previous segment, which are cached: no gradient goes through them. As in GO (Zhou et al., NeurIPS 2020)
    there is no positional embedding, and a row sees the whole of its segment, later rows too.

    What a segment reads of the one before are inputs of this layer, so that all segments of a layer are computed at
    once. Memory and time grow with the number of rows, not with its square.

    Args:
        channels: width of the rows.
        heads: attentions side by side, which share the channels.
        segment: rows of a segment.
        recurrence: whether the previous segment is seen.

    Raises:
        ValueError: the heads do not divide the channels, or a segment has no rows.
    """

    def __init__(self, channels: int, heads: int = 4, segment: int = 256, recurrence: bool = True) -> None:
        super().__init__()
        check_heads(channels, heads)
        if segment < 1:
            raise ValueError(f"segment is {segment}; a segment of the sequence needs at least one row")
        self.heads, self.segment, self.recurrence = heads, segment, recurrence
        self.norm, self.forward_norm = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.query, self.mix = nn.Linear(channels, channels), nn.Linear(channels, channels)
        self.key_value = nn.Linear(channels, 2 * channels)
        self.widen, self.narrow = nn.Linear(channels, 2 * channels), nn.Linear(2 * channels, channels)

    def forward(self, rows: Float[Tensor, "rows channels"]) -> Float[Tensor, "rows channels"]:
        length = min(self.segment, len(rows))
        num_segments = -(-len(rows) // length)
        padded = F.pad(rows, (0, 0, 0, num_segments * length - len(rows)))
        normed = self.norm(padded).unflatten(0, (num_segments, length))
        seen, there = self._seen(normed, len(rows))
        keys, values = self.key_value(seen).chunk(2, dim=-1)
        query, keys, values = map(self._by_head, (self.query(normed), keys, values))
        heard = F.scaled_dot_product_attention(query, keys, values, attn_mask=there)
        after = rows + self.mix(heard.transpose(1, 2).flatten(2)).flatten(0, 1)[: len(rows)]
        return after + self.narrow(self.widen(self.forward_norm(after)).relu())

    def _seen(
        self, normed: Float[Tensor, "segments length channels"], num_rows: int
    ) -> tuple[Float[Tensor, "segments seen channels"], Bool[Tensor, "segments 1 1 seen"] | None]:
        """What each segment attends to, the cached one first, and which rows of that there are (None = all)."""
        num_segments, length, _ = normed.shape
        if num_segments == 1:
            return normed, None
        there = (torch.arange(num_segments * length, device=normed.device) < num_rows).view(num_segments, length)
        if self.recurrence:
            cached = F.pad(normed.detach()[:-1], (0, 0, 0, 0, 1, 0))
            normed = torch.cat([cached, normed], dim=1)
            there = torch.cat([F.pad(there[:-1], (0, 0, 1, 0)), there], dim=1)
        return normed, there[:, None, None]

    def _by_head(self, rows: Float[Tensor, "segments rows channels"]) -> Float[Tensor, "segments heads rows width"]:
        return rows.unflatten(-1, (self.heads, -1)).transpose(1, 2)
