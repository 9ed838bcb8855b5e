"""Heads: from the pooled embeddings of a graph to a score for each configuration."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from gst.nn.sparse import check_heads


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


class CrossConfigHead(nn.Module):
    """Head with cross-configuration attention: each configuration attends to reference configurations of its graph
    (TGraph, Khizbullin et al. 2024, arXiv 2405.16623), by scaled dot products (Vaswani et al. 2017, eq. 1).

    The references are the graph's own (`gst.graphs.config_classes`), so that no score depends on the length or the
    order of a list, as in TGraph. The encoder embeds them in each step and learns from them too.

    Args:
        references: number of configurations that come first in the embedding, to be heard and not scored.
        heads: attentions side by side, which share the channels.

    Raises:
        ValueError: the heads do not divide the channels, or there are no references or nothing else.
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
                f"are references; put those first, with gst.graphs.config_classes.with_references"
            )
        normed = self.norm(embedding)
        references, queries = normed[:, : self.references], normed[:, self.references :]
        heard, _ = self.attention(queries, references, references, need_weights=False)
        return self.head(embedding[:, self.references :] + heard)
