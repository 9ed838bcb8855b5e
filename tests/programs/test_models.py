"""The bundled networks are what their papers say: against slow twins, known sizes and causality."""

import pytest
import torch
from torch import Tensor, nn

from gst.programs.step import drawn
from gst.programs.workloads import attention as transformers
from gst.programs.workloads import convolution, inception_v3, nasnet, wavenet
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

    query, key, value = (
        heads(attention.query, x[0]),
        heads(attention.key, context[0]),
        heads(attention.value, context[0]),
    )
    distance = heads(attention.distance, distances)
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


def test_inception_v3_has_as_many_parameters_as_the_published_network() -> None:
    """23,834,568 without the auxiliary classifier, for 1,000 classes."""
    with torch.device("meta"):
        network = convolution._network(4, 32, 1000)
        sizes = [value.numel() for value in network.parameters()]
        assert sum(sizes) == 23_834_568
        assert network(torch.empty(1, 3, 299, 299)).shape == (1, 1000)
        assert network[:-3](torch.empty(1, 3, 299, 299)).shape == (1, 2048, 8, 8)


def test_cells_of_nasnet_keep_or_halve_the_image() -> None:
    before, last = _random(2, 6, 8, 8), _random(2, 5, 8, 8)
    normal = convolution.Cell((6, 5), 4, convolution.NORMAL, halve_first=False)
    reduction = convolution.Cell((6, 5), 4, convolution.REDUCTION, halve_first=False)
    assert normal(before, last).shape == (2, normal.channels, 8, 8) == (2, 24, 8, 8)
    assert reduction(before, last).shape == (2, reduction.channels, 4, 4) == (2, 16, 4, 4)
    halved = convolution.Cell((6, 16), 4, convolution.NORMAL, halve_first=True)
    assert halved(before, reduction(before, last)).shape == (2, 24, 4, 4)


@pytest.mark.parametrize(("workload", "more", "less"), [
    (nasnet, {"cells": 3, "width": 4}, {"cells": 1, "width": 4}),
    (inception_v3, {"depth": 4, "width": 1}, {"depth": 2, "width": 1}),
    (inception_v3, {"depth": 6, "width": 1}, {"depth": 4, "width": 1}),
    (wavenet, {"stacks": 2}, {"stacks": 1}),
])  # fmt: skip
def test_depth_is_an_argument(workload: object, more: dict, less: dict) -> None:
    large, small = (len(workload(**sizes).inputs[0]) for sizes in (more, less))  # type: ignore[operator]
    assert large > small
