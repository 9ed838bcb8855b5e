"""Variants are compared on the given inputs, then on draws that keep what makes inputs valid."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gst.whole_model.choosing import subject_on_cores, tried
from gst.whole_model.comparing import difference, fresh_inputs
from gst.whole_model.variants import AHEAD, Variant, whole_run

PADDING = torch.arange(6) >= torch.tensor([6, 5, 3, 2])[:, None]


def test_a_variant_that_is_wrong_on_the_given_inputs_alone_is_wrong() -> None:
    given = torch.linspace(-1, 1, 8)

    def wrong(x: Tensor) -> Tensor:
        return x.sin() + (1.0 if torch.equal(x, given) else 0.0)

    assert str(difference(wrong, torch.sin, (given,), 0)).startswith("output 0 is off by 1")
    assert difference(torch.sin, torch.sin, (given,), 0) is None


def test_a_variant_that_is_right_on_the_given_inputs_alone_is_wrong() -> None:
    given = torch.linspace(-1, 1, 8)
    assert difference(lambda x: given.sin(), torch.sin, (given,), 0) is not None


def test_draws_keep_dtypes_ranges_masks_zeros_and_categories() -> None:
    edges = torch.stack([torch.arange(30) % 3, 5 + torch.arange(30) % 20])
    table = torch.stack(
        [torch.arange(12.0) % 4, torch.linspace(0, 1, 12), (torch.arange(12) % 2) * torch.linspace(0.5, 0.9, 12)], 1
    )
    causal = torch.full((5, 5), -torch.inf).triu(1)
    offsets = torch.tensor([0, 3, 7, 12])
    sparse = torch.eye(3).to_sparse()
    for seed in range(3):
        new_edges, new_table, padding, attention, bias, new_offsets, new_sparse = fresh_inputs(
            [edges, table, PADDING, PADDING.long(), causal, offsets, sparse], seed
        )
        assert new_edges[0].max() < 3 and new_edges[1].min() >= 5 and new_edges.dtype == torch.long
        assert torch.equal(new_table[:, 0].sort().values, table[:, 0].sort().values)
        assert new_table[:, 1].min() >= 0 and new_table[:, 1].max() <= 1
        assert torch.equal(new_table[:, 2] == 0, table[:, 2] == 0)
        for mask in (padding, attention):
            assert sorted(mask.sum(1).tolist()) == [0, 1, 3, 4]
            assert (mask[:, 1:] >= mask[:, :-1]).all(), "padding remains at the end"
        assert sorted(bias.isinf().sum(1).tolist()) == [0, 1, 2, 3, 4]
        assert torch.equal(new_offsets, offsets) and new_sparse is sparse
    assert not torch.equal(new_table[:, 1], table[:, 1])


class Categories(nn.Module):
    """Reads a table's row from a column of floating-point numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        number = x[:, 0].long()
        assert torch.equal(number.to(x.dtype), x[:, 0]), "no category"
        return self.table(number) * x[:, 1:]


@pytest.mark.parametrize("rows", [9, 1])
def test_models_of_categories_are_compared_on_categories(rows: int) -> None:
    model = Categories().eval().requires_grad_(False)
    x = torch.stack([torch.arange(rows) % 4 + 0.0 + (rows == 1), torch.linspace(0.3, 1, rows)], 1)

    def other(x: Tensor) -> Tensor:
        return model(x) + (x[:, 1:] * 1000).frac().round() * 0.5

    assert difference(model, model, (x,), 0) is None
    assert difference(lambda x: model(x) * 1.1, model, (x,), 0) is not None


def test_draws_on_which_the_model_fails_are_replaced_and_never_count_against_a_variant() -> None:
    x, calls = torch.linspace(0.5, 1, 6), []

    def picky(x: Tensor) -> Tensor:
        calls.append(x)
        if len(calls) in (2, 3):
            raise ValueError("not these")
        return x.log() if len(calls) != 4 else x / 0

    assert difference(torch.log, picky, (x,), 0) is None and len(calls) == 5

    def only(value: Tensor) -> Tensor:
        if not torch.equal(value, x):
            raise ValueError("only the given ones")
        return value * 2

    assert difference(lambda value: value + value, only, (x,), 0) is None
    assert difference(lambda value: value + 1, only, (x,), 0) is not None


class Classifier(nn.Module):
    """Mean over time of an encoder, whose fast path returns zeros at padding."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 1), nn.Linear(8, 3)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        return self.head(self.encoder(x, src_key_padding_mask=padding).mean(1))


@pytest.mark.e2e
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_encoder_with_a_padding_mask_runs_as_on_the_given_inputs() -> None:
    torch.manual_seed(0)
    model, x = Classifier().eval().requires_grad_(False), torch.randn(4, 6, 8)
    want = model(x, PADDING)
    ahead = whole_run(model, Variant(AHEAD), (x, PADDING))
    assert (ahead(x, PADDING) - want).abs().max() > 0.01, "export takes the slow path"
    assert difference(ahead, model, (x, PADDING), 0) is not None
    for run in tried(subject_on_cores(model, (x, PADDING), cores=1), seconds=20).runs.values():
        torch.testing.assert_close(run(x, PADDING), want, rtol=1e-3, atol=1e-3)
