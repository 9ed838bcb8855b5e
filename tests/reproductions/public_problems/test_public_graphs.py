"""Readers of published placement problems: what each format says, and what each refuses."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from experiments.reproductions.public_problems.formats import PublicGraph, read_public_graph

FIXTURES = Path(__file__).parents[2] / "fixtures/public_graphs"
SHARED = Path(__file__).parents[4] / "shared/data"
FORMATS = {
    "doppler.txt": "doppler", "moirai.xls": "moirai", "pipedream.txt": "pipedream", "piper.json": "piper",
    "msr.json": "msr", "workflow.json": "wfformat", "workflow_1_3.json": "wfformat",
}  # fmt: skip


def read(name: str) -> PublicGraph:
    if name.endswith(".xls"):
        pytest.importorskip("xlrd", reason="needs the extra 'experiments'")
    return read_public_graph(FIXTURES / name)


def edges_of(graph: PublicGraph) -> dict[tuple[str, str], float]:
    pairs = graph.edges.T.tolist()
    return {(graph.ids[a], graph.ids[b]): amount for (a, b), amount in zip(pairs, graph.amounts.tolist(), strict=True)}


@pytest.mark.parametrize("name", FORMATS)
def test_the_format_is_recognised_by_content_and_nodes_come_in_topological_order(name: str, tmp_path: Path) -> None:
    graph = read(name)
    assert graph.format == FORMATS[name]
    other = tmp_path / "without_an_ending"
    other.write_bytes((FIXTURES / name).read_bytes())
    assert read_public_graph(other).ids == graph.ids
    assert (graph.edges[0] < graph.edges[1]).all()
    assert sorted(graph.file_rank.tolist()) == list(range(graph.num_nodes))
    assert graph.times.shape == (len(graph.kinds), graph.num_nodes) and len(graph.limits) == len(graph.kinds)


def test_doppler_costs_are_of_operations_without_inputs() -> None:
    graph = read("doppler.txt")
    assert graph.times.tolist() == [[2e10, 3e10, 4e10, 1e10]] and graph.scale == 1e10
    assert edges_of(graph) == {("0", "1"): 1e10, ("0", "2"): 1e10, ("1", "3"): 1e10, ("2", "3"): 2e10}
    assert graph.first_come and graph.hops.tolist() == [[1.0]]


def test_pipedream_layers_have_a_backward_pass_on_the_same_device() -> None:
    graph = read("pipedream.txt")
    times = dict(zip(graph.ids, graph.times[0].tolist(), strict=True))
    assert times == {
        "node1": 2.0, "node2": 1.0, "node3": 3.0, "node1.backward": 4.0, "node2.backward": 2.0, "node3.backward": 0.0
    }  # fmt: skip
    edges = edges_of(graph)
    assert edges["node1", "node2"] == 6e6 == edges["node2.backward", "node1.backward"], "a sum of a list of sizes"
    assert edges["node2", "node3"] == 8e6 and edges["node3", "node3.backward"] == 0.0
    group = dict(zip(graph.ids, graph.groups.tolist(), strict=True))
    assert all(group[f"node{n}"] == group[f"node{n}.backward"] for n in (1, 2, 3))
    size = dict(zip(graph.ids, graph.sizes.tolist(), strict=True))
    assert size["node1"] == 6_001_000 and size["node1.backward"] == 0
    assert graph.split is not None
    assert dict(zip(graph.ids, graph.split.tolist(), strict=True))["node1.backward"] == 0


def test_piper_layers_take_the_least_degree_and_no_recomputation() -> None:
    graph = read("piper.json")
    assert graph.ids == ("first", "last") and graph.times.tolist() == [[2.0, 3.0]] and graph.unit == "s"
    assert graph.sizes.tolist() == [110.0, 100.0] and graph.limits.tolist() == [300.0]
    assert edges_of(graph) == {("first", "last"): 500.0} and graph.bytes_per_unit == 1000.0


def test_msr_nodes_keep_their_costs_and_find_their_split() -> None:
    graph = read("msr.json")
    assert graph.ids == ("2", "4", "9") and graph.kinds == ("cpu", "accelerator") and graph.counts == (1, 1)
    assert graph.times.tolist() == [[3.0, 10.0, 20.0], [np.inf, 1.0, 2.0]]
    assert edges_of(graph) == {("2", "4"): 0.5, ("4", "9"): 0.25}
    assert graph.split is not None and graph.split.tolist() == [-1, 0, 0]


def test_a_split_of_another_graph_of_the_same_name_is_left_out(tmp_path: Path) -> None:
    for name in ("msr.json", "msr_expert.json"):
        (tmp_path / name).write_text((FIXTURES / name).read_text().replace("4", "44" if "expert" in name else "4"))
    graph = read_public_graph(tmp_path / "msr.json")
    assert graph.split is None and any("split is left out" in note for note in graph.notes)


@pytest.mark.parametrize("name", ["workflow.json", "workflow_1_3.json"])
def test_workflows_move_the_files_that_a_parent_writes_and_a_child_reads(name: str) -> None:
    graph = read(name)
    assert dict(zip(graph.ids, graph.times[0].tolist(), strict=True)) == {"part_1": 2.0, "part_2": 3.5, "merge_3": 1.0}
    assert edges_of(graph) == {("part_1", "merge_3"): 1e9, ("part_2", "merge_3"): 2e9} and graph.unit == "s"


def test_moirai_has_times_of_each_device_and_of_each_transfer() -> None:
    graph = read("moirai.xls")
    assert graph.ids == ("0", "1", "3", "5", "7") and graph.kinds == ("p0", "p1")
    assert graph.times.tolist() == [[0, 2.0, 3.0, 1.0, 0.5], [0, 4.0, 1.0, 1.5, 0.5]]
    moved = {pair: graph.pair_times[n].tolist() for n, pair in enumerate(edges_of(graph))}
    assert moved["0", "1"] == [[0, 0], [0, 0]], "the source moves nothing"
    assert moved["1", "3"] == [[0, 1.5], [1.0, 0]] and moved["1", "5"] == [[0, 0.5], [0.25, 0]]
    assert moved["3", "7"] == [[0, 2.0], [2.0, 0]]
    assert graph.sizes.tolist() == [0, 10, 10, 5, 0] and graph.limits.tolist() == [25, 15]


def test_an_excel_file_without_its_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xlrd", None)
    with pytest.raises(ValueError, match=r"xlrd; pip install 'graph-segment-training\[experiments\]'"):
        read_public_graph(FIXTURES / "moirai.xls")


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        ("doppler.txt", "5\n", "9\n", "4 lines of costs, want 8"),
        ("doppler.txt", "5\n", "1\n", "leave 0 operations"),
        ("doppler.txt", "1, 2, 3, 3", "1, 2, 3", "4 sources and 3 destinations"),
        ("doppler.txt", "1, 2, 3, 3", "1, 2, 3, 4", "an edge names operation 4, there are 0 .. 3"),
        ("doppler.txt", "1, 2, 3, 3", "1, 2, 0, 3", "without cycles"),
        ("doppler.txt", "30000000000,10000000000", "30000000000", "a compute and a transfer cost"),
        ("doppler.txt", "30000000000,", "-30000000000,", "want a number >= 0"),
        ("doppler.txt", "30000000000,", "9" * 400 + ",", "want a number >= 0"),
        ("doppler.txt", "0, 0, 1, 2", "0, 0, 1, " + "9" * 5000, "is no number of an operation"),
        ("pipedream.txt", "\tnode1 -- node2", "\tnode1 -- node8", "names 'node8'"),
        ("pipedream.txt", "\tnode2 -- node3", "\tnode2 -- node3\n\tnode3 -- node1", "without cycles"),
        ("pipedream.txt", "node3 -- Linear", "node2 -- Linear", "'node2' is there twice"),
        ("pipedream.txt", "backward_compute_time=2.000, ", "", "line 1: backward_compute_time is missing"),
        ("pipedream.txt", "forward_compute_time=3.000", "forward_compute_time=nan", "line 3: forward_compute_time is"),
        ("pipedream.txt", "\tnode2 -- node3", "\tnode2 to node3", "line 5 is 'node2 to node3'"),
        ("piper.json", '"destId": 7', '"destId": 8', "there is no node 8"),
        ("piper.json", '"timePerSample": 3.0, ', "", "node 7: timePerSample is missing"),
        ("piper.json", '"timePerSample": 3.0', '"timePerSample": "3"', "want a number"),
        ("piper.json", '"bandwidth": 1000.0', '"bandwidth": 0', "bandwidth is 0"),
        ("piper.json", '"id": 7,', '"id": 3,', "2 nodes have 1 ids"),
        ("piper.json", '"sourceId": 3', '"sourceId": 7', "without cycles"),
        ("msr.json", '"fpgaLatency": 1.0', '"fpgaLatency": -1.0', "want a number >= 0"),
        ("msr.json", '"destId": 9', '"destId": 1', "there is no node 1"),
        ("workflow.json", '"children": ["merge_3"]', '"children": ["merge_4"]', "there is no task 'merge_4'"),
        ("workflow.json", '{"id": "part_1", "runtimeInSeconds": 2.0}, ', "", "task 'part_1' has no time"),
        ("workflow.json", '"runtimeInSeconds": 2.0', '"runtimeInSeconds": -2.0', "want a number >= 0"),
        ("workflow.json", '"runtimeInSeconds": 2.0', '"runtimeInSeconds": null', "want a number >= 0"),
        ("workflow.json", '"id": "part_2"', '"id": "part_1"', "3 tasks have 2 ids"),
        ("workflow.json", '"execution"', '"executions"', "no 'execution'"),
        ("workflow.json", '"children": [], ', '"children": ["part_1"], ', "without cycles"),
        ("workflow.json", '"inputFiles": ["a", "b", "setup"]', '"inputFiles": {"a": 1}', "want a list of names"),
        ("workflow.json", '"sizeInBytes": 5', '"size": 5', "sizeInBytes is missing"),
    ],
)
def test_bad_files_are_refused_in_one_line(name: str, old: str, new: str, words: str, tmp_path: Path) -> None:
    text = (FIXTURES / name).read_text()
    assert old in text
    bad = tmp_path / name
    bad.write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        read_public_graph(bad)
    assert "\n" not in str(error.value) and str(bad) in str(error.value)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1, 2]",
        b'{"nodes": [{"id": 1}]}',
        b"hello\n",
        b"\xff\xfe\x00",
        b"12\n",
        b'{"workflow": 3}',
        b"3 4\n",
    ],
)
def test_other_files_are_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(str(path))) as error:
        read_public_graph(path)
    assert "\n" not in str(error.value)


def test_a_damaged_excel_file_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("xlrd", reason="needs the extra 'experiments'")
    content = (FIXTURES / "moirai.xls").read_bytes()
    for number, damaged in enumerate([content[:600], content[:8], content[:1500] + b"\xff" * 400 + content[1900:]]):
        path = tmp_path / f"{number}.xls"
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=re.escape(str(path))):
            read_public_graph(path)


@pytest.mark.skipif(not (SHARED / "placement.tar.xz").exists(), reason="shared/data is not beside the repository")
def test_every_problem_of_the_archive_is_read(tmp_path: Path) -> None:
    counts: dict[str, int] = {}
    with tarfile.open(SHARED / "placement.tar.xz") as archive:
        for member in archive:
            file = archive.extractfile(member)
            name = Path(member.name).name
            if (
                file is None
                or name.endswith((".md", "LICENSE"))
                or (member.size > 2**20 and "wfinstances" in member.name)
            ):
                continue
            if name.endswith(".xls") and importlib.util.find_spec("xlrd") is None:
                continue
            path = tmp_path / name
            with io.FileIO(path, "w") as out:
                out.write(file.read())
            graph = read_public_graph(path)
            assert graph.num_nodes > 1 and np.isfinite(graph.times).any(0).all()
            counts[graph.format] = counts.get(graph.format, 0) + 1
    assert counts["doppler"] == 10 and counts["pipedream"] == 13 and counts["piper"] == 3 and counts["wfformat"] > 80


@pytest.mark.skipif(not (SHARED / "placement").exists(), reason="shared/data is not beside the repository")
def test_msr_graphs_find_the_published_experts() -> None:
    for path in sorted((SHARED / "placement/latency_layer_graphs").glob("*.json")):
        split = read_public_graph(path).split
        assert split is not None and len(split) == len(json.loads(path.read_text())["nodes"])


@pytest.mark.parametrize("version", ["1.5", "1.6"])
def test_versions_of_wfformat_that_add_optional_keys_are_read_alike(version: str, tmp_path: Path) -> None:
    """wfcommons/WfCommons#43: a reader of another version of the schema refused such files."""
    parents = {"a": [], "b": ["a"], "c": ["a"]}
    tasks = [
        {"name": name, "id": name, "parents": above, "inputFiles": [], "outputFiles": [],
         "children": [child for child, its in parents.items() if name in its]}
        for name, above in parents.items()
    ]  # fmt: skip
    times = zip("abc", (1.5, 2.0, 3.0), strict=True)
    runs = [{"id": name, "runtimeInSeconds": time, "machines": ["m"]} for name, time in times]
    specification: dict[str, object] = {"tasks": tasks, "files": []}
    execution: dict[str, object] = {
        "makespanInSeconds": 9, "executedAt": "2025-01-01T00:00:00Z", "tasks": runs, "machines": [{"nodeName": "m"}],
    }  # fmt: skip
    if version == "1.6":
        specification["metrics"], execution["metrics"] = {"numberOfTasks": 3}, {"totalWork": 6.5}
    workflow = {"specification": specification, "execution": execution}
    path = tmp_path / "workflow.json"
    path.write_text(json.dumps({"name": "w", "schemaVersion": version, "workflow": workflow}))
    graph = read_public_graph(path)
    assert graph.format == "wfformat" and graph.times.tolist() == [[1.5, 2.0, 3.0]]
    assert graph.edges.tolist() == [[0, 0], [1, 2]]
