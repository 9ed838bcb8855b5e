"""Recurrent workloads: an LSTM language model and a translator with attention, both unrolled in time."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional

from gst.programs.step import TrainingStep, drawn, tokens, training_step

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


# Language model -------------------------------------------------------------------------------------------------------


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
    """Return the mean of the losses of all steps, each by itself, so that a step's loss waits for no other step."""
    losses = [functional.cross_entropy(row, target) for row, target in zip(logits, targets, strict=True)]
    return torch.stack(losses).mean()


def rnnlm(
    layers: int = 4, hidden: int = 256, steps: int = 8, batch: int = 32, vocabulary: int = 1000,
    optimizer: str = "sgd", seed: int = 0,
) -> TrainingStep:  # fmt: skip
    """An LSTM language model (Zaremba et al., 2014, arXiv 1409.2329, without dropout), unrolled in time."""
    generator = torch.Generator().manual_seed(seed)
    model = drawn(lambda: UnrolledLanguageModel(layers, hidden, vocabulary), generator)

    def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return mean_cross_entropy(model(inputs), targets)

    rate = 0.5 if optimizer == "sgd" else 0.02
    batch_of_tokens = tokens(steps, batch, vocabulary, generator)
    return training_step(f"rnnlm-{layers}", model, loss_of, batch_of_tokens, optimizer, rate)


# Translation with attention -------------------------------------------------------------------------------------------

Sequence = list[Tensor]
"""One (batch, hidden) for each step."""


def _run(cell: LSTMCell, sequence: Sequence) -> Sequence:
    state, outputs = cell.first_state(sequence[0].shape[0]), []
    for x in sequence:
        state = cell(x, state)
        outputs.append(state[0])
    return outputs


class Encoder(nn.Module):
    """A bidirectional first layer, then `layers` - 1 in one direction, with residual connections from the third."""

    def __init__(self, layers: int, hidden: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.forwards, self.backwards = LSTMCell(hidden, hidden), LSTMCell(hidden, hidden)
        self.cells = nn.ModuleList(LSTMCell(2 * hidden if n == 0 else hidden, hidden) for n in range(layers - 1))
        self.join = nn.Linear(2 * hidden, hidden) if layers == 1 else None

    def forward(self, source: Int64[Tensor, "steps batch"]) -> Sequence:
        sequence = [self.embedding(row) for row in source]
        ahead, back = _run(self.forwards, sequence), _run(self.backwards, sequence[::-1])[::-1]
        sequence = [torch.cat(pair, dim=1) for pair in zip(ahead, back, strict=True)]
        if self.join is not None:
            return [self.join(x) for x in sequence]
        for number, cell in enumerate(self.cells):
            outputs = _run(cell, sequence)  # type: ignore[arg-type]
            sequence = outputs if number == 0 else [x + y for x, y in zip(sequence, outputs, strict=True)]
        return sequence


class Decoder(nn.Module):
    """Every layer is given the context of attention by the first layer's previous output."""

    def __init__(self, layers: int, hidden: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.query, self.key = (nn.Linear(hidden, hidden, bias=False) for _ in range(2))
        self.score = nn.Linear(hidden, 1, bias=False)
        self.cells = nn.ModuleList(LSTMCell(2 * hidden, hidden) for _ in range(layers))
        self.to_vocabulary = nn.Linear(2 * hidden, vocabulary)

    def forward(
        self, target: Int64[Tensor, "steps batch"], memory: Float[Tensor, "batch positions hidden"]
    ) -> list[Float[Tensor, "batch vocabulary"]]:
        keys, states = self.key(memory), [cell.first_state(target.shape[1]) for cell in self.cells]  # type: ignore[operator]
        logits = []
        for row in target:
            x, context = self.embedding(row), self._attend(states[0][0], keys, memory)
            for layer, cell in enumerate(self.cells):
                states[layer] = cell(torch.cat([x, context], dim=1), states[layer])
                x = states[layer][0] if layer < 2 else states[layer][0] + x
            logits.append(self.to_vocabulary(torch.cat([x, context], dim=1)))
        return logits

    def _attend(self, h: Tensor, keys: Tensor, memory: Tensor) -> Float[Tensor, "batch hidden"]:
        """Bahdanau et al., 2015 (arXiv 1409.0473), section A.1.2."""
        energies = self.score(torch.tanh(self.query(h)[:, None] + keys))
        return (torch.softmax(energies, dim=1) * memory).sum(dim=1)


class Translator(nn.Module):
    def __init__(self, layers: int, hidden: int, vocabulary: int) -> None:
        super().__init__()
        self.encoder, self.decoder = Encoder(layers, hidden, vocabulary), Decoder(layers, hidden, vocabulary)

    def forward(self, source: Tensor, shifted: Tensor) -> list[Tensor]:
        return self.decoder(shifted, torch.stack(self.encoder(source), dim=1))


def gnmt(
    layers: int = 2, hidden: int = 128, steps: int = 12, batch: int = 32, vocabulary: int = 1000,
    optimizer: str = "adam", seed: int = 0,
) -> TrainingStep:  # fmt: skip
    """Google's translation system (Wu et al., 2016, arXiv 1609.08144, section 3), with `steps` words on each side."""
    generator = torch.Generator().manual_seed(seed)
    model = drawn(lambda: Translator(layers, hidden, vocabulary), generator)
    source, shifted = tokens(steps, batch, vocabulary, generator)
    targets, _ = tokens(steps, batch, vocabulary, generator)

    def loss_of(model: nn.Module, source: Tensor, shifted: Tensor, targets: Tensor) -> Tensor:
        return mean_cross_entropy(model(source, shifted), targets)

    rate = 0.5 if optimizer == "sgd" else 0.01
    return training_step(f"gnmt-{layers}", model, loss_of, (source, shifted, targets), optimizer, rate)
