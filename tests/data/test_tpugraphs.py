"""TpuGraphs files read as published, damaged files refused, and fingerprints of files."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference import merged

from gst.data import tpugraphs
from gst.data.source import fingerprint_of_files
from gst.data.tpugraphs import read
from gst.graphs.graph import Graph
from tests.files import FIXTURES, SHARED

LAYOUT = FIXTURES / "alexnet_small.npz"
TILE = FIXTURES / "tile" / "fusion.261_f758aa847a9184c5.npz"


def raw(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as archive:
        return {key: archive[key] for key in archive.files}


def written(tmp_path: Path, source: Path, **changes: Any) -> Path:
    """The file with arrays changed by functions; None leaves one out."""
    arrays = raw(source)
    for key, change in changes.items():
        array = arrays.pop(key)
        if change is not None:
            arrays[key] = change(array)
    np.savez(tmp_path / "changed.npz", **arrays)
    return tmp_path / "changed.npz"


def put(value: Any, dtype: Any = None) -> Any:
    """The array with its second number changed."""

    def change(array: np.ndarray) -> np.ndarray:
        array = array.astype(dtype or array.dtype)
        array.flat[1] = value
        return array

    return change


def assert_merged(graph: Graph, unmerged: Graph) -> None:
    truth = merged(unmerged.config_features, unmerged.targets)
    assert [row.tobytes() for row in graph.config_features] == [row for row, *_ in truth]
    for ours, theirs in zip(
        (graph.targets, graph.counts, graph.spreads), list(zip(*truth, strict=True))[1:], strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-6)


# What genuine files hold ---------------------------------------------------------------------------


def test_alexnet_is_read_as_measured(alexnet: Path) -> None:
    graph, arrays = read(alexnet), raw(alexnet)
    assert (graph.num_nodes, graph.num_edges, len(graph.config_nodes)) == (372, 597, 26)
    assert graph.name == alexnet.stem and graph.config_features.dtype == np.int8
    assert (graph.edges[0] < graph.edges[1]).all(), "producers come first"
    assert (graph.node_features == arrays["node_feat"]).all() and (graph.opcodes == arrays["node_opcode"]).all()
    assert graph.counts.sum() == len(arrays["config_runtime"]) and graph.num_configs < graph.counts.sum()
    assert_merged(graph, read(alexnet, merge=False))


def test_rows_keep_their_order_where_they_are_not_merged(alexnet: Path) -> None:
    graph, arrays = read(alexnet, merge=False), raw(alexnet)
    assert graph.targets.astype(np.int64).tolist() == arrays["config_runtime"].tolist()
    assert (graph.config_features == arrays["node_config_feat"]).all()
    assert (graph.counts == 1).all() and (graph.spreads == 0).all()


@pytest.mark.skipif(not SHARED.exists(), reason="the whole files lie in shared/data, which is not here")
def test_whole_files_hold_what_their_description_says(alexnet: Path) -> None:
    every = read(alexnet, merge=False)
    assert every.num_configs == 38_134 and read(alexnet).num_configs < every.num_configs
    unet = read(SHARED / "layout/xla/default/valid/unet_3d.npz")
    assert (unet.num_nodes, unet.num_edges, len(unet.config_nodes)) == (3163, 5112, 62)
    assert unet.node_features.shape[1] == 140 and unet.config_features.shape[2] == 18 and unet.counts.sum() == 112
    assert (unet.edges[0] < unet.edges[1]).all()


def test_tile_targets_are_ratios_and_configurations_belong_to_the_root_of_the_kernel(tile_kernels: list[Path]) -> None:
    """Nested computations (a reducer, say) have roots too; that of the kernel itself feeds nobody."""
    assert tile_kernels
    for path in tile_kernels:
        graph, arrays = read(path, merge=False), raw(path)
        np.testing.assert_allclose(
            graph.targets, arrays["config_runtime"] / arrays["config_runtime_normalizers"], rtol=1e-15
        )
        assert (graph.config_features[:, 0] == arrays["config_feat"]).all()
        assert (graph.edges[0] < graph.edges[1]).all()
        (root,) = graph.config_nodes
        assert graph.node_features[root, 0] == 1 and root not in graph.edges[0], path.name
        assert_merged(read(path), graph)


def test_equal_configurations_are_one_even_without_configurable_nodes(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        LAYOUT,
        node_config_ids=lambda a: a[:0],
        node_config_feat=lambda a: a[:4, :0],
        config_runtime=lambda a: a[:4],
    )
    assert read(path).counts.tolist() == [4]


def test_integers_beyond_float32_survive(tmp_path: Path) -> None:
    runtime = 2**53 - 1
    graph = read(written(tmp_path, LAYOUT, config_runtime=put(runtime)), merge=False)
    assert int(graph.targets[1]) == runtime


# Damage --------------------------------------------------------------------------------------------

NAN = float("nan")


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize(
    ("source", "changes", "problem"),
    [
        *((LAYOUT, {key: None}, key) for key in sorted(tpugraphs.LAYOUT - {"node_splits"})),
        *((TILE, {key: None}, key) for key in sorted(tpugraphs.TILE - {"node_splits"})),
        (LAYOUT, {"edge_index": put(372)}, "edges"),
        (LAYOUT, {"edge_index": put(-1)}, "edges"),
        (LAYOUT, {"edge_index": lambda a: a.T}, "edge_index"),
        (LAYOUT, {"edge_index": lambda a: a.ravel()}, "edge_index"),
        (LAYOUT, {"edge_index": lambda a: a.astype(np.float64)}, "edge_index"),
        (LAYOUT, {"node_feat": put(NAN)}, "node_feat"),
        (LAYOUT, {"node_feat": put(1e300, np.float64)}, "node_feat"),
        (LAYOUT, {"node_feat": lambda a: a[:0], "node_opcode": lambda a: a[:0]}, "no nodes"),
        (LAYOUT, {"node_feat": lambda a: a[0]}, "node_feat"),
        (LAYOUT, {"node_feat": lambda a: a.astype(object)}, "pickle"),
        (LAYOUT, {"node_feat": lambda a: a.astype(str)}, "node_feat"),
        (LAYOUT, {"node_opcode": lambda a: a[:-1]}, "opcode"),
        (LAYOUT, {"node_config_ids": put(372)}, "config"),
        (LAYOUT, {"node_config_ids": lambda a: a[:-1]}, "config"),
        (LAYOUT, {"node_config_feat": put(NAN)}, "config"),
        (LAYOUT, {"node_config_feat": lambda a: a[:0], "config_runtime": lambda a: a[:0]}, "no configurations"),
        (LAYOUT, {"config_runtime": put(-5)}, "-5"),
        (LAYOUT, {"config_runtime": put(2**64 - 1, np.uint64)}, "overflow"),
        (LAYOUT, {"config_runtime": lambda a: a / 2}, "integers"),
        (LAYOUT, {"config_runtime": lambda a: a[:-1]}, "config_runtime"),
        (TILE, {"config_runtime_normalizers": put(0)}, "normaliser"),
        (TILE, {"config_feat": put(NAN)}, "config"),
        (TILE, {"config_runtime": lambda a: a[:, None]}, "config_runtime"),
        (TILE, dict.fromkeys(("node_feat", "node_opcode", "edge_index"), lambda a: a[:0]), "no nodes"),
    ],
)
def test_damaged_arrays_are_refused_by_file_and_name(
    tmp_path: Path, source: Path, changes: dict[str, Any], problem: str, unchecked: None
) -> None:
    assert_refused(written(tmp_path, source, **changes), problem)


def assert_refused(path: Path, problem: str = "") -> None:
    with pytest.raises(ValueError) as refusal:
        read(path)
    assert str(path) in str(refusal.value) and problem in str(refusal.value) and "\n" not in str(refusal.value)


def make_npy(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


NO_NPZ = {
    "absent": lambda path: None,
    "a folder": lambda path: path.mkdir(),
    "empty": lambda path: path.touch(),
    "a page": lambda path: path.write_text("<html>404</html>"),
    "cut short": lambda path: path.write_bytes(LAYOUT.read_bytes()[:20_000]),
    "an npy": make_npy,
    "no array inside": lambda path: zipfile.ZipFile(path, "w").writestr("node_feat.npy", b"no array"),
    "text inside": lambda path: zipfile.ZipFile(path, "w").writestr("readme.txt", b"no array"),
    "an empty zip": lambda path: zipfile.ZipFile(path, "w").close(),
}


@pytest.mark.parametrize("kind", NO_NPZ)
def test_what_is_no_npz_file_is_refused_by_name(tmp_path: Path, kind: str, unchecked: None) -> None:
    NO_NPZ[kind](tmp_path / "graph.npz")
    assert_refused(tmp_path / "graph.npz")


def test_tile_configurations_beyond_int8_are_kept_wherever_they_stand(tmp_path: Path) -> None:
    """Many more than are looked at at once; the last one decides."""
    features = np.zeros((3200, 24), np.float32)
    runtimes = {key: lambda a: np.tile(a, 200) for key in ("config_runtime", "config_runtime_normalizers")}
    for value, dtype in ((127.0, np.int8), (-128.0, np.int8), (128.0, np.float32), (0.5, np.float32)):
        features[-1, 3] = value
        graph = read(written(tmp_path, TILE, config_feat=lambda _: features, **runtimes), merge=False)
        assert graph.config_features.dtype == dtype and (graph.config_features[:, 0] == features).all()
    features[-1, 3] = NAN
    features[0, 3] = 1000
    assert_refused(written(tmp_path, TILE, config_feat=lambda _: features, **runtimes), "NaN")


# Fingerprints ------------------------------------------------------------------------------------


def test_a_change_of_any_file_or_of_the_reader_is_told(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one", "two")]
    for file in files:
        file.write_text("graph")
        os.utime(file, ns=(0, 0))
    prints = [fingerprint_of_files(files, "reader 1")]
    assert fingerprint_of_files(files, "reader 1") == prints[0]
    prints.append(fingerprint_of_files(files, "reader 2"))
    prints += [fingerprint_of_files(some, "reader 1") for some in (files[:1], files[::-1])]
    os.utime(files[1], ns=(0, 1))
    prints.append(fingerprint_of_files(files, "reader 1"))
    files[1].write_text("longer graph")
    os.utime(files[1], ns=(0, 1))
    prints.append(fingerprint_of_files(files, "reader 1"))
    assert len(set(prints)) == len(prints)
