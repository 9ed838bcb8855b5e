"""PyG's convolutions as encoders: exact evaluation is that of the whole graph, or the layer is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch_geometric", reason="needs torch-geometric: pip install .[pyg]")

from experiments.drop_in import layers


def test_every_layer_equals_the_whole_graph_or_is_refused_as_the_page_says() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "my_gnn.md").read_text()
    table = layers.table()
    assert "differs" not in table and table.count("| halo ") == 3
    assert table in page, f"docs/how-to/my_gnn.md wants\n{table}"


def test_most_layers_of_pyg_that_take_edges_are_tried() -> None:
    outcomes = layers.outcomes()
    assert sum(result.startswith("halo") for result in outcomes.values()) >= 30
    for name, halo in {"SAGEConv": 1, "GATv2Conv": 1, "GCNConv": 2, "ChebConv": 3}.items():
        assert outcomes[name] == f"halo {halo}"
