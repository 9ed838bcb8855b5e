"""PyG's convolutions as encoders: exact evaluation is that of the whole graph, or the layer is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch_geometric", reason="needs torch-geometric: pip install .[pyg]")

from experiments.drop_in import layers


@pytest.mark.e2e
def test_every_layer_equals_the_whole_graph_or_is_refused_as_the_page_says() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "my_gnn.md").read_text()
    table = layers.outcomes()
    assert "differs" not in table and table.count("| halo ") == 3 and table.count("Conv") > 40
    assert table in page, f"docs/how-to/my_gnn.md wants\n{table}"
