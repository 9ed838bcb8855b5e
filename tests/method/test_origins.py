"""Rows of a segment move with those that a step encodes anew: a table with origins against a dictionary of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from reference import models, random_graph
from torch import Tensor

from embedding_cache import EmbeddingTable
from gst.graphs.config_classes import config_classes
from gst.graphs.segments import segment
from gst.method.draws import Catalogue
from gst.method.estimator import GraphSegmentTraining

GRAPHS = [segment(random_graph(seed, 30, num_configurable=4, num_configs=9, channels=1), 6) for seed in range(2)]
STEPS = [
    ([0], [[0, 1, 2, -1]]),
    ([0, 1], [[1, 3, -1, 5], [8, 0, 1, 2]]),
    ([1], [[0, 4, 6, 7]]),
    ([0, 0], [[0, 1, 7, 8], [2, 4, 1, -1]]),  # a graph twice, under other configurations
    ([1, 0], [[3, 5, 8, 8], [2, 2, 2, 6]]),
]


class SlowRows:
    """All rows of each segment, which a visit of the segment moves one by one."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int], dict[int, Tensor]] = {}

    def visit(self, segment: tuple[int, int], embedded: list[tuple[int, Tensor]], moves: bool) -> None:
        """Move the rows of a segment by the change of those that are `embedded` under a class, and write these."""
        rows = self.rows.setdefault(segment, {})
        changes = [new - rows[key] for key, new in embedded if key in rows]
        if changes and moves:
            shift = torch.stack(changes).sum(0) / (len(changes) + 1)
            rows.update({key: row + shift for key, row in rows.items()})
        rows.update(reversed(embedded))


def make(table: EmbeddingTable, **settings: Any) -> GraphSegmentTraining:
    encoder, head = models("sage", random_graph(0, num_configurable=4, num_configs=9, channels=1))
    return GraphSegmentTraining(encoder, head, "mean", 2, 1.0, table, seed=3, **settings)


@pytest.mark.parametrize("estimate", ["difference", "composite"])
@pytest.mark.parametrize(("tier", "dtype"), [("device", torch.float64), ("disk", torch.float32)])
def test_rows_are_those_of_a_dictionary_that_moves_them_one_by_one(
    estimate: str, tier: str, dtype: torch.dtype, tmp_path: Any
) -> None:
    table = EmbeddingTable(1, 6, dtype, tier=tier, path=tmp_path if tier == "disk" else None)  # type: ignore[arg-type]
    model, twin = make(table, estimate=estimate), SlowRows()
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    num_known = 0
    for which, columns in STEPS:
        graphs, configs = [GRAPHS[i] for i in which], torch.tensor(columns)
        draw = model.draw(graphs, configs)
        fresh = draw.fresh.nonzero().squeeze(1)
        embedded = model.encode(draw.catalogue, fresh, draw.configs).detach()
        model(graphs, configs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        visits: dict[tuple[int, int], list[tuple[int, Tensor]]] = {}
        for place, (graph, number) in enumerate(draw.catalogue.picks(fresh)):
            classes = config_classes(graphs[graph]).of(configs[graph].clamp(min=0).numpy())[number]
            real = [i for i in range(4) if configs[graph, i] >= 0]
            visits.setdefault((which[graph], number), []).extend((int(classes[i]), embedded[place, i]) for i in real)
        for key, rows in visits.items():
            several = config_classes(GRAPHS[key[0]]).counts[key[1]] > 1
            twin.visit(key, rows, moves=bool(several))
        for number, graph in enumerate(GRAPHS):
            everything = torch.arange(9)[None]
            kept = model.rows_of(model.draw([graph], everything))
            assert kept is not None
            rows, ages = kept.of(torch.arange(graph.num_segments)), kept.ages()
            classes = config_classes(graph).of(np.arange(9))
            for place, config in np.ndindex(*classes.shape):
                theirs = twin.rows.get((number, place), {}).get(int(classes[place, config]))
                assert (theirs is None) == (ages[place, config] < 0)
                if theirs is not None:
                    num_known += 1
                    torch.testing.assert_close(rows[place, config].double(), theirs.double(), rtol=1e-5, atol=1e-6)
    assert num_known > 200


def test_a_graph_without_configurations_keeps_no_origin() -> None:
    whole = random_graph(0, 30, num_configurable=0)
    graph, table = segment(whole, 6), EmbeddingTable(1, 6)
    model = GraphSegmentTraining(*models("sage", whole), "mean", 2, 1.0, table)
    for _ in range(30):
        model([graph])
    assert table.num_keys == table.rows_in_use == graph.num_segments


def test_an_origin_leaves_a_full_table_after_all_rows_that_are_relative_to_it() -> None:
    table = EmbeddingTable(1, 6, capacity=12)
    model = make(table)
    for number in range(60):
        model([GRAPHS[number % 2]], torch.tensor([[number % 9, (number * 5) % 9]]))
        keys = model.keys.of(Catalogue.of(GRAPHS), torch.arange(9).repeat(2, 1))  # type: ignore[union-attr]
        known = torch.where(keys >= 0, table.written(keys.clamp(min=0).flatten()).view_as(keys), -1) >= 0
        has_origin = keys[:, -1] >= 0
        assert not (known[:, :-1].any(1) & has_origin & ~known[:, -1]).any()
    assert table.rows_in_use == 12
