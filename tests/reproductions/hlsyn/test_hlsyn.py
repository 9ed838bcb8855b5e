"""HLSyn: what the files say is what graphs, loops and outcomes hold, and damaged files are named."""

from __future__ import annotations

import json
import math
import tarfile
from collections.abc import Callable
from pathlib import Path

import hlsyn_made
import numpy as np
import pytest

from experiments.reproductions.hlsyn.source import HlSyn, canonical, parse_kernel, read_kernels
from experiments.reproductions.hlsyn.source.pragmas import Setting
from gst.cli import main
from tests.files import ROOT

REAL = ROOT.parent / "shared" / "data" / "hlsyn.tar.xz"


def test_a_folder_and_an_archive_say_the_same(tmp_path: Path) -> None:
    folder = hlsyn_made.write(tmp_path / "folder")
    with tarfile.open(tmp_path / "made.tar.xz", "w:xz") as archive:
        archive.add(folder / "data", "data")
    one, other = read_kernels(folder), read_kernels(tmp_path / "made.tar.xz")
    assert [kernel.label for kernel in one] == ["v18/rows", "v20/rows"] == [kernel.label for kernel in other]
    assert [repr(kernel.designs) for kernel in one] == [
        repr(kernel.designs) for kernel in other
    ]  # NaN differs from NaN


def test_outcomes_are_kept_apart(tmp_path: Path) -> None:
    (kernel,) = read_kernels(hlsyn_made.write(tmp_path, ("v20",)))
    *_, failed, refused = kernel.designs
    assert len(kernel.designs) == 38 and math.isnan(failed.cycles) and not failed.is_valid
    assert refused.cycles == 9 and not refused.is_valid and refused.resources == (0.0, 0.1, 0.2, 0.3)


def test_the_graph_of_a_kernel_has_its_pragmas_as_configurations(tmp_path: Path) -> None:
    folder = hlsyn_made.write(tmp_path)
    graphs = list(HlSyn(str(folder)))
    assert [graph.name for graph in graphs] == ["v18/rows", "v20/rows"]
    graph = graphs[0]
    assert (graph.num_nodes, graph.num_edges, graph.num_configs) == (7, 6, 38)
    assert graph.config_nodes.tolist() == [5, 6, 4]  # PARA L0, PARA L1, PIPE L0
    assert graph.config_features[5].tolist() == [[0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]]  # factors 1, 2 and flatten
    assert graph.targets[0] == math.log2(4000) and np.isnan(graph.targets[-2])
    assert graph.edge_data["flow"].tolist() == [2, 1, 1, 3, 3, 3]
    valid = next(iter(HlSyn(str(folder), target="valid"))).targets
    assert valid.tolist() == [1.0] * 36 + [0.0, 0.0]
    assert next(iter(HlSyn(str(folder), target="LUT"))).targets[0] == 0.2


def test_prepare_writes_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = hlsyn_made.write(tmp_path / "data")
    command = ["prepare", "experiments.reproductions.hlsyn.source:HlSyn", "--store", str(tmp_path / "stores")]
    assert main([*command, "--arg", f"path={folder}", "--arg", "tool=v20", "--arg", "target=DSP"]) == 0
    assert "1 graph" in capsys.readouterr().out
    assert main(command) == 2
    assert "required: path; give --arg NAME=VALUE for path, tool, target" in capsys.readouterr().err


def test_settings_that_the_tool_treats_alike_are_one() -> None:
    kernel = parse_kernel(hlsyn_made.SOURCE)

    def of(outer: int, inner: int, mode: str) -> dict[str, Setting]:
        return canonical(kernel, {"__PARA__L0": outer, "__PARA__L1": inner, "__PIPE__L0": mode})

    assert of(1, 4, "") == of(1, 1, "flatten") == of(1, 2, "flatten")  # nothing is left inside
    assert of(1, 2, "") == of(1, 2, "off") != of(1, 2, "flatten")
    assert of(8, 4, "off") == of(8, 2, "flatten")  # nothing is left at all
    assert not of(8, 2, "off")["i#1"].is_unrolled  # copies of a loop that remains inside
    assert len({tuple(of(outer, 1, "off").values()) for outer in (1, 2, 4, 8)}) == 4


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ({"__PARA__L7": 1}, "is no pragma of kernel_rows"),
        ({"__PARA__L0": 0}, "want a whole number from 1"),
        ({"__PIPE__L0": "on"}, "want '', 'off' or 'flatten'"),
    ],
)
def test_impossible_pragmas_are_refused(point: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        canonical(parse_kernel(hlsyn_made.SOURCE), point)


def test_loops_have_trip_counts_nesting_and_reductions() -> None:
    outer, inner = parse_kernel(hlsyn_made.SOURCE).loops()
    assert (outer.trip_count, inner.trip_count) == (8, 4) and inner in outer.body
    assert (outer.place, inner.place, inner.reduction) == ("L0", "L1", "s")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no function"),
        ("void f(double a[4]) { for (int i = 0; i < 4; i++) { a[i] = 0;", "line 1: got the end of the source"),
        ("void f(double a[4]) { a[0] = `; }", "is no C token"),
        ("void f(double a[n]) { }", "is no constant"),
    ],
)
def test_damaged_sources_are_refused_by_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_kernel(text)


def _cut_off(folder: Path) -> Path:
    with tarfile.open(folder / "made.tar.xz", "w:xz") as archive:
        archive.add(folder / "data", "data")
    path = folder / "made.tar.xz"
    path.write_bytes(path.read_bytes()[:-200])
    return path


def _changed(name: str, before: str, after: str) -> Callable[[Path], Path]:
    def change(folder: Path) -> Path:
        path = folder / "data" / name
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after, 1))
        return folder

    return change


def _removed(name: str) -> Callable[[Path], Path]:
    def change(folder: Path) -> Path:
        (folder / "data" / name).unlink()
        return folder

    return change


GEXF, JSON = "graphs/rows_processed_result.gexf", "designs/v20/rows.json"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_cut_off, "not a readable archive"),
        (lambda folder: folder / "nothing", "there is no such file"),
        (_removed("sources/rows_kernel.c"), "lacks sources/rows_kernel.c"),
        (_changed(GEXF, "<gexf", "<!DOCTYPE a [<!ENTITY b 'c'>]><gexf"), "declares a document type"),
        (_changed(GEXF, 'target="2"', 'target="99"'), "which are not both nodes"),
        (_changed(GEXF, "</nodes>", ""), "mismatched tag"),
        (_changed(GEXF, 'for="5" value="2"', 'for="5" value="7"'), "flow of an edge is outside 0..3"),
        (_changed(JSON, '"perf": 4000.0', '"perf": "fast"'), "design '0': perf and res_util"),
        (_changed(JSON, '"__PARA__L1": 1', '"__PARA__L9": 1'), "its source has no pragma"),
        (_changed(JSON, '"__PIPE__L0": "off"', '"__PIPE__L0": "on"'), "want a factor"),
        (_changed(JSON, "{", "[", ), "not JSON"),
    ],
)  # fmt: skip
def test_damaged_files_are_named_in_one_line(damage: Callable[[Path], Path], message: str, tmp_path: Path) -> None:
    path = damage(hlsyn_made.write(tmp_path, ("v20",)))
    with pytest.raises(ValueError, match=message) as refusal:
        read_kernels(path)
    assert str(tmp_path) in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = hlsyn_made.write(tmp_path / "data set", ("v20",))
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps({}))
    (folder / "data" / "designs" / "v20" / "other.json").symlink_to(secret)
    with pytest.raises(ValueError, match="leads out of"):
        read_kernels(folder)


@pytest.mark.skipif(not REAL.exists(), reason="needs ../shared/data/hlsyn.tar.xz")
def test_the_published_dataset() -> None:
    kernels = read_kernels(REAL, ["v20"])
    valid = [design for kernel in kernels for design in kernel.designs if design.is_valid]
    assert len(kernels) == 23
    assert all(kernel.graph is not None for kernel in kernels) and min(design.cycles for design in valid) > 0
