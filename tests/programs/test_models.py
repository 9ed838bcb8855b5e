"""The bundled networks are what their papers say: against slow twins, known sizes and causality."""

import pytest
import torch
from torch import Tensor, nn

from gst.programs.step import drawn
from gst.programs.workloads import attention as transformers
from gst.programs.workloads import convolution
from gst.programs.workloads.recurrent import LSTMCell

GENERATOR = torch.Generator().manual_seed(0)


def _random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=GENERATOR)


def test_the_lstm_cell_is_that_of_pytorch() -> None:
    cell = drawn(lambda: LSTMCell(3, 5), GENERATOR)
    twin = nn.LSTMCell(3, 5)
    values = [cell.from_input.weight, cell.from_hidden.weight, cell.from_input.bias, torch.zeros(20)]
    twin.load_state_dict(dict(zip(twin.state_dict(), values, strict=True)))
    x, state = _random(2, 3), (_random(2, 5), _random(2, 5))
    for got, want in zip(cell(x, state), twin(x, state), strict=True):
        assert torch.allclose(got, want, atol=1e-6)


def test_relative_attention_by_loops() -> None:
    """Equation at the end of section 3.3 of Transformer-XL, one score at a time."""
    attention = drawn(lambda: transformers.RelativeAttention(4, 2), GENERATOR)
    x, memory = _random(1, 3, 4), _random(1, 2, 4)
    context, distances = torch.cat([memory, x], dim=1), _random(5, 4)  # row k: distance 4 - k
    got = attention(x, context, distances)

    def heads(layer: nn.Module, rows: Tensor) -> Tensor:
        return layer(rows).view(-1, 2, 2)

    query, distance = heads(attention.query, x[0]), heads(attention.distance, distances)
    key, value = heads(attention.key, context[0]), heads(attention.value, context[0])
    rows = []
    for i in range(3):
        mixed = []
        for head in range(2):
            scores = []
            for j in range(2 + i + 1):
                apart = distance[4 - (2 + i - j), head]
                content = (query[i, head] + attention.content_bias[head]) @ key[j, head]
                scores.append((content + (query[i, head] + attention.distance_bias[head]) @ apart) * 2**-0.5)
            mixed.append(torch.softmax(torch.stack(scores), dim=0) @ value[: len(scores), head])
        rows.append(attention.out(torch.cat(mixed)))
    assert torch.allclose(got[0], torch.stack(rows), atol=1e-6)


def test_a_mixture_by_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    mixture = drawn(lambda: transformers.Mixture(4, 3), GENERATOR)
    x = _random(1, 12, 4)
    for slack in (3.0, 0.5):
        monkeypatch.setattr(transformers, "SLACK", slack)
        capacity, taken, want = -(-int(2 * slack * 12) // 3), [0, 0, 0], []
        for token in x[0]:
            gates, row = torch.softmax(mixture.gate(token), dim=0), torch.zeros(4)
            for expert in gates.topk(2).indices.tolist():
                if taken[expert] < capacity:
                    row = row + gates[expert] * mixture.experts[expert](token)
                taken[expert] += 1
            want.append(row)
        assert torch.allclose(mixture(x)[0], torch.stack(want), atol=1e-6)
    assert max(taken) > capacity, "some were turned away"


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
