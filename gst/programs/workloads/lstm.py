"""One LSTM cell of matrix products and element-wise operations, so that unrolling shows every one of them."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

CellState = tuple[Tensor, Tensor]
"""Hidden state and memory, each (batch, hidden)."""


class LSTMCell(nn.Module):
    """Hochreiter and Schmidhuber, 1997, with a forget gate; gates in the order input, forget, cell, output."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.from_input = nn.Linear(inputs, 4 * hidden)
        self.from_hidden = nn.Linear(hidden, 4 * hidden, bias=False)

    def first_state(self, batch: int) -> CellState:
        zeros = torch.zeros(batch, self.hidden)
        return zeros, zeros

    def forward(self, x: Float[Tensor, "batch inputs"], state: CellState) -> CellState:
        h, c = state
        i, f, g, o = (self.from_input(x) + self.from_hidden(h)).chunk(4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c
