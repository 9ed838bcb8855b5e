"""What an encoder says of the nodes of a batch, equal states said once."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Int64
from torch import Tensor


@dataclass(frozen=True, eq=False)
class NodeStates:
    """Embeddings of the nodes of a batch under every configuration, without the repetitions.

    Args:
        rows: the embeddings.
        row_of: which of the rows is that of each node under each configuration. No row belongs to two nodes.
    """

    rows: Float[Tensor, "rows channels"]
    row_of: Int64[Tensor, "nodes configs"]

    def dense(self) -> Float[Tensor, "nodes configs channels"]:
        """With the repetitions."""
        return self.rows[self.row_of]
