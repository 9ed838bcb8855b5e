"""What fusion saves and what it can tell apart; that it computes what it says is among the laws of all encoders."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from reference import as_batch, random_graph
from torch import nn

from gst.method.batch import SegmentBatch
from gst.nn import FusedSAGE


def batch_with(num_configs: int) -> SegmentBatch:
    return as_batch(random_graph(0, num_configs=num_configs)).to(torch.device("cpu"), torch.float64)


def made(before: int, after: int) -> FusedSAGE:
    torch.manual_seed(0)
    encoder = FusedSAGE(8, before, after)
    encoder(as_batch(random_graph(0)))
    return encoder.double()


def rows_into(module: nn.Module, encoder: FusedSAGE, batch: SegmentBatch) -> int:
    seen: list[int] = []
    hook = module.register_forward_hook(lambda _, given, out: seen.append(len(given[0])))
    encoder(batch)
    hook.remove()
    return sum(seen)


def test_layers_before_fusion_have_one_row_for_each_node_however_many_configurations() -> None:
    encoder = made(2, 1)
    for layer in encoder.before:
        assert {rows_into(layer, encoder, batch_with(n)) for n in (1, 3, 40)} == {24}
    assert rows_into(encoder.after[0], encoder, batch_with(40)) > 24 + 5 * 20


def test_the_state_of_a_configurable_node_is_projected_once_for_fusion() -> None:
    encoder = made(1, 1)
    assert {rows_into(encoder.fusion.state, encoder, batch_with(n)) for n in (1, 3, 40)} == {5}


@pytest.mark.parametrize("before", [0, 2])
def test_with_no_layer_after_it_only_configurable_nodes_tell_configurations_apart(before: int) -> None:
    batch = batch_with(3)
    hidden = made(before, 0)(batch).dense()
    varied = (hidden != hidden[:, :1]).any(2).any(1).nonzero().flatten()
    assert varied.tolist() == batch.config_nodes.sort().values.tolist()


def test_a_configuration_means_what_the_state_of_its_node_makes_of_it() -> None:
    """Not one vector added to any node: with late fusion too, a readout by sums is not linear in configurations."""
    batch = replace(batch_with(3), config_features=batch_with(3).config_features[:1].expand(5, -1, -1))
    hidden = made(1, 0)(batch).dense()[batch.config_nodes]
    change = hidden[:, 1] - hidden[:, 0]
    assert (change - change[0])[1:].abs().amax(1).min() > 1e-3


def test_one_batch_serves_encoders_of_different_depths() -> None:
    """What was found out about a batch for one of them is not taken for another."""
    batch = batch_with(3)
    shallow, deep = made(1, 1), made(2, 2)
    first, second = shallow(batch).dense(), deep(batch).dense()
    torch.testing.assert_close(first, shallow(batch_with(3)).dense())
    torch.testing.assert_close(second, deep(batch_with(3)).dense())
