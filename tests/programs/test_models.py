"""The bundled networks are what their papers say: against slow twins, known sizes and causality."""

import pytest
import torch
from torch import Tensor, nn

from gst.programs.step import drawn
from gst.programs.workloads import attention as transformers
from gst.programs.workloads import convolution

GENERATOR = torch.Generator().manual_seed(0)


def _first_change(output: Tensor, changed: Tensor) -> int:
    """Of two outputs (batch, length, ...): the first position where they differ."""
    return int((output != changed).flatten(2).any(-1)[0].nonzero()[0])


def _transformer_xl() -> nn.Module:
    return drawn(lambda: transformers.TransformerXL(layers=1, width=8, heads=2, length=3, vocabulary=20), GENERATOR)


@pytest.mark.parametrize("position", [0, 3, 5])
def test_nothing_is_seen_ahead(position: int) -> None:
    feeds = [lambda: transformers.FeedForward(8), lambda: transformers.Mixture(8, 2)]
    models: list = [drawn(lambda feed=feed: transformers.Decoder(1, 8, 2, 6, 20, feed), GENERATOR) for feed in feeds]
    sound, segments = drawn(lambda: convolution.WaveNet(1, 2, 8), GENERATOR), _transformer_xl()
    models += [lambda tokens: sound(tokens).transpose(1, 2), lambda tokens: torch.cat(segments(tokens))[None]]
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6]])
    changed = tokens.clone()
    changed[0, position] = 9
    for model in models:
        assert _first_change(model(tokens), model(changed)) == position


def test_a_segment_gives_no_gradient_to_the_one_before() -> None:
    model = _transformer_xl()
    second = model(torch.tensor([[1, 2, 3, 4, 5, 6]]))[1]
    gradient = torch.autograd.grad(second.sum(), [model.embedding.weight])[0]
    assert (gradient[1:4] == 0).all() and (gradient[4:7] != 0).any()
