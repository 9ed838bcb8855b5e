"""Two bundled training steps in plain PyTorch, small, with something to run in parallel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

Parameters = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class TrainingStep:
    """One step of training as a pure function, with inputs to try it on.

    Args:
        name: unique within a dataset of programs.
        function: `function(parameters, *tensors) -> (loss, new_parameters)`; it changes none of its inputs.
        inputs: what `function` is called with: first the dictionary of parameters, then tensors.
    """

    name: str
    function: Callable[..., tuple[Tensor, Parameters]]
    inputs: tuple[Any, ...]


StepFunction = Callable[..., tuple[Tensor, Parameters]]


def sgd_step(model: nn.Module, loss_of: Callable[..., Tensor], rate: float) -> StepFunction:
    """Make the step `(parameters, *tensors) -> (loss, new_parameters)` of gradient descent.

    Args:
        model: called through `functional_call`; its own parameters are not used.
        loss_of: `loss_of(output of the model, *tensors[1:])`; the model itself is given `tensors[0]`.
        rate: learning rate.
    """

    def step(parameters: Parameters, *tensors: Tensor) -> tuple[Tensor, Parameters]:
        leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        loss = loss_of(functional_call(model, leaves, (tensors[0],)), *tensors[1:])
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        updated = {
            name: value - rate * gradient for (name, value), gradient in zip(parameters.items(), gradients, strict=True)
        }
        return loss.detach(), updated

    return step


class UnrolledLanguageModel(nn.Module):
    """Embedding, layers of LSTM cells unrolled in time, a projection to the vocabulary at each step."""

    def __init__(self, layers: int, hidden: int, vocabulary: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.from_input = nn.ModuleList(nn.Linear(hidden, 4 * hidden) for _ in range(layers))
        self.from_hidden = nn.ModuleList(nn.Linear(hidden, 4 * hidden, bias=False) for _ in range(layers))
        self.to_vocabulary = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Int64[Tensor, "steps batch"]) -> list[Float[Tensor, "batch vocabulary"]]:
        zeros = torch.zeros(tokens.shape[1], self.hidden)
        states = [(zeros, zeros) for _ in self.from_input]
        logits = []
        for step in range(tokens.shape[0]):
            x = self.embedding(tokens[step])
            for layer, (h, c) in enumerate(states):
                i, f, g, o = (self.from_input[layer](x) + self.from_hidden[layer](h)).chunk(4, dim=1)
                c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                x = torch.sigmoid(o) * torch.tanh(c)
                states[layer] = x, c
            logits.append(self.to_vocabulary(x))
        return logits


def rnnlm(
    layers: int = 4, hidden: int = 256, steps: int = 8, batch: int = 32, vocabulary: int = 1000, seed: int = 0
) -> TrainingStep:
    """An LSTM language model, unrolled: cell (layer, step) needs (layer - 1, step) and (layer, step - 1)."""
    generator = torch.Generator().manual_seed(seed)
    model = _drawn(lambda: UnrolledLanguageModel(layers, hidden, vocabulary), generator)
    tokens = torch.randint(vocabulary, (steps, batch), generator=generator)
    targets = torch.randint(vocabulary, (steps, batch), generator=generator)

    def loss_of(logits: list[Tensor], targets: Tensor) -> Tensor:
        losses = [functional.cross_entropy(row, target) for row, target in zip(logits, targets, strict=True)]
        return torch.stack(losses).mean()

    parameters = {name: value.detach() for name, value in model.named_parameters()}
    return TrainingStep(f"rnnlm-{layers}", sgd_step(model, loss_of, rate=0.5), (parameters, tokens, targets))


class Branches(nn.Module):
    """Four branches side by side: 1x1, 1x1-3x3, 1x1-3x3-3x3 and pool-1x1; joined along channels."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.point = ConvNormRelu(channels, width, 1)
        self.middle = nn.Sequential(ConvNormRelu(channels, width, 1), ConvNormRelu(width, width, 3))
        self.wide = nn.Sequential(
            ConvNormRelu(channels, width, 1), ConvNormRelu(width, width, 3), ConvNormRelu(width, width, 3)
        )
        self.pooled = nn.Sequential(nn.AvgPool2d(3, 1, 1), ConvNormRelu(channels, width, 1))

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch wide height width"]:
        return torch.cat([self.point(x), self.middle(x), self.wide(x), self.pooled(x)], dim=1)


class ConvNormRelu(nn.Sequential):
    """Convolution, GroupNorm (no running statistics: the step is pure), ReLU; `stride` shrinks the image."""

    def __init__(self, channels: int, width: int, kernel: int, stride: int = 1) -> None:
        convolution = nn.Conv2d(channels, width, kernel, stride, padding=kernel // 2, bias=False)
        super().__init__(convolution, nn.GroupNorm(4, width), nn.ReLU())


def inception(
    modules: int = 3, width: int = 32, size: int = 20, batch: int = 16, classes: int = 10, seed: int = 0
) -> TrainingStep:
    """An Inception-like network: stem, `modules` of four branches of `width` channels, classifier."""
    generator = torch.Generator().manual_seed(seed)

    def build() -> nn.Module:
        stem = ConvNormRelu(3, width, 3, stride=2)  # small at once: what all branches wait for should be short
        body = [Branches(width if module == 0 else 4 * width, width) for module in range(modules)]
        head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes))
        return nn.Sequential(stem, *body, head)

    model = _drawn(build, generator)
    images = torch.randn(batch, 3, 2 * size, 2 * size, generator=generator)
    labels = torch.randint(classes, (batch,), generator=generator)
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    step = sgd_step(model, functional.cross_entropy, rate=0.05)
    return TrainingStep(f"inception-{modules}", step, (parameters, images, labels))


def _drawn(build: Callable[[], nn.Module], generator: torch.Generator) -> nn.Module:
    """A model with weights from `generator`, uniform within +-1/sqrt(fan in), and biases 0.

    PyTorch draws while it builds: the global generator is put back.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model = build()
        for name, value in model.named_parameters():
            if value.ndim > 1:
                bound = value[0].numel() ** -0.5
                value.uniform_(-bound, bound, generator=generator)
            elif not name.endswith("weight"):
                value.zero_()
    return model


WORKLOADS: dict[str, Callable[..., TrainingStep]] = {"rnnlm": rnnlm, "inception": inception}
