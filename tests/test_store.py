from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from reference import random_graph

from gst.graph import Graph
from gst.segments import segment
from gst.store import open_store, prepare, verify

GRAPHS = [random_graph(seed, 10 + 20 * seed, num_configurable=4 * seed) for seed in range(3)]


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("halo", [0, 1])
@pytest.mark.parametrize("dtype", [np.int8, np.float32])
def test_what_is_read_is_what_was_cut_bit_for_bit(tmp_path: Path, dtype: type, halo: int) -> None:
    graphs = [replace(graph, config_features=graph.config_features.astype(dtype)) for graph in GRAPHS]
    read = open_store(prepare(iter(graphs), tmp_path, max_nodes=8, halo=halo, seed=3))
    for graph, cut in zip(graphs, read, strict=True):
        truth = segment(graph, max_nodes=8, halo=halo, seed=3)
        assert (cut.name, cut.num_nodes, cut.edge_cut) == (truth.name, truth.num_nodes, truth.edge_cut)
        for field in fields(truth)[3:]:
            ours, theirs = getattr(cut, field.name), getattr(truth, field.name)
            assert (ours.dtype, ours.shape, ours.tobytes()) == (
                theirs.dtype,
                theirs.shape,
                theirs.tobytes(),
            ), field.name


def test_arrays_are_mapped_and_read_only(tmp_path: Path) -> None:
    (graph,) = open_store(prepare(GRAPHS[1:2], tmp_path, max_nodes=8))
    assert isinstance(graph.node_features, np.memmap) and isinstance(graph.node_features.base, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        graph.node_features[0] = 1


def test_a_second_preparation_does_nothing(tmp_path: Path) -> None:
    names: list[str] = []
    store = prepare(GRAPHS, tmp_path, max_nodes=8, progress=names.append)
    assert names == [graph.name for graph in GRAPHS]
    before = {path: path.stat().st_mtime_ns for path in [tmp_path, *tmp_path.rglob("*")]}
    assert prepare(iter(GRAPHS), tmp_path, max_nodes=8, progress=names.append) == store
    assert {path: path.stat().st_mtime_ns for path in [tmp_path, *tmp_path.rglob("*")]} == before and len(
        names
    ) == 3


def test_other_graphs_or_settings_make_another_store(tmp_path: Path) -> None:
    settings = [{}, {"max_nodes": 8}, {"method": "contiguous"}, {"halo": 1}, {"seed": 1}]
    changed = [replace(GRAPHS[0], targets=GRAPHS[0].targets + 1), *GRAPHS[1:]]
    renamed = [replace(GRAPHS[0], name="other"), *GRAPHS[1:]]
    stores = [prepare(GRAPHS, tmp_path, **arguments) for arguments in settings]
    stores += [prepare(graphs, tmp_path) for graphs in (changed, renamed, GRAPHS[:2], GRAPHS[::-1])]
    assert len(set(stores)) == len(stores) == len(list(tmp_path.iterdir()))
    for store in stores:
        verify(store)


@pytest.mark.parametrize(
    ("graphs", "problem"), [([], "no graphs"), ([GRAPHS[0], GRAPHS[0]], "two graphs are named")]
)
def test_datasets_without_graphs_or_with_twins_are_refused(
    tmp_path: Path, graphs: list[Graph], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        prepare(graphs, tmp_path)
    assert not list(tmp_path.iterdir())


# Damage --------------------------------------------------------------------------------------------


def change_meta(**changes: object) -> Callable[[Path], None]:
    def change(store: Path) -> None:
        meta = json.loads((store / "meta.json").read_text())
        (store / "meta.json").write_text(json.dumps(meta | changes))

    return change


def change_array(**changes: object) -> Callable[[Path], None]:
    def change(store: Path) -> None:
        meta = json.loads((store / "meta.json").read_text())
        meta["graphs"][0]["arrays"]["node_features"] |= changes
        (store / "meta.json").write_text(json.dumps(meta))

    return change


@pytest.mark.parametrize(
    "damage",
    [
        lambda store: os.truncate(store / "arrays.bin", 500),
        lambda store: os.truncate(store / "arrays.bin", 0),
        lambda store: (store / "arrays.bin").unlink(),
        lambda store: (store / "meta.json").unlink(),
        lambda store: os.truncate(store / "meta.json", 100),
        lambda store: (store / "meta.json").write_bytes(b"\xff\xfe\x00 not text"),
        lambda store: (store / "meta.json").write_text("[]"),
        change_meta(schema=0),
        change_meta(graphs=[{}]),
        change_meta(graphs=None),
        change_array(offset=10**9),
        change_array(offset=-64),
        change_array(shape=[3, 7, 11]),
        change_array(shape="wide"),
        change_array(dtype="|O"),
        change_array(dtype="nonsense"),
    ],
)
def test_a_damaged_store_is_refused_by_name(
    tmp_path: Path, damage: Callable[[Path], None], unchecked: None
) -> None:
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


def test_verify_notices_any_flipped_byte_of_an_array(tmp_path: Path) -> None:
    store = prepare(GRAPHS, tmp_path, max_nodes=8)
    verify(store)
    entries = [
        entry
        for graph in json.loads((store / "meta.json").read_text())["graphs"]
        for entry in graph["arrays"].values()
    ]
    data = bytearray((store / "arrays.bin").read_bytes())
    for entry in entries:
        if not np.prod(entry["shape"]):
            continue
        data[entry["offset"]] ^= 1
        (store / "arrays.bin").write_bytes(data)
        with pytest.raises(ValueError, match="checksums differ"):
            verify(store)
        data[entry["offset"]] ^= 1


# Failure -------------------------------------------------------------------------------------------


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """Python ignores SIGXFSZ, so a longer write is an OSError."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("num_bytes", [0, 3000])
def test_a_write_that_fails_midway_leaves_nothing_behind(tmp_path: Path, num_bytes: int) -> None:
    prepare(GRAPHS[:1], tmp_path)
    before = contents(tmp_path)
    with pytest.raises(OSError), largest_file(num_bytes):
        prepare(GRAPHS, tmp_path, max_nodes=8)
    assert contents(tmp_path) == before and len(list(tmp_path.iterdir())) == 1
    verify(prepare(GRAPHS, tmp_path, max_nodes=8))


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no small disk to fill: {mounted.stderr.strip()}")
    try:
        prepare(GRAPHS[:1], tmp_path)
        before = contents(tmp_path)
        with pytest.raises(OSError) as failure:
            prepare([random_graph(0, 3000)], tmp_path)
        assert failure.value.errno == errno.ENOSPC
        assert contents(tmp_path) == before and len(list(tmp_path.iterdir())) == 1
    finally:
        subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.parametrize(
    "failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=repr
)
@pytest.mark.parametrize("moment", ["between graphs", "at the very end"])
def test_an_interruption_leaves_nothing_behind(
    tmp_path: Path, failure: BaseException, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise failure

    if moment == "at the very end":
        monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(type(failure)):
        prepare(GRAPHS, tmp_path, progress=fail if moment == "between graphs" else lambda name: None)
    assert not list(tmp_path.iterdir())


def test_whoever_comes_second_takes_what_the_first_made(tmp_path: Path) -> None:
    """Another process finishes the same store while this one is still writing."""
    others: list[Path] = []
    store = prepare(
        GRAPHS,
        tmp_path,
        progress=lambda name: others.append(prepare(GRAPHS, tmp_path)) if not others else None,
    )
    assert others == [store] and list(tmp_path.iterdir()) == [store]
    verify(store)
