"""Segments that a step draws, rows of a table that it reads, and how many nodes are encoded at once."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch
from reference import models, random_graph

from embedding_cache import EmbeddingTable
from embedding_cache.sharded import ShardedTable
from gst.graphs.segments import segment
from gst.method.draws import Peers, choose_fresh, generator_for
from gst.method.estimator import GraphSegmentTraining
from gst.method.exchange import SharedRows
from gst.method.rows import StepRows

GRAPH = segment(random_graph(0, 40), 6)


def test_padding_has_no_age_though_the_first_row_of_the_table_has_one() -> None:
    model = GraphSegmentTraining(*models("sage", random_graph(0)), num_fresh=99, table=EmbeddingTable(1, 6))
    model([GRAPH])
    for number in (1, 2):
        rows = model.rows_of(model.draw([GRAPH], torch.tensor([[0, -1]]), ahead=number - 1))
        assert rows is not None and rows.ages().T.tolist() == [[number] * GRAPH.num_segments, [-1] * GRAPH.num_segments]
    model.step = -9  # a clock that was set back makes no row unknown
    assert (model.rows_of(model.draw([GRAPH], torch.tensor([[0]]))).ages() == 0).all()


def shared_rows(monkeypatch: pytest.MonkeyPatch, rank: int, keep: float, estimate: str) -> StepRows:
    """Rows of one graph in a step of two processes, the second of which is idle."""
    for name, value in (("get_rank", rank), ("get_world_size", 2), ("get_backend", "gloo")):
        monkeypatch.setattr(torch.distributed, name, lambda group, value=value: value)
    table = ShardedTable(EmbeddingTable(1, 6))
    model = GraphSegmentTraining(*models("sage", random_graph(0)), "mean", 1, keep, table, estimate=estimate)
    model.register([GRAPH])
    configs = torch.tensor([[0, 1]])
    peers = Peers(rank, 2, (GRAPH,), configs, torch.zeros(configs.shape, dtype=torch.float64))
    rows = model.rows_of(model.draw([GRAPH], configs, peers=peers))
    assert isinstance(rows, SharedRows)
    return rows


def test_an_idle_process_adds_nothing_to_a_sum_over_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda values, group: None)
    sums = [shared_rows(monkeypatch, rank, 1.0, "difference").summed(torch.ones(1).double()).item() for rank in (0, 1)]
    assert sums == [1, 0]


def test_rows_that_dropout_drops_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = shared_rows(monkeypatch, 0, 0.5, "dropout")
    draw, wanted = rows._draw, rows._wanted[rows._own.numpy()]
    expected = (draw.kept & ~draw.fresh)[:, None].expand(-1, 2)
    assert 0 < expected[:, 0].sum() < GRAPH.num_segments - 1 and wanted.tolist() == expected.tolist()
    assert shared_rows(monkeypatch, 0, 1.0, "difference")._wanted.all()


@pytest.mark.parametrize(("num_segments", "num_fresh", "marked"), [(1, 1, 1), (5, 2, 2), (5, 5, 5), (3, 8, 3)])
def test_as_many_are_fresh_as_asked_for_or_there_are(num_segments: int, num_fresh: int, marked: int) -> None:
    fresh = choose_fresh(num_segments, num_fresh, torch.Generator())
    assert fresh.shape == (num_segments,) and int(fresh.sum()) == marked


def test_every_choice_of_segments_is_equally_likely() -> None:
    generator, draws = torch.Generator().manual_seed(0), 6000
    counts = Counter(tuple(choose_fresh(4, 2, generator).nonzero().flatten().tolist()) for _ in range(draws))
    assert set(counts) == set(itertools.combinations(range(4), 2))
    chi_squared = sum((count - draws / 6) ** 2 / (draws / 6) for count in counts.values())
    assert chi_squared < 20.5  # five degrees of freedom, one in a thousand


def test_generators_depend_on_all_their_numbers_and_on_nothing_else() -> None:
    draw = lambda *numbers: torch.rand(4, generator=generator_for(*numbers)).tolist()  # noqa: E731
    tuples = [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, -1), (0, 0, 0), (2**62,)]
    assert len({tuple(draw(*numbers)) for numbers in tuples}) == len(tuples)
    torch.manual_seed(1)
    assert draw(3, 4) == draw(3, 4)
