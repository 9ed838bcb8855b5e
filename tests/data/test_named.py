"""Datasets by the names that a command takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import FIXTURES

from gst.cli import main
from gst.data import SyntheticPrograms, TpuGraphs
from gst.data.elf import ElfBinaries
from gst.data.malnet import MalNet
from gst.data.named import dataset, expected_graphs
from gst.store import open_store

ALEXNET = str(FIXTURES / "alexnet_small.npz")
ELF = str(FIXTURES / "elf")


def test_every_name_makes_its_dataset(tmp_path: Path) -> None:
    assert dataset(["synthetic:500"]) == SyntheticPrograms(num_nodes=500)
    assert dataset([ALEXNET, "more/*.npz"]) == TpuGraphs([ALEXNET, "more/*.npz"])
    assert dataset(["malnet", str(tmp_path)], part="test", splits="here") == MalNet(str(tmp_path), "test", "here")
    assert dataset(["elf"]) == ElfBinaries()
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
        (["elf"], {"part": "train"}, "elf takes no option part; malnet does"),
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
