"""What an encoder says of the nodes of a batch, once where no configuration makes a difference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor


@dataclass(frozen=True, eq=False)
class NodeStates:
    """Embeddings of the nodes of a batch under every configuration, without the repetitions.

    Args:
        order: the nodes of the batch, those that some configuration reaches first.
        each: embeddings of the first nodes of `order`, one for each configuration.
        once: embeddings of the others, the same under every configuration.
    """

    order: Int64[Tensor, " nodes"]
    each: Float[Tensor, "reached configs channels"]
    once: Float[Tensor, "others channels"]

    @property
    def num_reached(self) -> int:
        return len(self.each)

    def map(self, function: Callable[[Tensor], Tensor]) -> NodeStates:
        """Apply what looks at one node and one configuration alone: a linear map, a normalisation, an activation."""
        return NodeStates(self.order, function(self.each), function(self.once))

    def dense(self) -> Float[Tensor, "nodes configs channels"]:
        """With the repetitions, in the order of the batch."""
        repeated = self.once[:, None].expand(-1, self.each.shape[1], -1)
        return torch.cat([self.each, repeated])[torch.argsort(self.order)]
