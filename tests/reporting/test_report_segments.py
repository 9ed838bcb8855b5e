"""The graph of a report: discs in the order of the flow, and bundles of edges between them."""

from __future__ import annotations

import re

import numpy as np
import pytest
from made_records import layered, make_record

from gst.reporting import graph
from gst.reporting.placement import render


@pytest.fixture(scope="module")
def page() -> str:
    return render(make_record(1_000))


def test_segments_are_numbered_as_data_flows() -> None:
    edges = np.array([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6]])
    assert graph.in_flow_order(edges, np.array([9, 9, 4, 4, 4, 7, 7])).tolist() == [0, 0, 1, 1, 1, 2, 2]


def test_bundles_say_how_many_of_their_edges_change_device(page: str) -> None:
    graph = layered(1_000)
    source, target = np.array(graph["edges"])
    between = source // 100 != target // 100
    words = re.findall(r"segment \d+ to \d+: ([\d,]+) edges, ([\d,]+) of them between devices", page)
    assert sum(int(count) for count, _ in words) == between.sum()
    device = np.array(graph["device"])
    assert sum(int(crossing) for _, crossing in words) == (device[source] != device[target]).sum()


def test_of_many_segments_the_largest_are_drawn() -> None:
    page = render(make_record(60_000))
    assert page.count("data-segment=") == graph.MAX_DISCS
