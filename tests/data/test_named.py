"""Datasets by the names that a command takes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from conftest import FIXTURES

from gst.cli import main
from gst.data import SyntheticPrograms, TpuGraphs
from gst.data.elf import ElfBinaries
from gst.data.malnet import MalNet
from gst.data.named import dataset, datasets, expected_graphs
from gst.store import open_store

ALEXNET = str(FIXTURES / "alexnet_small.npz")
ELF = str(FIXTURES / "elf")


def test_every_name_makes_its_dataset(tmp_path: Path) -> None:
    assert dataset(["synthetic:500"]) == SyntheticPrograms(num_nodes=500)
    assert dataset([ALEXNET, "more/*.npz"]) == TpuGraphs([ALEXNET, "more/*.npz"])
    assert dataset(["malnet", str(tmp_path)], part="test", splits="here") == MalNet(str(tmp_path), "test", "here")
    assert datasets(["elf"]) == [dataset(["elf"])] == [ElfBinaries()]
    assert dataset(["elf"], root="/opt", label="section", min_bytes=5, limit=7) == ElfBinaries("/opt", "section", 5, 7)


def test_how_many_graphs_to_expect(tmp_path: Path) -> None:
    assert expected_graphs(dataset(["synthetic:500"])) == 1
    assert expected_graphs(dataset([ALEXNET])) == 1
    assert expected_graphs(dataset(["elf"], root=ELF, label="call_depth", min_bytes=1000)) == 2


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        (["imagenet"], {}, "there is no dataset 'imagenet'; there are synthetic:NODES, elf, malnet FOLDER"),
        (["elf", "/usr"], {}, "elf stands alone"),
        (["synthetic:5", "elf"], {}, "synthetic:5 stands alone"),
        (["synthetic:many"], {}, "want the number of nodes"),
        (["synthetic:0"], {}, "want the number of nodes"),
        (["synthetic"], {}, "want the number of nodes"),
        (["malnet"], {}, "malnet needs its folder"),
        (["malnet", "a", "b"], {}, "malnet a stands alone"),
        (["synthetic:5"], {"label": "section"}, "synthetic:5 takes no option label; elf does"),
        (["elf"], {"part": "train"}, "elf takes no option part; malnet or tpugraphs does"),
        ([ALEXNET], {"limit": 3}, "takes no option limit"),
    ],
)
def test_what_does_not_exist_is_refused(words: list[str], options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataset(words, **options)


def test_prepare_binaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["prepare", "elf", "--root", ELF, "--min-bytes", "1000", "--label", "call_depth", "--max-nodes", "4"]
    assert main([*command, "--json", "made.json"]) == 0
    made = json.loads(Path("made.json").read_text())
    assert (made["graphs"], made["nodes"]) == (2, 18) and made["segments"] >= 6
    graphs = open_store(Path(made["store"]))
    assert sorted(graph.name.rpartition("/")[2] for graph in graphs) == ["calls_aarch64.so", "calls_x86_64.so"]
    assert main([*command, "--json", "again.json"]) == 0
    assert json.loads(Path("again.json").read_text())["store"] == made["store"]


def test_prepare_says_what_was_skipped_and_the_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["prepare", "elf", "--root", str(FIXTURES), "--min-bytes", "1000", "--min-groups", "1"]
    assert main([*command, "--json", "made.json"]) == 0
    made = json.loads(Path("made.json").read_text())
    assert made["classes"] == ["C"] and made["skipped"]["not an ELF file"] >= 2
    assert "not an ELF file" in capsys.readouterr().out


def test_prepare_refuses_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, word in [
        (["imagenet"], "malnet FOLDER"),
        (["elf", "--root", "nowhere"], "nowhere"),
        (["malnet", "nowhere"], "nowhere"),
        (["synthetic:100", "--limit", "3"], "limit"),
    ]:
        assert main(["prepare", *arguments]) == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert len([line for line in lines if line.startswith("gst: error: ")]) == 1 and word in lines[-1]


@pytest.fixture
def collections(tmp_path: Path) -> Path:
    for part in ("train", "valid"):
        folder = tmp_path / "layout/xla/random" / part
        folder.mkdir(parents=True)
        shutil.copy(ALEXNET, folder)
    return tmp_path


def test_prepare_collections(collections: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(collections)
    command = ["prepare", "tpugraphs", "--root", ".", "--json", "made.json"]
    assert main([*command, "--collection", "layout/xla/random", "--part", "valid"]) == 0
    one = json.loads(Path("made.json").read_text())
    assert (one["collection"], one["part"], one["graphs"]) == ("layout/xla/random", "valid", 1)
    assert main(command) == 0
    assert [made["part"] for made in json.loads(Path("made.json").read_text())["stores"]] == ["train", "valid"]
    Path("list.json").write_text(json.dumps({Path(ALEXNET).stem: [3, 1, 3]}))
    some = ["--collection", "layout/xla/random", "--part", "valid", "--eval-indices", "list.json"]
    assert main([*command, *some]) == 0
    assert json.loads(Path("made.json").read_text())["configs"] == 3  # as published: one of them is listed twice


def test_an_absent_collection_is_one_line_with_its_download(
    collections: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare", "tpugraphs", "--root", str(collections), "--collection", "tile/xla"]) == 2
    told = capsys.readouterr().err.strip().splitlines()[-1]
    assert "part train of tile/xla is not in" in told and "npz_tile_xla_train.tar" in told
    assert main(["prepare", "tpugraphs", "--root", str(collections), "--label", "section"]) == 2
    assert "tpugraphs takes no option label" in capsys.readouterr().err


def test_what_is_here_and_how_to_get_the_rest(collections: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "tpugraphs", "--root", str(collections)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 16 and [line for line in lines if "1 files" in line] == lines[:2]
    assert main(["data", "tpugraphs", "--print-download"]) == 0
    commands = capsys.readouterr().out.splitlines()
    assert len(commands) == 15 and all("download.tensorflow.org/data/tpu_graphs" in command for command in commands)
