from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from reference import as_batch, random_graph
from slow_encoders import made, slow_encode

from gst.nn import Head
from gst.nn.encoders import LazyLinear


@pytest.mark.parametrize("num_layers", [0, 2])
@pytest.mark.parametrize("arguments", [{}, {"config_symbols": 7}, {"log_config": False}], ids=str)
def test_features_enter_as_numbers_logarithms_or_symbols(arguments: dict, num_layers: int) -> None:
    batch = as_batch(random_graph(0, 12, 20)).to(torch.device("cpu"), torch.float64)
    encoder = made("SAGE", batch, num_layers=num_layers, **arguments)
    torch.testing.assert_close(encoder(batch).dense(), slow_encode(encoder, batch))


def test_the_opcode_matters() -> None:
    batch = as_batch(random_graph(0))
    encoder = made("SAGE", batch, num_layers=0)
    assert not torch.allclose(encoder(batch).dense(), encoder(replace(batch, opcodes=batch.opcodes + 1)).dense())


def test_opcodes_and_symbols_out_of_range_are_refused() -> None:
    batch = as_batch(random_graph(0))
    encoder = made("SAGE", batch, config_symbols=7)
    with pytest.raises(ValueError, match=r"opcode 256 found.*0\.\.255.*num_opcodes"):
        encoder(replace(batch, opcodes=batch.opcodes * 0 + 256))
    for symbol in (-2, 6):
        with pytest.raises(ValueError, match=r"symbols -1\.\.5.*config_symbols"):
            encoder(replace(batch, config_features=torch.full_like(batch.config_features, symbol)))


def test_nodes_without_features_have_no_part_in_the_first_layer() -> None:
    """PyTorch leaves the bias of a lazy layer without inputs as the memory was."""
    layer = LazyLinear(3)
    assert layer(torch.ones(2, 0)).tolist() == [[0.0] * 3] * 2
    assert LazyLinear(3)(torch.ones(2, 4)).abs().sum() > 0


def test_the_head_gives_one_number_per_graph_and_configuration() -> None:
    head, pooled = Head(5), torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    scores = head(pooled)
    assert scores.shape == (2, 3)
    torch.testing.assert_close(scores[1:, 2:], head(pooled[1:, 2:]))


def test_classes_are_the_last_axis() -> None:
    assert Head(5, outputs=4)(torch.zeros(2, 3, 5)).shape == (2, 3, 4)
