"""Configurations are compared with others of their graph before they are scored."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from gst.nn.gat import check_heads
from gst.nn.head import Head


class CrossConfigHead(nn.Module):
    """Scores of configurations that have heard of other configurations of their graph: cross-configuration attention
    (TGraph, Khizbullin et al. 2024, arXiv 2405.16623), by scaled dot products (Vaswani et al. 2017, eq. 1).

    TGraph lets the configurations of a list hear each other, so that a score depends on which others happen to stand in
    the list. Here they hear a few reference configurations instead, and these are the graph's own, whatever is asked of
    it (`gst.method.references`). They are encoded with the others in each step by the encoder as it then is,
    which learns from them too; training and evaluation compute the same function, and no score depends on the length or
    the order of a list.

    Args:
        channels: width of the embedding.
        references: how many configurations come first in the embedding, to be heard and not scored.
        heads: attentions side by side, which share the channels.

    Raises:
        ValueError: the heads do not divide the channels, there are no references, or nothing but them was embedded.
    """

    def __init__(self, channels: int = 64, references: int = 16, heads: int = 4) -> None:
        super().__init__()
        check_heads(channels, heads)
        if references < 1:
            raise ValueError(f"references is {references}; a configuration is compared with at least one")
        self.references = references
        self.norm = nn.LayerNorm(channels)
        self.attention = nn.MultiheadAttention(channels, heads, batch_first=True)
        self.head = Head(channels)

    def forward(self, embedding: Float[Tensor, "graphs both channels"]) -> Float[Tensor, "graphs configs"]:
        """Scores of the configurations after the references."""
        if embedding.shape[1] <= self.references:
            raise ValueError(
                f"the head got embeddings of {embedding.shape[1]} configurations, of which the first {self.references} "
                f"are references; put those first, with gst.method.references.with_references"
            )
        normed = self.norm(embedding)
        known, asked = normed[:, : self.references], normed[:, self.references :]
        heard, _ = self.attention(asked, known, known, need_weights=False)
        return self.head(embedding[:, self.references :] + heard)
