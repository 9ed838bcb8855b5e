"""Training over a table in any tier, of any dtype, by either backend, is its slow twin, whose table is a dictionary."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import KINDS, SlowTraining, models, random_graph
from torch import Tensor, nn

from embedding_cache import EmbeddingTable
from embedding_cache.storage import Tier
from gst.graphs.segments import segment
from gst.method.estimator import GraphSegmentTraining
from gst.nn.sparse import Backend, has_torch_sparse, set_backend

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
BACKENDS = [
    "native",
    pytest.param(
        "torch_sparse",
        marks=pytest.mark.skipif(
            not has_torch_sparse(), reason="torch-sparse and torch-scatter are not installed (`make sparse`)"
        ),
    ),
]
GRAPHS = [segment(random_graph(seed, 8 + 6 * seed, num_configs=3 + seed), 5, halo=seed % 2) for seed in range(3)]
ROUNDED = {torch.float32: 1e-7, torch.bfloat16: 4e-3, torch.float16: 5e-4}
"""Half the distance to the next number, as a share of it: how far a row of the table may be from the one pushed."""

Work = tuple[list[int], list[list[int]]]
"""Of one step: which of GRAPHS, and which configurations of each."""


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    yield
    set_backend("native")


@st.composite
def steps(draw: st.DrawFn) -> list[Work]:
    """One or two graphs each, perhaps the same one twice, under some of their configurations."""
    found = []
    for _ in range(draw(st.integers(2, 4))):
        which = draw(st.lists(st.integers(0, 2), min_size=1, max_size=2))
        width, configs = draw(st.integers(1, 3)), []
        for i in which:
            every = st.integers(0, GRAPHS[i].num_configs - 1)
            chosen = draw(st.lists(every, unique=True, min_size=1, max_size=width))
            configs.append(chosen + [-1] * (width - len(chosen)))
        found.append((which, configs))
    return found


def gradients(loss: Tensor, *modules: nn.Module) -> list[Tensor]:
    parameters = [p for module in modules for p in module.parameters()]
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def descend(gradient: list[Tensor], *modules: nn.Module) -> None:
    """A step of one length, so that nothing diverges."""
    length = torch.cat([slope.flatten() for slope in gradient]).norm()
    with torch.no_grad():
        for parameter, slope in zip((p for m in modules for p in m.parameters()), gradient, strict=True):
            parameter -= 0.1 * slope / (1 + length)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("tier", get_args(Tier))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=3)
@given(
    work=steps(),
    kind=st.sampled_from(KINDS),
    pooling=st.sampled_from(["sum", "mean", "max"]),
    num_fresh=st.integers(1, 2),
    keep=st.sampled_from([0.3, 1.0]),
    seed=st.integers(0, 99),
)
def test_training_is_its_slow_twin_in_every_tier_and_dtype_by_every_backend(
    tier: Tier, backend: Backend, work: list[Work], dtype: torch.dtype, kind: str, pooling: str, num_fresh: int,
    keep: float, seed: int,
) -> None:  # fmt: skip
    """The model is in double precision, so that of all that differs only the rounding of rows is seen; the twin rounds
    them too. What the table holds is besides compared with what was pushed, within the rounding of its dtype."""
    encoder, head = models(kind, random_graph(0))
    twin = SlowTraining(
        copy.deepcopy(encoder), copy.deepcopy(head), pooling, num_fresh, keep, "table", seed, table_dtype=dtype
    )
    with tempfile.TemporaryDirectory() as directory:
        table = EmbeddingTable(1, 6, dtype, tier=tier, path=directory if tier == "disk" else None)
        model = GraphSegmentTraining(encoder, head, pooling, num_fresh, keep, table, seed=seed, estimate="dropout")
        for which, rows in work:
            graphs, configs = [GRAPHS[i] for i in which], torch.tensor(rows)
            real = configs >= 0
            set_backend(backend)
            ours = model(graphs, configs)[real]
            our_gradient = gradients(ours.square().sum(), encoder, head)
            set_backend("native")
            by_place = twin(graphs, configs)
            theirs = torch.stack([by_place[place] for place in map(tuple, real.nonzero().tolist())])
            their_gradient = gradients(theirs.square().sum(), twin.encoder, twin.head)
            for a, b in zip([ours, *our_gradient], [theirs, *their_gradient], strict=True):
                torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
            descend(our_gradient, encoder, head)
            descend(their_gradient, twin.encoder, twin.head)
        kept = table.export_rows()[1]
        assert kept.dtype == dtype
        known = torch.stack(list(twin.table.values()))
        torch.testing.assert_close(kept.double().sort(0).values, known.sort(0).values, rtol=ROUNDED[dtype], atol=1e-6)
