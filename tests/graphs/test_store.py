from __future__ import annotations

import copy
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference import random_graph
from segment_reference import assert_identical

import gst.graphs.preparation
from gst.data.synthetic import SyntheticPrograms, synthetic_program
from gst.graphs.graph import Graph
from gst.graphs.index import record_of
from gst.graphs.segments import SegmentedGraph, segment
from gst.graphs.store import open_store, prepare, verify
from gst.method.batch import assemble
from gst.util.arrays import ArrayWriter, Mapped, PackedArray
from partitioners import METHODS, partition
from tests.files import changed_records, largest_file

GRAPHS = [random_graph(seed, 10 + 20 * seed, num_configurable=4 * seed) for seed in range(3)]


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def in_full(cut: SegmentedGraph) -> SegmentedGraph:
    """With every configuration unpacked."""
    return replace(cut, config_features=np.asarray(cut.config_features))


def stores(root: Path) -> list[Path]:
    return sorted(path.parent for path in root.glob("*/meta.json"))


def leftovers(root: Path) -> list[Path]:
    """What lies there besides stores and notes of their sources."""
    return [path for path in root.iterdir() if path not in stores(root) and path.name != "sources"]


@pytest.mark.parametrize("halo", [0, 1])
@pytest.mark.parametrize("dtype", [np.int8, np.float32])
@pytest.mark.parametrize("block_nodes", [1000, 9])
def test_what_is_read_is_what_was_cut_bit_for_bit(tmp_path: Path, dtype: type, halo: int, block_nodes: int) -> None:
    settings = {"max_nodes": 8, "halo": halo, "seed": 3, "block_nodes": block_nodes}
    more = random_graph(91, data=True), replace(random_graph(92), node_features=np.eye(24, 3, dtype=np.int16))
    graphs = [replace(graph, config_features=graph.config_features.astype(dtype)) for graph in (*GRAPHS, *more)]
    store = prepare(iter(graphs), tmp_path, **settings)
    verify(store)
    for graph, cut in zip(graphs, open_store(store), strict=True):
        assert isinstance(cut.config_features, PackedArray) == (dtype is np.int8 and graph.config_features.size > 0)
        assert_identical(in_full(cut), segment(graph, **settings))
    assert not [path for path in store.iterdir() if path.suffix != ".bin" and path.name != "meta.json"]


def layouts(*at: tuple[int, int], num_configs: int = 300) -> Graph:
    """A graph with 18 layout symbols for each configuration and node; in the configurations `at`, one is replaced."""
    graph = random_graph(0, 40, num_configurable=12, num_configs=num_configs, channels=18)
    for config, symbol in at:
        graph.config_features[config, 5, 7] = symbol
    return graph


def test_layouts_take_eight_bytes_for_each_configuration_and_node(tmp_path: Path) -> None:
    graph = layouts()
    (cut,) = open_store(prepare([graph], tmp_path, max_nodes=8))
    assert isinstance(cut.config_features, PackedArray) and Mapped.of(cut.config_features) is not None
    assert cut.config_features.nbytes == 8 * 300 * 12 and graph.config_features.nbytes == 18 * 300 * 12
    assert 0 < segment(graph, max_nodes=8).nbytes() - cut.nbytes() == 10 * 300 * 12
    picks, chosen = [(0, 2), (0, 0)], np.array([[7, 299, 0]])
    ours, theirs = (assemble([each], picks, torch.from_numpy(chosen)) for each in (cut, segment(graph, max_nodes=8)))
    assert ours.config_features.equal(theirs.config_features) and ours.config_features.shape[1:] == (3, 18)


@pytest.mark.parametrize("at", [[(0, -2)], [(3, 7)], [(299, 127)], [(150, -128)], [(0, 7), (299, 7)]], ids=str)
@pytest.mark.parametrize("config_bytes", [1, 5000, 1 << 24])
def test_other_symbols_are_kept_whole_wherever_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: list[tuple[int, int]], config_bytes: int
) -> None:
    """The pieces that were packed before the symbol came are written again."""
    monkeypatch.setattr("gst.graphs.segments.CONFIG_BYTES", config_bytes)
    monkeypatch.setattr("gst.util.arrays.ROWS_UNPACKED", 100)
    graphs = [replace(layouts(*at), name="other"), replace(layouts(), name="layouts")]
    store = prepare(graphs, tmp_path, max_nodes=8)
    verify(store)
    other, packed = open_store(store)
    assert isinstance(other.config_features, np.ndarray) and isinstance(packed.config_features, PackedArray)
    for graph, cut in zip(graphs, (other, packed), strict=True):
        assert_identical(in_full(cut), segment(graph, max_nodes=8))


def test_the_store_says_into_how_many_ranges_a_graph_was_cut_first(tmp_path: Path) -> None:
    store = prepare(GRAPHS, tmp_path, block_nodes=20)
    records = map(json.loads, (store / "records.bin").read_text().splitlines())
    assert [(record["num_nodes"], record["blocks"]) for record in records] == [(10, 1), (30, 2), (50, 3)]


def test_arrays_are_mapped_and_read_only(tmp_path: Path) -> None:
    (graph,) = open_store(prepare(GRAPHS[1:2], tmp_path, max_nodes=8))
    assert Mapped.of(graph.node_features) is not None and not graph.node_features.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        graph.node_features[0] = 1


# What is known already -----------------------------------------------------------------------------


def test_a_second_preparation_does_nothing(tmp_path: Path) -> None:
    names: list[str] = []
    store = prepare(GRAPHS, tmp_path, max_nodes=8, progress=names.append)
    assert names == [graph.name for graph in GRAPHS]
    before = {path: path.stat().st_mtime_ns for path in [tmp_path, *tmp_path.rglob("*")]}
    assert prepare(iter(GRAPHS), tmp_path, max_nodes=8, progress=names.append) == store
    assert {path: path.stat().st_mtime_ns for path in [tmp_path, *tmp_path.rglob("*")]} == before
    assert len(names) == 3


def test_other_graphs_or_settings_make_another_store(tmp_path: Path) -> None:
    settings = [{}, {"max_nodes": 8}, {"method": "contiguous"}, {"halo": 1}, {"seed": 1}, {"block_nodes": 9}]
    changed = [replace(GRAPHS[0], targets=GRAPHS[0].targets + 1), *GRAPHS[1:]]
    renamed = [replace(GRAPHS[0], name="other"), *GRAPHS[1:]]
    made = [prepare(GRAPHS, tmp_path, **arguments) for arguments in settings]
    made += [prepare(graphs, tmp_path) for graphs in (changed, renamed, GRAPHS[:2], GRAPHS[::-1])]
    assert len(set(made)) == len(made) and sorted(made) == stores(tmp_path)
    for store in made:
        verify(store)


class Source:
    """Graphs behind a fingerprint; counts how often they are read."""

    def __init__(self, graphs: list[Graph], fingerprint: str) -> None:
        self.graphs, self.reads = graphs, 0
        self.fingerprint = lambda: fingerprint

    def __iter__(self) -> Iterator[Graph]:
        self.reads += 1
        return iter(self.graphs)


def test_a_source_with_a_fingerprint_is_read_once(tmp_path: Path) -> None:
    source = Source(GRAPHS, "as of today")
    store = prepare(source, tmp_path)
    assert source.reads == 1 and prepare(source, tmp_path) == store and source.reads == 1
    assert prepare(GRAPHS, tmp_path) == store  # the name is made from what was read, however that was described
    assert prepare(Source(GRAPHS, "as of tomorrow"), tmp_path) == store
    assert prepare(Source(GRAPHS[:2], "as of yesterday"), tmp_path) != store
    assert prepare(source, tmp_path, seed=1) != store and source.reads == 2
    (store / "meta.json").unlink()
    for path in store.iterdir():
        path.unlink()
    store.rmdir()
    assert prepare(source, tmp_path) == store and source.reads == 3


class Counted:
    """Graphs without a fingerprint; counts how many of them are read."""

    def __init__(self, graphs: list[Graph]) -> None:
        self.graphs, self.reads = graphs, 0

    def __iter__(self) -> Iterator[Graph]:
        for graph in self.graphs:
            self.reads += 1
            yield graph


def test_graphs_are_read_twice_only_as_far_as_they_may_be_known(tmp_path: Path) -> None:
    for graphs, reads in ((GRAPHS, 1 + 3), (GRAPHS, 3), (GRAPHS[:2], 2 + 2), (GRAPHS[::-1], 1 + 3), (GRAPHS[:2], 2)):
        counted = Counted(graphs)
        store = prepare(counted, tmp_path)
        assert counted.reads == reads and [cut.name for cut in open_store(store)] == [graph.name for graph in graphs]


def test_graphs_with_an_empty_fingerprint_are_compared(tmp_path: Path) -> None:
    store = prepare(Source(GRAPHS, ""), tmp_path)
    assert prepare(Source(GRAPHS, ""), tmp_path) == store != prepare(Source(GRAPHS[:2], ""), tmp_path)


@pytest.mark.parametrize(("graphs", "problem"), [([], "no graphs"), ([GRAPHS[0], GRAPHS[0]], "two graphs are named")])
@pytest.mark.parametrize("wrap", [list, lambda graphs: Source(graphs, "dated")])
def test_datasets_without_graphs_or_with_twins_are_refused(
    tmp_path: Path, graphs: list[Graph], problem: str, wrap: Callable
) -> None:
    with pytest.raises(ValueError, match=problem):
        prepare(wrap(graphs), tmp_path)
    assert not list(tmp_path.glob("*/meta.json")) and not leftovers(tmp_path)


# Processes -----------------------------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every partition is made by another process."""
    monkeypatch.setattr(gst.graphs.preparation, "PATIENCE", -1.0)


@pytest.mark.e2e
@pytest.mark.parametrize("block_nodes", [1000, 20])
def test_processes_change_nothing(tmp_path: Path, impatient: None, block_nodes: int) -> None:
    graphs = [random_graph(seed, 60, 150) for seed in range(9)]
    names: list[str] = []
    made = [
        prepare(graphs, tmp_path / str(workers), 10, progress=names.append, workers=workers, block_nodes=block_nodes)
        for workers in (1, 2)
    ]
    assert contents(made[0]) == contents(made[1]) and names == [graph.name for graph in graphs] * 2


@pytest.mark.e2e
def test_what_a_process_refuses_is_refused_here(tmp_path: Path, impatient: None) -> None:
    with pytest.raises(ValueError, match="magic"):
        prepare(GRAPHS, tmp_path, method="magic", workers=2)
    assert not list(tmp_path.glob("*/meta.json")) and not leftovers(tmp_path)


@pytest.mark.e2e
def test_a_method_of_a_users_module_reaches_the_processes(
    tmp_path: Path, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users_methods.py").write_text("def halves(problem):\n    return problem.csr.starts[:-1] * 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(METHODS, "mine", importlib.import_module("users_methods").halves)
    made = [prepare(GRAPHS, tmp_path / str(workers), 10, "mine", workers=workers) for workers in (1, 2)]
    assert contents(made[0]) == contents(made[1])
    monkeypatch.setitem(METHODS, "local", lambda problem: METHODS["mine"](problem))  # no process can import it
    prepare(GRAPHS, tmp_path / "local", 10, "local", workers=2)


def test_a_process_that_dies_is_reported(tmp_path: Path, impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    start = subprocess.Popen

    def start_and_kill(*arguments: object, **options: object) -> subprocess.Popen:
        process = start(*arguments, **options)
        process.kill()
        return process

    monkeypatch.setattr(subprocess, "Popen", start_and_kill)
    with pytest.raises(ChildProcessError, match="fewer workers"):
        prepare(GRAPHS, tmp_path, workers=2)
    assert not list(tmp_path.glob("*/meta.json")) and len(leftovers(tmp_path)) == 1
    monkeypatch.undo()
    prepare(GRAPHS, tmp_path, workers=2)  # goes on with what was written before
    assert len(list(tmp_path.glob("*/meta.json"))) == 1 and not leftovers(tmp_path)


# Damage --------------------------------------------------------------------------------------------


def change_meta(**changes: object) -> Callable[[Path], None]:
    def change(store: Path) -> None:
        meta = json.loads((store / "meta.json").read_text())
        (store / "meta.json").write_text(json.dumps(meta | changes))

    return change


def change_array(key: str = "node_features", **changes: object) -> Callable[[Path], None]:
    def change(store: Path) -> None:
        with changed_records(store) as records:
            records[-1]["arrays"][key] |= changes

    return change


def change_lines(store: Path) -> None:
    lines = (store / "records.bin").read_bytes()
    (store / "records.bin").write_bytes(lines.replace(b"0", b"1", 1))


@pytest.mark.parametrize(
    "damage",
    [
        lambda store: os.truncate(store / "node_features.bin", 50),
        lambda store: os.truncate(store / "edges.bin", 0),
        lambda store: (store / "targets.bin").unlink(),
        lambda store: (store / "meta.json").unlink(),
        lambda store: os.truncate(store / "meta.json", 100),
        lambda store: (store / "meta.json").write_bytes(b"\xff\xfe\x00 not text"),
        lambda store: (store / "meta.json").write_text("[]"),
        change_meta(schema=0),
        change_meta(schema=1),
        change_meta(schema=2),
        change_meta(files={}),
        change_meta(files=[]),
        change_meta(graphs=[{}]),
        change_meta(graphs={"names": [], "digests": [], "ends": []}),
        change_meta(graphs={"names": ["one"], "digests": ["none"], "ends": [10**12]}),
        change_lines,
        lambda store: (store / "records.bin").unlink(),
        change_meta(graphs=None),
        change_meta(settings=None),
        change_array(offset=10**9),
        change_array(offset=-64),
        change_array(shape=[3, 7, 11]),
        change_array(shape="wide"),
        change_array(dtype="|O"),
        change_array(dtype="nonsense"),
        change_array("config_features", symbols=18),
        change_array("config_features", symbols=-1),
        change_array("config_features", symbols="wide"),
        change_array("config_features", dtype="|i1"),
    ],
)
def test_a_damaged_store_is_refused_by_name(tmp_path: Path, damage: Callable[[Path], None], unchecked: None) -> None:
    store = prepare(GRAPHS, tmp_path, max_nodes=8)
    damage(store)
    with pytest.raises(ValueError) as refusal:
        verify(store)
    assert str(store) in str(refusal.value) and "\n" not in str(refusal.value)


def test_no_store_at_all_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "absent", tmp_path / "file"):
        with pytest.raises(ValueError, match=str(place)):
            open_store(place)


def test_verify_names_the_file_the_graph_and_the_array_of_a_flipped_byte(tmp_path: Path) -> None:
    store = prepare(GRAPHS, tmp_path, max_nodes=8)
    for record in map(json.loads, (store / "records.bin").read_text().splitlines()):
        for key, entry in record["arrays"].items():
            if not np.prod(entry["shape"]):
                continue
            file = store / f"{key}.bin"
            data = bytearray(file.read_bytes())
            data[entry["offset"]] ^= 1
            file.write_bytes(data)
            with pytest.raises(ValueError, match="checksums differ") as refusal:
                verify(store)
            assert f"{file}: {key} of graph {record['name']!r}" in str(refusal.value)
            data[entry["offset"]] ^= 1
            file.write_bytes(data)
    verify(store)


def test_verify_notices_a_change_of_the_description(tmp_path: Path) -> None:
    store = prepare(GRAPHS, tmp_path, max_nodes=8)
    meta = json.loads((store / "meta.json").read_text())
    meta["graphs"]["digests"][1] = "another"
    (store / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(ValueError, match=r"meta\.json was changed"):
        verify(store)


def test_a_graph_is_opened_when_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = prepare(GRAPHS, tmp_path, max_nodes=8)
    opened: list[str] = []

    def counted(meta: Any, lines: Any, number: int) -> Any:
        opened.append(meta["graphs"]["names"][number])
        return record_of(meta, lines, number)

    monkeypatch.setattr("gst.graphs.store.record_of", counted)
    graphs = open_store(store)
    assert [graph.name for graph in graphs] == [graph.name for graph in GRAPHS] and not opened
    assert graphs[1].num_nodes == GRAPHS[1].num_nodes and opened == [GRAPHS[1].name]
    there = ForkingPickler.loads(ForkingPickler.dumps(graphs[1]))
    copies = [there, copy.copy(graphs[1]), replace(graphs[1], name="copy")]
    assert all(np.array_equal(each.edges, graphs[1].edges) for each in copies) and len(opened) == 1
    assert ForkingPickler.loads(ForkingPickler.dumps(graphs[2])).fingerprint == open_store(store)[2].fingerprint
    assert copy.deepcopy(open_store(store)[0]).num_segments == graphs[0].num_segments
    with pytest.raises(AttributeError, match="has no colour"):
        graphs[0].colour  # noqa: B018


def test_a_line_of_another_graph_is_refused_when_it_is_used(tmp_path: Path) -> None:
    store = prepare(GRAPHS, tmp_path, max_nodes=8)
    with changed_records(store) as records:
        records[1], records[2] = records[2], records[1]
    graphs = open_store(store)
    assert graphs[0].num_nodes == GRAPHS[0].num_nodes
    with pytest.raises(ValueError, match=r"line 2 of records\.bin is not that of graph") as refusal:
        graphs[1].edges  # noqa: B018
    assert str(store) in str(refusal.value)


# Failure -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_bytes", [0, 3000])
@pytest.mark.parametrize("block_nodes", [10_000, 600])
def test_a_write_that_fails_midway_leaves_nothing_behind(tmp_path: Path, num_bytes: int, block_nodes: int) -> None:
    graphs = [*GRAPHS, synthetic_program(2000, 4)]
    prepare(GRAPHS[:1], tmp_path)
    before = stores(tmp_path)
    with pytest.raises(OSError), largest_file(num_bytes):
        prepare(graphs, tmp_path, max_nodes=8, block_nodes=block_nodes)
    assert stores(tmp_path) == before and not leftovers(tmp_path)
    verify(prepare(graphs, tmp_path, max_nodes=8, block_nodes=block_nodes))


def test_a_problem_with_a_graph_leaves_nothing_behind(tmp_path: Path) -> None:
    def graphs() -> Iterator[Graph]:
        yield GRAPHS[1]
        raise ValueError("second.npz is damaged")

    with pytest.raises(ValueError, match=r"second\.npz"):
        prepare(graphs(), tmp_path)
    with pytest.raises(ValueError, match="halo"):
        prepare(GRAPHS, tmp_path, halo=-1)
    assert not list(tmp_path.glob("*/meta.json")) and not leftovers(tmp_path)


def test_whoever_comes_second_takes_what_the_first_made(tmp_path: Path) -> None:
    """Another process finishes the same store while this one is still writing."""
    others: list[Path] = []
    store = prepare(
        GRAPHS, tmp_path, progress=lambda name: others.append(prepare(GRAPHS, tmp_path)) if not others else None
    )
    assert others == [store] == stores(tmp_path) and not leftovers(tmp_path)
    verify(store)


# Resume --------------------------------------------------------------------------------------------

SIX = {"num_graphs": 6, "num_nodes": 60, "num_configs": 4, "num_regions": 3, "configurable": 0.4}
MANY = list(SyntheticPrograms(**SIX))
BLOCK = 16  # nodes: graphs are cut into ranges first


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepare `MANY` in a process that is killed when it has written four of them; returns what it leaves."""
    root = tmp_path_factory.mktemp("killed")
    program = f"""
        import os, signal
        from pathlib import Path
        from gst.data.synthetic import SyntheticPrograms
        from gst.graphs.store import prepare
        written = []
        def progress(name):
            written.append(name)
            if len(written) == 4:
                os.kill(os.getpid(), signal.SIGKILL)
        prepare(list(SyntheticPrograms(**{SIX})), Path({str(root)!r}), 7, block_nodes={BLOCK}, progress=progress)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not stores(root)
    (partial,) = root.glob(".partial-*")
    return partial


@pytest.fixture
def partitioned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of nodes of each graph that is partitioned from now on."""
    seen: list[int] = []

    def noted(edges: np.ndarray, num_nodes: int, num_parts: int, **options: Any) -> np.ndarray:
        seen.append(num_nodes)
        return partition(edges, num_nodes, num_parts, **options)

    monkeypatch.setattr(gst.graphs.preparation, "partition", noted)
    return seen


def test_data_of_nodes_and_edges_goes_on_behind_a_graph_that_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = [random_graph(90), *(random_graph(seed, data=True, num_edges=seed) for seed in range(91, 95))]
    truth = contents(prepare(graphs, tmp_path / "at once", 7, workers=1))
    finish, finished = ArrayWriter.finish, []

    def interrupted(writer: ArrayWriter, record: dict) -> None:
        finish(writer, record)
        finished.append(record)
        if len(finished) == 3:
            writer.write(iter([(name, np.zeros(5)) for name in record["arrays"]]))  # half of the next one
            raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(ArrayWriter, "finish", interrupted)
        prepare(graphs, tmp_path / "root", 7, workers=1)
    assert contents(prepare(graphs, tmp_path / "root", 7, workers=1)) == truth


def test_a_killed_preparation_is_resumed_and_nothing_half_written_is_kept(
    tmp_path: Path, killed: Path, partitioned: list[int]
) -> None:
    truth, left = contents(prepare(MANY, tmp_path / "at once", 7, block_nodes=BLOCK, workers=1)), contents(killed)
    damages: list[tuple[dict[str, bytes], int]] = [({}, 0)]
    for name in ("config_ptr.bin", "journal.jsonl"):
        damages += [({name: left[name] + b"half a gra"}, 0), ({name: left[name][:-9]}, 1)]
    for damage, lost in damages:
        root = tmp_path / "root"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(killed, root / killed.name)
        for file, content in damage.items():
            (root / killed.name / file).write_bytes(content)
        partitioned.clear()
        done: list[str] = []
        store = prepare(MANY, root, 7, block_nodes=BLOCK, progress=done.append, workers=1)
        assert contents(store) == truth and done == [graph.name for graph in MANY]
        assert sum(partitioned) == sum(graph.num_nodes for graph in MANY[4 - lost :])
        assert not leftovers(root)


@pytest.mark.parametrize("wrap", [list, lambda graphs: Source(graphs, "dated")])
def test_graphs_that_changed_meanwhile_are_written_again(
    tmp_path: Path, partitioned: list[int], wrap: Callable
) -> None:
    changed = [*MANY[:2], replace(MANY[2], targets=MANY[2].targets + 1), *MANY[3:5]]

    def stop(name: str) -> None:
        if name == MANY[4].name:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(wrap(MANY), tmp_path, 7, progress=stop, workers=1)
    partitioned.clear()
    store = prepare(wrap(changed), tmp_path, 7, workers=1)
    assert partitioned == [graph.num_nodes for graph in changed[2:]]
    assert contents(store) == contents(prepare(changed, tmp_path / "at once", 7))
