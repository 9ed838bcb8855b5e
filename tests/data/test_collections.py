from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gst.data import TpuGraphsCollection
from gst.data.collections import COLLECTIONS, PARTS, download_command, parts_below
from gst.data.tpugraphs import read, rows_of_file
from gst.graphs.store import open_store, prepare
from gst.util.arrays import PackedArray
from tests.files import FIXTURES

ALEXNET = FIXTURES / "alexnet_small.npz"
TILES = sorted((FIXTURES / "tile").glob("*.npz"))


def part_of(root: Path, collection: str, part: str, files: list[Path]) -> Path:
    folder = root / collection / part
    folder.mkdir(parents=True)
    for file in files:
        shutil.copy(file, folder)
    return folder


def changed(path: Path, **arrays: np.ndarray) -> Path:
    with np.load(path) as archive:
        kept = {key: archive[key] for key in archive.files}
    np.savez(path, **kept | arrays)
    return path


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    """Some of the archives, unpacked where they are told to go."""
    root = tmp_path / "data"
    part_of(root / "npz", "layout/xla/random", "train", [ALEXNET])
    valid = part_of(root / "npz", "layout/xla/random", "valid", [ALEXNET])
    shutil.copy(valid / ALEXNET.name, valid / "another.npz")
    part_of(root / "npz", "tile/xla", "train", TILES)
    for collection, file in (("layout/xla/random", ALEXNET), ("tile/xla", TILES[0])):
        folder = part_of(root / "npz", collection, "test", [file])
        configs = len(np.load(file)["config_runtime"])
        withheld = {"config_runtime": np.zeros(configs, np.int64)}
        if collection == "tile/xla":
            withheld["config_runtime_normalizers"] = np.ones(configs, np.int64)
        changed(folder / file.name, **withheld)
    return root


def test_parts_are_read_from_where_the_archives_unpack(unpacked: Path) -> None:
    for collection, part, names in (
        ("layout/xla/random", "train", [ALEXNET.stem]),
        ("layout/xla/random", "valid", [ALEXNET.stem, "another"]),
        ("tile/xla", "train", [path.stem for path in TILES]),
    ):
        for root in (unpacked, unpacked / "npz"):
            source = TpuGraphsCollection(str(root), collection, part)
            assert [graph.name for graph in source] == [path.stem for path in source.files] == names
    (graph,) = TpuGraphsCollection(str(unpacked), "layout/xla/random")
    assert graph.digest() == read(ALEXNET).digest()
    (graph,) = TpuGraphsCollection(str(unpacked), "layout/xla/random", merge=False)
    assert graph.digest() == read(ALEXNET, merge=False).digest()


def test_what_is_there_is_found(unpacked: Path) -> None:
    present = {"layout/xla/random/train": 1, "layout/xla/random/valid": 2, "layout/xla/random/test": 1}
    present |= {"tile/xla/train": len(TILES), "tile/xla/test": 1}
    assert {f"{each.collection}/{each.part}": len(each.files) for each in parts_below(str(unpacked))} == present
    assert [source.part for source in parts_below(str(unpacked), "tile/xla")] == ["train", "test"]
    assert parts_below(str(unpacked), "tile/xla", "test") == [TpuGraphsCollection(str(unpacked), "tile/xla", "test")]
    with pytest.raises(ValueError, match=r"part valid of tile/xla is not in .*curl.*npz_tile_xla_valid\.tar"):
        parts_below(str(unpacked), "tile/xla", "valid")
    with pytest.raises(ValueError, match="part train of layout/xla/random is not in"):
        parts_below(str(unpacked / "npz/tile"))
    with pytest.raises(ValueError, match="name it by its collection and part"):
        parts_below(str(unpacked), "layout/xla/random", eval_indices="xla_random.json")


# What is not there ---------------------------------------------------------------------------------


@pytest.mark.parametrize("collection", COLLECTIONS)
@pytest.mark.parametrize("part", PARTS)
def test_an_absent_part_is_named_with_its_download(tmp_path: Path, collection: str, part: Any) -> None:
    source = TpuGraphsCollection(str(tmp_path), collection, part)
    with pytest.raises(ValueError) as refusal:
        list(source)
    told = str(refusal.value)
    assert f"part {part} of {collection} is not in {tmp_path}" in told and "\n" not in told
    assert told.endswith(download_command(collection, part, str(tmp_path)))
    with pytest.raises(ValueError, match="is not in"):
        source.fingerprint()


def test_what_was_never_published_is_refused(unchecked: None) -> None:
    with pytest.raises(ValueError, match="no collection 'layout/tpu/random'; there are layout/xla/random, "):
        TpuGraphsCollection(".", "layout/tpu/random")
    with pytest.raises(ValueError, match="no part 'val' of tile/xla; there are train, valid, test"):
        TpuGraphsCollection(".", "tile/xla", "val")  # type: ignore[arg-type]


def test_a_download_unpacks_where_it_is_looked_for(
    unpacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command, run for real, with a curl that copies the archive; a download that fails unpacks nothing."""
    shutil.make_archive(str(tmp_path / "made"), "tar", unpacked, "npz/tile/xla/train")
    fake = tmp_path / "bin" / "curl"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\n[ -e {tmp_path}/made.tar ] && cp {tmp_path}/made.tar "$(basename "$3")"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    root = tmp_path / "down loads"
    assert subprocess.run(["sh", "-c", download_command("tile/xla", "train", str(root))]).returncode == 0
    assert len(list(TpuGraphsCollection(str(root), "tile/xla"))) == len(TILES)
    (tmp_path / "made.tar").unlink()
    assert subprocess.run(["sh", "-c", download_command("tile/xla", "valid", str(root))]).returncode != 0


# Damage --------------------------------------------------------------------------------------------


def test_other_widths_are_refused_by_file(unpacked: Path) -> None:
    folder = unpacked / "npz/layout/xla/random/valid"
    source = TpuGraphsCollection(str(unpacked), "layout/xla/random", "valid")
    features = np.load(ALEXNET)["node_config_feat"]
    changed(folder / "another.npz", node_config_feat=np.pad(features, ((0, 0), (0, 0), (0, 8)), constant_values=-1))
    with pytest.raises(ValueError, match=r"another\.npz has 18 configuration columns and alexnet_small\.npz 10"):
        list(source)
    shutil.copy(ALEXNET, folder / "another.npz")
    nodes = np.load(ALEXNET)["node_feat"]
    changed(folder / "another.npz", node_feat=np.pad(nodes, ((0, 0), (0, 70))))
    with pytest.raises(ValueError, match=r"another\.npz has 140 node feature columns and alexnet_small\.npz 70"):
        list(source)


# Published subsets ---------------------------------------------------------------------------------


def listed(tmp_path: Path, content: object) -> str:
    path = tmp_path / "xla_random.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_listed_configurations_are_taken_as_they_stand_in_the_file(unpacked: Path, tmp_path: Path) -> None:
    """One published list names 481 rows 1000 times: a row named again is scored again, but was measured once."""
    rows = [40, 7, 1499, 7, 7, 40, 0]
    indices = listed(tmp_path, {ALEXNET.stem: rows, "another": [3, 2, 1], "in no file": [5]})
    every, same = read(ALEXNET, merge=False), {"collection": "layout/xla/random", "part": "valid"}
    graphs = list(TpuGraphsCollection(str(unpacked), **same, eval_indices=indices, merge=False))
    assert graphs[0].targets.tolist() == every.targets[rows].tolist()
    assert (graphs[0].config_features == every.config_features[rows]).all()
    assert graphs[1].targets.tolist() == every.targets[[3, 2, 1]].tolist()
    merged = next(iter(TpuGraphsCollection(str(unpacked), **same, eval_indices=indices)))
    assert merged.counts.sum() == len(set(rows)) and merged.num_configs <= 4


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"another": [1]}, f"lists no configurations of {ALEXNET.stem}"),
        ({ALEXNET.stem: [1], "another": [0, 1500]}, r"another\.npz: configuration 1500 is asked for"),
        ({ALEXNET.stem: [-1], "another": [1]}, f"{ALEXNET.stem} has no list of places"),
        ({ALEXNET.stem: [1.5], "another": [1]}, "no list of places"),
        ({ALEXNET.stem: [], "another": [1]}, "no list of places"),
        ({ALEXNET.stem: 3, "another": [1]}, "no list of places"),
        ([1, 2], "holds no object"),
        ("{", "cannot be read"),
    ],
)
def test_lists_that_do_not_fit_are_refused(unpacked: Path, tmp_path: Path, content: object, problem: str) -> None:
    source = TpuGraphsCollection(str(unpacked), "layout/xla/random", "valid", listed(tmp_path, content))
    with pytest.raises(ValueError, match=problem) as refusal:
        list(source)
    assert "\n" not in str(refusal.value)


# Stores --------------------------------------------------------------------------------------------


def test_a_prepared_part_is_not_read_again_until_something_changes(
    unpacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Path] = []

    def counted(path: Path, *arguments: Any) -> Any:
        reads.append(path)
        return read(path, *arguments)

    monkeypatch.setattr("gst.data.collections.read", counted)
    indices = listed(tmp_path, {ALEXNET.stem: [1, 2], "another": [3]})
    same = (str(unpacked), "layout/xla/random", "valid")

    def made(**options: Any) -> Path:
        return prepare(TpuGraphsCollection(*same, **options), tmp_path / "stores")

    store = made()
    assert len(reads) == 2 and made() == store and len(reads) == 2
    others = {made(merge=False), made(eval_indices=indices)}
    assert len(reads) == 6 and len(others | {store}) == 3
    assert made(eval_indices=indices) in others and len(reads) == 6
    os.utime(indices, ns=(0, 1))
    assert made(eval_indices=indices) in others and len(reads) == 8
    os.utime(unpacked / "npz/layout/xla/random/valid/another.npz", ns=(0, 1))
    assert made() == store and len(reads) == 10
    with pytest.raises(ValueError, match="no such file"):
        made(eval_indices=str(tmp_path / "absent.json"))


def test_stored_layouts_are_packed_and_tiles_are_not(unpacked: Path, tmp_path: Path) -> None:
    (layout,) = open_store(prepare(TpuGraphsCollection(str(unpacked), "layout/xla/random"), tmp_path))
    assert isinstance(layout.config_features, PackedArray)
    assert layout.config_features.nbytes == 4 * layout.num_configs * 26  # ten columns of three bits
    tiles = open_store(prepare(TpuGraphsCollection(str(unpacked), "tile/xla"), tmp_path))
    assert all(isinstance(cut.config_features, np.ndarray) for cut in tiles)


def test_arrays_without_a_place_in_a_graph_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays = dict(np.load(ALEXNET))
    np.savez(tmp_path / "more.npz", **arrays, edge_feat=np.ones((3, 2)), train_mask=np.ones(7))
    assert read(tmp_path / "more.npz").num_nodes == 372
    said = capsys.readouterr().err
    assert "more.npz has arrays that a graph has no place for, which are left out: 'edge_feat', 'train_mask'" in said
    read(ALEXNET)
    assert capsys.readouterr().err == ""


def test_rows_of_a_file_are_those_behind_the_merged_configurations(tmp_path: Path) -> None:
    """With a list of rows, which names one twice, and without one."""
    arrays = dict(np.load(ALEXNET))
    chosen = [3, 5, 3, 3, 8, 5]
    runtimes = np.array([10, 20, 30, 0, 50, 60])
    changed = {"node_config_feat": arrays["node_config_feat"][chosen], "config_runtime": runtimes}
    np.savez(tmp_path / "few.npz", **arrays | changed)
    numbers, config, targets = rows_of_file(tmp_path / "few.npz")
    assert numbers.tolist() == [0, 1, 2, 3, 4, 5] and config.tolist() == [0, 1, 0, 0, 2, 1]
    np.testing.assert_array_equal(targets, [10, 20, 30, np.nan, 50, 60])
    numbers, config, _ = rows_of_file(tmp_path / "few.npz", rows=[4, 2, 4, 0])
    assert numbers.tolist() == [4, 2, 0] and config.tolist() == [0, 1, 1]
    numbers, config, _ = rows_of_file(tmp_path / "few.npz", merge=False, rows=[4, 2, 4])
    assert numbers.tolist() == [4, 2, 4] and config.tolist() == [0, 1, 2]
