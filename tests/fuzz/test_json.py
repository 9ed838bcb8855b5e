"""Anything that is JSON, and plans, graphs and lists that are nearly right, to the readers of JSON."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.reproductions.public_problems.cost_graphs import read_cost_graph
from gst.data import TpuGraphsCollection
from gst.execution.measure import Log
from gst.lowering.plan import Plan
from gst.util.untrusted import parse_json, plain, read_object, shown
from tests.fuzz.readers import READERS

pytestmark = pytest.mark.usefixtures("unchecked")
quick = settings(max_examples=60, derandomize=True, deadline=None)

numbers = st.integers() | st.integers(-3, 5) | st.floats() | st.booleans() | st.none()
values = st.recursive(
    numbers | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
)


def nearly(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Objects with these fields, of which one may be anything or missing; or anything at all."""
    whole = st.fixed_dictionaries(fields)
    changed = st.builds(lambda record, key, value: {**record, key: value}, whole, st.sampled_from([*fields]), values)
    short = st.builds(
        lambda record, key: {k: v for k, v in record.items() if k != key}, whole, st.sampled_from([*fields])
    )
    return whole | changed | short | values


places = st.lists(st.integers(-1, 2), max_size=4)
plans = nearly(
    schema=st.just(1), devices=st.lists(st.sampled_from(["cpu:0", "cpu:1"]), max_size=3), placement=places,
    priority=st.none() | places, fusion=st.none() | places,
)  # fmt: skip
nodes = nearly(
    id=st.integers(0, 4), supportedOnFpga=st.integers(0, 1), cpuLatency=st.floats(), fpgaLatency=st.floats(0, 9),
    isBackwardNode=st.booleans(), colorClass=st.integers(0, 2), size=st.floats(0, 9),
)  # fmt: skip
edges = nearly(sourceId=st.integers(0, 4), destId=st.integers(0, 4), cost=st.just(1.0))
cost_graphs = nearly(
    maxSizePerFPGA=st.floats(0, 9), maxFPGAs=st.integers(0, 2), maxCPUs=st.integers(0, 2),
    nodes=st.lists(nodes, max_size=3), edges=st.lists(edges, max_size=3),
)  # fmt: skip


def refused_or_read(read: Callable[[Path], object], name: str, content: str) -> object:
    """Return the content, or None if it is refused with the right error."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(content)
        try:
            return read(path)
        except ValueError as error:
            message = str(error)
            assert str(folder) in message and message.isprintable() and len(message) < 600 + len(folder)
            return None


@quick
@given(plans)
def test_plans(record: Any) -> None:
    plan = refused_or_read(Plan.load, "plan.json", json.dumps(record))
    if plan is not None:
        assert isinstance(plan, Plan)
        assert {**plan.to_dict(), "schema": 1} == {"priority": None, "fusion": None, **record}


@quick
@given(cost_graphs)
def test_cost_graphs(record: Any) -> None:
    graph = refused_or_read(read_cost_graph, "graph.json", json.dumps(record))
    assert graph is None or graph.num_nodes == len(record["nodes"])  # type: ignore[attr-defined]


@quick
@given(nearly(another=st.lists(st.integers(0, 3))))
def test_lists_of_configurations(record: Any) -> None:
    def read(path: Path) -> object:
        return TpuGraphsCollection(str(path.parent), "tile/xla", "valid", str(path))._rows

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TpuGraphsCollection, "files", ())
        refused_or_read(read, "list.json", json.dumps(record))


@quick
@given(st.lists(values, max_size=4), st.text(max_size=20))
def test_logs(records: list[Any], unfinished: str) -> None:
    text = "".join(json.dumps(record) + "\n" for record in records) + unfinished.replace("\n", "")
    read = refused_or_read(lambda path: Log(path).read(), "log.jsonl", text)
    assert read is None or len(read) == len(records)  # type: ignore[arg-type]


@quick
@given(st.text())
@pytest.mark.parametrize("name", ["edge list", "hlo text", "split"])
def test_any_text(name: str, text: str) -> None:
    refused_or_read(READERS[name].read, "file.txt", text.replace("\ud800", ""))


@quick
@given(values)
def test_json_comes_back(value: Any) -> None:
    text = json.dumps(value)
    assert json.dumps(parse_json(text)) == text
    assert len(shown(value)) <= 80 and shown(value).isprintable()


@quick
@given(st.text())
def test_a_plain_message_is_one_printable_line(text: str) -> None:
    assert plain(text).isprintable() and len(plain(text)) <= 200


def test_what_is_no_object_or_too_deep_is_refused(tmp_path: Path) -> None:
    for content, problem in (("[1]", "holds a list"), ("{", "not JSON"), ("[" * 200_000, "too deeply")):
        (tmp_path / "file.json").write_text(content)
        with pytest.raises(ValueError, match=problem):
            read_object(tmp_path / "file.json")
    with pytest.raises(ValueError, match="no such file"):
        read_object(tmp_path / "absent.json")
