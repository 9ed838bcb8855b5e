from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import as_batch, random_graph

from gst.nn import ENCODERS, SAGE, sparse
from gst.nn.sparse import Backend, has_torch_sparse, row_maxima, row_sums, set_backend

needs_torch_sparse = pytest.mark.skipif(
    not has_torch_sparse(), reason="torch-sparse and torch-scatter are not installed (`make sparse`)"
)
SHORT = [torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    yield
    set_backend("native")


def row_pointers(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


@needs_torch_sparse
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *SHORT], ids=str)
@settings(max_examples=30)
@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=8),
    seed=st.integers(0, 99),
    rest=st.lists(st.integers(1, 3), min_size=1, max_size=2),
)
def test_the_backends_agree(dtype: torch.dtype, lengths: list[int], seed: int, rest: list[int]) -> None:
    generator, row_ptr = torch.Generator().manual_seed(seed), row_pointers(lengths)
    columns = torch.randint(6, (sum(lengths),), generator=generator)
    weights = torch.rand(sum(lengths), generator=generator).double()
    x = torch.randn(6, *rest, generator=generator).to(dtype)
    entries = torch.randn(sum(lengths), *rest, generator=generator).to(dtype)
    found = []
    backends: tuple[Backend, ...] = ("native", "torch_sparse")
    for backend in backends:
        set_backend(backend)
        assert sparse._backend == backend
        found.append([row_sums(row_ptr, columns, weights, x), row_maxima(row_ptr, columns, x)])
        found[-1].append(row_maxima(row_ptr, None, entries))
    tolerance = 2e-2 if dtype in SHORT else 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(found[0][0], found[1][0], rtol=tolerance, atol=tolerance)
    assert found[0][1].equal(found[1][1]) and found[0][2].equal(found[1][2])
    empty = row_ptr.diff() == 0
    assert (found[0][0][empty] == 0).all() and torch.isneginf(found[0][1][empty]).all()


@needs_torch_sparse
@pytest.mark.parametrize("make", [*ENCODERS.values(), partial(SAGE, aggregation="max")])
def test_encoders_are_the_same_by_either_backend(make) -> None:
    batch = as_batch(random_graph(0)).to(torch.device("cpu"), torch.float64)
    encoder = make(8, 2)
    encoder(as_batch(random_graph(0)))
    encoder = encoder.double()
    outcomes = []
    for backend in ("native", "torch_sparse"):
        set_backend(backend)
        twin = copy.deepcopy(encoder)
        states = twin(batch).dense()
        states.square().mean().backward()
        outcomes.append([states, *(p.grad for p in twin.parameters() if p.grad is not None)])
    for a, b in zip(*outcomes, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_a_backend_that_does_not_exist_is_refused(unchecked: None) -> None:
    with pytest.raises(ValueError, match=r"'cusparse'.*native, torch_sparse"):
        set_backend("cusparse")


def test_a_backend_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gst.nn.sparse.has_torch_sparse", lambda: False)
    with pytest.raises(ModuleNotFoundError, match=r"not installed.*make sparse"):
        set_backend("torch_sparse")
    assert sparse._backend == "native"
