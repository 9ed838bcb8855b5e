"""Reader of GraphNet sources: damaged and incomplete samples are named. `module_of` is tested with the benchmark."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from experiments.reproductions.graphnet.reader import FxSource, parse_weights, read_sources
from tests.files import FIXTURES

FIXTURE = FIXTURES / "graphnet"


def test_a_weight_without_a_shape_is_named() -> None:
    with pytest.raises(ValueError, match=r"broken/weight_meta.py, line 1: want a name, a shape"):
        parse_weights('class A:\n    name = "x"\n    dtype = "torch.float32"\n', "broken")


def test_a_source_that_is_no_python_is_named() -> None:
    with pytest.raises(ValueError, match=r"small/model.py: .*want Python source"):
        _ = FxSource("small", "def (", "").forward


def test_an_archive_reads_as_its_folder(tmp_path: Path) -> None:
    (source,) = read_sources(FIXTURE)
    assert source.forward.name == "forward" and source.inputs
    path = tmp_path / "some.tar.xz"
    with tarfile.open(path, "w:xz") as archive:
        archive.add(FIXTURE, "samples")
    assert read_sources(path) == [source]
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"some\.tar\.xz"):
        read_sources(path)


def test_a_sample_without_weights_is_named(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "model.py").write_text("")
    with pytest.raises(ValueError, match=r"one has no weight_meta\.py"):
        read_sources(tmp_path)
