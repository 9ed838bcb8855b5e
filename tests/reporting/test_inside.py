"""The graph of a report: discs in the order of the flow, and the operations that the script draws of each segment."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from made_records import layered, make_record
from report_html import Html

from gst.reporting import graph
from gst.reporting.graph import MAX_NODES
from gst.reporting.placement import render


def operations(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="operations">(.*?)</script>', page)
    assert found is not None
    return json.loads(found[1])


@pytest.fixture(scope="module")
def page() -> str:
    return render(make_record(1_000))


def test_every_operation_and_edge_is_there_once(page: str) -> None:
    graph, told = layered(1_000), operations(page)
    segments = told["segments"]
    assert sorted(node for segment in segments for node in segment["node"]) == list(range(1_000))
    inner = Counter()
    for segment in segments:
        nodes, ends = segment["node"], segment["edges"]
        inner.update((nodes[a], nodes[b]) for a, b in zip(ends[::2], ends[1::2], strict=True))
        for at, node in enumerate(nodes):
            assert told["opcodes"][segment["opcode"][at]] == graph["opcode"][node]
            assert told["devices"][segment["device"][at]] == f"cpu:{graph['device'][node]}"
    source, target = graph["edges"]
    part = {node: index for index, segment in enumerate(segments) for node in segment["node"]}
    assert inner == Counter((a, b) for a, b in zip(source, target, strict=True) if part[a] == part[b])
    between = Counter((part[a], part[b]) for a, b in zip(source, target, strict=True) if part[a] != part[b])
    triples = np.array(told["between"]).reshape(-1, 3).tolist()
    assert {(a, b): count for a, b, count in triples} == between


def test_segments_are_numbered_as_data_flows() -> None:
    edges = np.array([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6]])
    assert graph.in_flow_order(edges, np.array([9, 9, 4, 4, 4, 7, 7])).tolist() == [0, 0, 1, 1, 1, 2, 2]


def test_no_two_operations_share_a_place(page: str) -> None:
    for segment in operations(page)["segments"]:
        places = list(zip(segment["column"], segment["lane"], strict=True))
        assert len(set(places)) == len(places)
        by_column: dict[int, list[int]] = {}
        for column, lane in places:
            by_column.setdefault(column, []).append(lane)
        assert all((np.diff(sorted(lanes)) >= 9).all() for lanes in by_column.values())
        assert min(segment["column"]) == 0 and min(segment["lane"]) == 0
        nodes, ends = range(len(places)), segment["edges"]
        assert all(segment["column"][a] < segment["column"][b] for a, b in zip(ends[::2], ends[1::2], strict=True))
        assert sorted({segment["column"][n] for n in nodes}) == list(range(max(segment["column"]) + 1))


def test_a_crowded_depth_takes_several_columns() -> None:
    fan = np.stack([np.zeros(100, np.int64), np.arange(1, 101)])
    column, lane = graph.places(fan, np.zeros(101, np.int64))
    assert column[0] == 0 and column[1:].min() == 1 and len(np.unique(column[1:])) == -(-100 // graph.MAX_LANES)
    assert np.ptp(lane) < 3 * graph.MAX_LANES


def test_discs_lead_to_rows_that_are_there_without_scripts(page: str) -> None:
    html = Html(page)
    links = [link["href"] for link in html.all("a")]
    rows = {row.get("id") for row in html.all("tr")}
    assert len(links) == 10 and {str(link)[1:] for link in links} <= rows
    assert "hidden" in next(box for box in html.all("div") if box.get("id") == "inside")


def test_bundles_say_how_many_of_their_edges_change_device(page: str) -> None:
    graph = layered(1_000)
    source, target = np.array(graph["edges"])
    between = source // 100 != target // 100
    words = re.findall(r"segment \d+ to \d+: ([\d,]+) edges, ([\d,]+) of them between devices", page)
    assert sum(int(count) for count, _ in words) == between.sum()
    device = np.array(graph["device"])
    assert sum(int(crossing) for _, crossing in words) == (device[source] != device[target]).sum()


def test_a_graph_that_is_too_large_shows_segments_alone() -> None:
    page = render(make_record(MAX_NODES + 1))
    assert 'id="operations"' not in page and "no single operations are shown" in page
    assert page.count("data-segment=") == graph.MAX_DISCS
