"""A convolution of some paper as one layer of an encoder."""

from __future__ import annotations

from torch import nn

from gst.nn.message_passing import After, Before
from gst.nn.sharing import Sharing
from gst.nn.sparse import product


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
