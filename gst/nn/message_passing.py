"""Rows of node states from layer to layer: what all encoders have in common."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn

from gst.method.batch import SegmentBatch
from gst.method.states import NodeStates
from gst.nn.inputs import InputProjection
from gst.nn.sharing import Direction, Sharing

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
