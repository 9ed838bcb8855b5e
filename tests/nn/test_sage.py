from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from reference import as_batch, nodes_within, random_graph
from torch import nn

from gst.assembly import assemble
from gst.nn import SAGE, Head
from gst.segments import segment


def made(num_layers: int = 2, config_symbols: int = 0, **graph: int) -> tuple[SAGE, object]:
    torch.manual_seed(0)
    batch = as_batch(random_graph(0, **graph))
    encoder = SAGE(8, num_layers, config_symbols=config_symbols)
    encoder(batch)
    return encoder, batch


@pytest.mark.parametrize("config_symbols", [0, 7])
@pytest.mark.parametrize("num_layers", [0, 1, 2])
def test_a_node_hears_of_others_up_to_the_depth_and_no_further(num_layers: int, config_symbols: int) -> None:
    graph = random_graph(0, num_edges=20)
    encoder, batch = made(num_layers, config_symbols, num_edges=20)
    features = batch.node_features.clone().requires_grad_()
    for node in range(0, 24, 5):
        hidden = encoder(replace(batch, node_features=features)).dense()
        (gradient,) = torch.autograd.grad(hidden[node].square().sum(), features)
        heard = set(gradient.abs().sum(1).nonzero().flatten().tolist())
        assert heard == nodes_within(graph, {node}, num_layers)


@pytest.mark.parametrize("config_symbols", [0, 7])
def test_configurations_are_encoded_apart(config_symbols: int) -> None:
    encoder, batch = made(config_symbols=config_symbols)
    hidden = encoder(batch).dense()
    assert hidden.shape == (24, 3, 8)
    for c in range(3):
        alone = encoder(replace(batch, config_features=batch.config_features[:, c : c + 1])).dense()
        torch.testing.assert_close(hidden[:, c : c + 1], alone)


def test_segments_of_a_batch_are_encoded_apart() -> None:
    encoder, _ = made()
    graph, configs = segment(random_graph(0), 8), torch.tensor([[0, 2]])
    together = encoder(assemble([graph], [(0, 1), (0, 0)], configs)).dense()
    alone = [encoder(assemble([graph], [(0, j)], configs)).dense() for j in (1, 0)]
    torch.testing.assert_close(together, torch.cat(alone))


def test_direction_and_opcode_matter() -> None:
    encoder, batch = made()
    hidden = encoder(batch).dense()
    assert not torch.allclose(hidden, encoder(replace(batch, edge_index=batch.edge_index.flip(0))).dense())
    assert not torch.allclose(hidden, encoder(replace(batch, opcodes=batch.opcodes + 1)).dense())


def test_opcodes_and_symbols_out_of_range_are_refused() -> None:
    encoder, batch = made(config_symbols=7)
    with pytest.raises(ValueError, match=r"opcode 256 found.*0\.\.255.*num_opcodes"):
        encoder(replace(batch, opcodes=batch.opcodes * 0 + 256))
    for symbol in (-2, 6):
        with pytest.raises(ValueError, match=r"symbols -1\.\.5.*config_symbols"):
            encoder(replace(batch, config_features=torch.full_like(batch.config_features, symbol)))


@pytest.mark.parametrize("num_configurable", [0, 5])
def test_one_batch_makes_all_parameters(num_configurable: int) -> None:
    encoder, _ = made(num_configurable=num_configurable)
    assert not any(nn.parameter.is_lazy(p) for p in encoder.parameters())


def test_the_head_gives_one_number_per_graph_and_configuration() -> None:
    head, pooled = Head(5), torch.randn(2, 3, 5)
    scores = head(pooled)
    assert scores.shape == (2, 3)
    torch.testing.assert_close(scores[1:, 2:], head(pooled[1:, 2:]))
