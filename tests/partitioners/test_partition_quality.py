from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partition_cases import graphs, unhurried, weights

from partitioners import quality


@pytest.mark.parametrize("weighted", [False, True])
@unhurried
@given(graph=graphs(), data=st.data())
def test_equals_the_slow_twin(weighted: bool, graph: tuple[np.ndarray, int], data: st.DataObject) -> None:
    edges, num_nodes = graph
    num_parts = data.draw(st.integers(1, 5))
    parts = data.draw(st.lists(st.integers(0, num_parts - 1), min_size=num_nodes, max_size=num_nodes))
    node_weights = data.draw(weights(num_nodes)) if weighted else None
    edge_weights = data.draw(weights(edges.shape[1])) if weighted else None
    measured = quality(edges, np.array(parts), num_parts, node_weights, edge_weights)

    cut = links = 0
    each = [1] * edges.shape[1] if edge_weights is None else edge_weights.tolist()
    for source, target, weight in zip(*edges.tolist(), each, strict=True):
        links += weight * (source != target)
        cut += weight * (parts[source] != parts[target])
    counts, heavy = [0] * num_parts, [0] * num_parts
    for node, part in enumerate(parts):
        counts[part] += 1
        heavy[part] += 1 if node_weights is None else int(node_weights[node])
    assert measured.edge_cut == pytest.approx(cut / links if links else 0.0)
    assert measured.balance == pytest.approx(max(heavy) / (sum(heavy) / num_parts))
    assert (measured.smallest, measured.largest, measured.heaviest) == (min(counts), max(counts), max(heavy))
    assert measured.num_parts == num_parts


def test_refuses_parts_out_of_range() -> None:
    with pytest.raises(ValueError, match=r"parts are 0\.\.3; wanted 0\.\.1"):
        quality(np.zeros((2, 0), np.int64), np.array([0, 3]), num_parts=2)
    with pytest.raises(ValueError, match=r"parts are -1\.\.0"):
        quality(np.zeros((2, 0), np.int64), np.array([0, -1]))
