from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import slow_neighbour_mean, slow_neighbour_sum
from torch import Tensor

from gst.nn.message_passing import Adjacency, neighbour_mean, neighbour_sum

FAST_AND_SLOW = [(neighbour_sum, slow_neighbour_sum), (neighbour_mean, slow_neighbour_mean)]


def random_edges(num_nodes: int, num_edges: int, seed: int = 0) -> Tensor:
    return torch.randint(num_nodes, (2, num_edges), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("fast", "slow"), FAST_AND_SLOW)
@given(
    num_nodes=st.integers(1, 9),
    num_edges=st.integers(0, 20),
    seed=st.integers(0, 99),
    middle=st.lists(st.integers(1, 3)),
)
def test_neighbours_are_summed_as_in_a_loop(fast, slow, num_nodes, num_edges, seed, middle) -> None:
    edge_index = random_edges(num_nodes, num_edges, seed)
    x = torch.randn(
        num_nodes, *middle[:2], 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    torch.testing.assert_close(fast(x, Adjacency.from_edges(edge_index, num_nodes)), slow(x, edge_index))
    reversed_ = Adjacency.from_edges(edge_index, num_nodes).reversed()
    torch.testing.assert_close(fast(x, reversed_), slow(x, edge_index.flip(0)))


@pytest.mark.parametrize(("fast", "slow"), FAST_AND_SLOW)
def test_one_number_per_node_is_enough(fast, slow) -> None:
    x, edge_index = torch.arange(4.0), random_edges(4, 9)
    torch.testing.assert_close(
        fast(x, Adjacency.from_edges(edge_index, 4)), slow(x[:, None], edge_index)[:, 0]
    )


@pytest.mark.parametrize("fast", [neighbour_sum, neighbour_mean])
@pytest.mark.parametrize("num_edges", [0, 12])
def test_gradients_are_right(fast, num_edges: int) -> None:
    adjacency = Adjacency.from_edges(random_edges(6, num_edges), 6)
    x = torch.randn(6, 2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: fast(x, adjacency), x)


def test_reversed_is_the_transpose() -> None:
    adjacency, unit = Adjacency.from_edges(random_edges(7, 15), 7), torch.eye(7)
    assert neighbour_sum(unit, adjacency).equal(neighbour_sum(unit, adjacency.reversed()).T)
    assert adjacency.degrees().equal(neighbour_sum(torch.ones(7, 1), adjacency)[:, 0].long())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("fast", [neighbour_sum, neighbour_mean])
def test_every_floating_dtype_stays_itself(fast, dtype: torch.dtype) -> None:
    edge_index = torch.tensor([[0, 1, 2], [1, 2, 1]])
    x = torch.tensor([[1.0], [2.0], [4.0], [8.0]], dtype=dtype, requires_grad=True)
    received = fast(x, Adjacency.from_edges(edge_index, 4))
    scale = 1 if fast is neighbour_sum else 2
    assert received.dtype == dtype and received.flatten().tolist() == [0, 5 / scale, 2, 0]
    received.sum().backward()
    assert (
        x.grad is not None
        and x.grad.dtype == dtype
        and x.grad.flatten().tolist() == [1 / scale, 1, 1 / scale, 0]
    )


def test_a_constant_gradient_that_is_one_number_expanded_is_summed_too() -> None:
    x = torch.zeros(3, 4, requires_grad=True)
    neighbour_sum(x, Adjacency.from_edges(torch.tensor([[0, 0], [1, 2]]), 3)).sum().backward()
    assert x.grad is not None and x.grad[:, 0].tolist() == [2, 0, 0]
