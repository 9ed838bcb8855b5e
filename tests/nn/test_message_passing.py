"""Sums and maxima over the entries of a sparse matrix, and the matrices of a batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import as_batch, random_graph
from slow_messages import as_matrix, random_entries, slow_max, slow_product
from torch import Tensor

from gst.nn.sharing import Sharing
from gst.nn.sparse import CsrMatrix, neighbour_max, product

SIZES = {
    "seed": st.integers(0, 99),
    "rows": st.integers(1, 7),
    "columns": st.integers(1, 6),
    "count": st.integers(0, 16),
}
CLOSE = {torch.float64: 1e-10, torch.float32: 1e-5}


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def assert_same_outcome(ours: Tensor, theirs: Tensor, inputs: list[Tensor], dtype: torch.dtype) -> None:
    """Values and gradients."""
    weights = torch.linspace(-1, 1, ours.numel(), dtype=dtype).view_as(ours)
    gradients = [torch.zeros_like(x) for x in inputs] * 2  # where nothing is heard, nothing depends on the inputs
    for i, out in enumerate((ours, theirs)):
        if out.requires_grad:
            found = torch.autograd.grad((out * weights).sum(), inputs, materialize_grads=True)
            gradients[i * len(inputs) : (i + 1) * len(inputs)] = found
    pairs = [(ours, theirs), *zip(gradients[: len(inputs)], gradients[len(inputs) :], strict=True)]
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=CLOSE[dtype], atol=CLOSE[dtype])


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@given(**SIZES, middle=st.lists(st.integers(1, 3), max_size=2))
def test_a_product_is_a_loop_over_entries(dtype, seed, rows, columns, count, middle) -> None:
    entries, x = random_entries(seed, rows, columns, count), numbers(columns, *middle, 2, dtype=dtype)
    ours = product(as_matrix(entries, rows, columns), x)
    assert_same_outcome(ours, slow_product(entries, rows, x), [x], dtype)


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@given(**SIZES, tied=st.booleans())
def test_a_maximum_is_a_loop_over_entries(dtype, seed, rows, columns, count, tied) -> None:
    """Where senders are equal, or one of them is heard twice, they share the gradient."""
    entries, x = random_entries(seed, rows, columns, count), numbers(columns, 3, seed=seed, dtype=dtype)
    x = x.detach().round().requires_grad_() if tied else x
    assert_same_outcome(neighbour_max(as_matrix(entries, rows, columns), x), slow_max(entries, rows, x), [x], dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_every_floating_dtype_stays_itself(dtype: torch.dtype) -> None:
    matrix = CsrMatrix.from_entries(torch.tensor([1, 2, 1]), torch.tensor([0, 1, 2]), (4, 4))
    x = torch.tensor([[1.0], [2.0], [4.0], [8.0]], dtype=dtype, requires_grad=True)
    for heard, values, gradient in (
        (product(matrix, x), [0, 5, 2, 0], [1, 1, 1, 0]),
        (neighbour_max(matrix, x), [0, 4, 2, 0], [0, 1, 1, 0]),
    ):
        assert heard.dtype == dtype and heard.flatten().tolist() == values
        (found,) = torch.autograd.grad(heard.sum(), x)
        assert found.dtype == dtype and found.flatten().tolist() == gradient


def test_short_sums_are_taken_in_float32() -> None:
    """In bfloat16, 256 + 1 is 256."""
    matrix = CsrMatrix.from_entries(torch.zeros(1000, dtype=torch.long), torch.arange(1000), (1, 1000))
    assert product(matrix, torch.ones(1000, 2, dtype=torch.bfloat16)).tolist() == [[1000, 1000]]


def test_a_constant_gradient_that_is_one_number_expanded_is_summed_too() -> None:
    x = torch.zeros(3, 4, requires_grad=True)
    product(CsrMatrix.from_entries(torch.tensor([1, 2]), torch.tensor([0, 0]), (3, 3)), x).sum().backward()
    assert x.grad is not None and x.grad[:, 0].tolist() == [2, 0, 0]


# The matrices of a batch ---------------------------------------------------------------------------


@pytest.mark.parametrize("weights", ["sum", "mean", "symmetric"])
@pytest.mark.parametrize("share", [False, True])
@given(seed=st.integers(0, 99), num_nodes=st.integers(1, 9), num_edges=st.integers(0, 20))
def test_rows_hear_what_their_nodes_hear(weights: str, share: bool, seed: int, num_nodes: int, num_edges: int) -> None:
    """Any states of the rows before a layer, written out for every node and configuration, and the messages counted."""
    graph = random_graph(seed, num_nodes, num_edges, min(num_nodes, 3))
    sharing = Sharing.of(as_batch(graph), 1, ("forward", "backward"), share)
    before, after = (torch.from_numpy(level.first[:-1, None] + level.alike) for level in sharing.levels)
    x = torch.randn(sharing.levels[0].num_rows, 2, dtype=torch.double)
    heard = product(sharing.matrix(0, ("own", "backward"), weights), x)[after]
    edges = graph.edges.T.tolist()
    degrees = [1 + sum((u == v) + (w == v) for u, w in edges) for v in range(num_nodes)]
    for v in range(num_nodes):
        consumers = [w for u, w in edges if u == v]
        own = 1 / degrees[v] if weights == "symmetric" else 1.0
        expected = own * x[before[v]]
        for u in consumers:
            scale = {"sum": 1, "mean": 1 / len(consumers), "symmetric": (degrees[u] * degrees[v]) ** -0.5}[weights]
            expected = expected + scale * x[before[u]]
        torch.testing.assert_close(heard[v], expected)


def test_weights_that_nobody_knows_are_refused(unchecked: None) -> None:
    sharing = Sharing.of(as_batch(random_graph(0)), 1, ("forward",))
    with pytest.raises(ValueError, match=r"'median'.*'sum', a 'mean' or 'symmetric'"):
        sharing.matrix(0, ("forward",), "median")
