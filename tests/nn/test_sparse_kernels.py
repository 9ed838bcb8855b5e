"""Sums by torch-sparse are those of PyTorch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gst.nn import sparse

TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-2}


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@settings(max_examples=30)
@given(lengths=st.lists(st.integers(0, 5), min_size=1, max_size=8), seed=st.integers(0, 99), width=st.integers(1, 3))
def test_both_kernels_agree(dtype: torch.dtype, lengths: list[int], seed: int, width: int) -> None:
    pytest.importorskip("torch_sparse", reason="torch-sparse is not installed (`make sparse`)")
    generator, row_ptr = torch.Generator().manual_seed(seed), torch.tensor([0, *lengths]).cumsum(0)
    columns = torch.randint(6, (sum(lengths),), generator=generator)
    weights = torch.rand(sum(lengths), generator=generator).to(dtype)
    x = torch.randn(6, width, generator=generator).to(dtype)
    arguments = row_ptr, columns, weights, x
    torch.testing.assert_close(
        sparse.torch_sparse_sums(*arguments), sparse.sums(*arguments), rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype]
    )
