from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gst.cli import main
from gst.data.tpugraphs import TpuGraphs, read, write_npz
from gst.graphs.graph import Graph
from gst.util.addresses import Address, details, matches, place, read_ranges, upload, write_object
from gst.util.copies import local_copy


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("text", "local"),
    [("a/b", "a/b"), ("/a", "/a"), ("file:///a/b", "/a/b"), ("a:b", "a:b"),
     ("./s3:/b", "s3:/b"), ("a/s3://b", "a/s3:/b")],
)  # fmt: skip
def test_local_paths_stay_local(text: str, local: str) -> None:
    assert place(text) == Path(local) and not isinstance(place(text), Address)


def test_an_address_survives_a_path() -> None:
    assert place(Path("s3://bucket/a")) == place("s3://bucket/a/") == "s3://bucket/a"
    assert place("s3://bucket/a.npz").parent / "b" == "s3://bucket/b"


REFUSED = {
    "nothing://x": "no file system of fsspec is called nothing", "gs://bucket/x": "pip install gcsfs",
    "simplecache::s3://b": "chains", "ftp://me:secret@host/x": "password", "file://host/x": "file:///host/x",
}  # fmt: skip


@pytest.mark.parametrize(
    ("command", "address"),
    [
        *(("prepare synthetic:50 --store ADDRESS", address) for address in REFUSED),
        ("prepare ADDRESS/*.npz", "nothing://x"), ("rank ADDRESS synthetic:50", "gs://bucket/x"),
        ("test --ckpt_path ADDRESS", "file://host/x"),
    ],
)  # fmt: skip
def test_an_address_that_nothing_serves_is_refused_in_one_line(
    command: str, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command.replace("ADDRESS", address).split()) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and REFUSED[address] in said and "secret" not in said
    assert not [each for each in Path().iterdir() if ":" in each.name]


def test_results_are_written_to_local_folders(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "synthetic:50", "--json", "s3://bucket/result.json"]) == 2
    said = capsys.readouterr().err
    assert "local folder" in said and not Path("s3:").exists()


def test_objects_are_written_and_read(tmp_path: Path) -> None:
    folder = Address("memory://objects")
    (tmp_path / "file").write_bytes(bytes(range(100)))
    assert upload(tmp_path / "file", folder / "a/one").size == 100
    write_object(folder / "two", b"content")
    assert details(folder / "none") is None
    assert details(folder) is None  # no object but a folder
    assert read_ranges([(folder / "a/one", 10, 12), (folder / "two", 1, 3)]) == [bytes([10, 11]), b"on"]
    with pytest.raises(ValueError, match=r"memory://objects/two ends within bytes 3\.\.9; it was cut"):
        read_ranges([(folder / "a/one", 10, 12), (folder / "two", 3, 9)])
    assert matches(folder / "*/o*") == ["memory://objects/a/one"] == matches(folder / "**/one")
    assert local_copy(folder / "two").read_bytes() == b"content"
    write_object(folder / "two", b"changed")
    assert local_copy(folder / "two").read_bytes() == b"changed"
    with pytest.raises(ValueError, match="memory://objects/three: there is no such object"):
        local_copy(folder / "three")


def test_files_of_a_dataset_are_read_by_address(tmp_path: Path) -> None:
    for name in ("one", "two"):
        graph = Graph(np.ones((2, 1), np.float32), np.array([[0], [1]]), name=name)
        write_npz(graph, tmp_path / f"{name}.npz")
        upload(tmp_path / f"{name}.npz", Address(f"memory://files/{name}.npz"))
    source = TpuGraphs(["memory://files/*.npz"])
    assert [graph.digest() for graph in source] == [read(tmp_path / f"{name}.npz").digest() for name in ("one", "two")]
    assert [graph.name for graph in TpuGraphs(["memory://files/two.npz", str(tmp_path / "one.npz")])] == ["two", "one"]
    assert source.fingerprint() == ""  # memory:// has no tags
    with pytest.raises(ValueError, match=r"no file matches 'memory://files/none\*'"):
        list(TpuGraphs(["memory://files/none*"]))


@pytest.mark.slow
def test_a_local_command_imports_no_file_system() -> None:
    code = (
        "import sys; from gst.cli import main; assert main(['prepare', 'synthetic:50', '--store', 'stores']) == 0; "
        "print(sorted(each for each in sys.modules if each in ('fsspec', 's3fs', 'botocore', 'aiobotocore')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
