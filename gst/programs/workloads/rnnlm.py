"""A recurrent language model: layers of LSTM cells, unrolled in time."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional

from gst.programs.step import TrainingStep, training_step
from gst.programs.workloads.drawing import drawn, tokens
from gst.programs.workloads.lstm import LSTMCell


class UnrolledLanguageModel(nn.Module):
    """Embedding, layers of LSTM cells unrolled in time, a projection to the vocabulary at each step."""

    def __init__(self, layers: int, hidden: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.cells = nn.ModuleList(LSTMCell(hidden, hidden) for _ in range(layers))
        self.to_vocabulary = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Int64[Tensor, "steps batch"]) -> list[Float[Tensor, "batch vocabulary"]]:
        states = [self.cells[0].first_state(tokens.shape[1])] * len(self.cells)  # type: ignore[operator]
        logits = []
        for step in range(tokens.shape[0]):
            x = self.embedding(tokens[step])
            for layer, cell in enumerate(self.cells):
                states[layer] = cell(x, states[layer])
                x = states[layer][0]
            logits.append(self.to_vocabulary(x))
        return logits


def mean_cross_entropy(
    logits: list[Float[Tensor, "batch vocabulary"]], targets: Int64[Tensor, "steps batch"]
) -> Float[Tensor, ""]:
    """Of each step by itself, so that a step's loss waits for no other step."""
    losses = [functional.cross_entropy(row, target) for row, target in zip(logits, targets, strict=True)]
    return torch.stack(losses).mean()


def rnnlm(
    layers: int = 4, hidden: int = 256, steps: int = 8, batch: int = 32, vocabulary: int = 1000,
    optimizer: str = "sgd", seed: int = 0,
) -> TrainingStep:  # fmt: skip
    """An LSTM language model (Zaremba et al., 2014, arXiv 1409.2329, without dropout), unrolled: cell (layer, step)
    needs (layer - 1, step) and (layer, step - 1).
    """
    generator = torch.Generator().manual_seed(seed)
    model = drawn(lambda: UnrolledLanguageModel(layers, hidden, vocabulary), generator)

    def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return mean_cross_entropy(model(inputs), targets)

    rate = 0.5 if optimizer == "sgd" else 0.02
    batch_of_tokens = tokens(steps, batch, vocabulary, generator)
    return training_step(f"rnnlm-{layers}", model, loss_of, batch_of_tokens, optimizer, rate)
