from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partition_cases import graphs, unhurried

from partitioners import Quality, quality


def cut_share(edges: np.ndarray, parts: np.ndarray) -> float:
    """Share of the edges between different nodes that cross from part to part."""
    cut = links = 0
    for source, target in edges.T.tolist():
        links += source != target
        cut += parts[source] != parts[target]
    return cut / links if links else 0.0


def part_sizes(parts: np.ndarray, num_parts: int) -> list[int]:
    """Nodes of each part."""
    return [parts.tolist().count(part) for part in range(num_parts)]


@unhurried
@given(graphs(), st.data())
def test_equals_the_slow_twin(graph: tuple[np.ndarray, int], data: st.DataObject) -> None:
    edges, num_nodes = graph
    num_parts = data.draw(st.integers(1, 5))
    part_of_each = st.lists(st.integers(0, num_parts - 1), min_size=num_nodes, max_size=num_nodes)
    parts = np.array(data.draw(part_of_each))
    sizes = part_sizes(parts, num_parts)
    expected = Quality(
        num_parts, cut_share(edges, parts), max(sizes) / (num_nodes / num_parts), min(sizes), max(sizes)
    )
    measured = quality(edges, parts, num_parts)
    assert measured.balance == pytest.approx(expected.balance)
    assert measured.edge_cut == pytest.approx(expected.edge_cut)
    assert (measured.num_parts, measured.smallest, measured.largest) == (num_parts, min(sizes), max(sizes))


def test_a_path_of_four_by_hand() -> None:
    path = np.array([[0, 1, 2, 2], [1, 2, 3, 2]])   # the self-loop does not count
    assert quality(path, np.array([0, 0, 0, 1])) == Quality(2, 1 / 3, 1.5, 1, 3)


def test_edges_in_both_directions_give_the_same_share() -> None:
    path = np.array([[0, 1, 2], [1, 2, 3]])
    parts = np.array([0, 0, 1, 1])
    both = np.concatenate([path, path[::-1]], axis=1)
    assert quality(both, parts) == quality(path, parts)


def test_refuses_parts_out_of_range() -> None:
    with pytest.raises(ValueError, match=r"parts are 0\.\.3; wanted 0\.\.1"):
        quality(np.zeros((2, 0), np.int64), np.array([0, 3]), num_parts=2)
    with pytest.raises(ValueError, match=r"parts are -1\.\.0"):
        quality(np.zeros((2, 0), np.int64), np.array([0, -1]))
