"""Datasets by the names and classes that `gst prepare` takes."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from experiments.reproductions.elf import ElfBinaries
from gst.cli import main
from gst.cli.data import dataset, datasets
from gst.data import SyntheticPrograms, TpuGraphs
from gst.data.malnet import MalNet
from gst.graphs.store import open_store
from gst.placement import MeasuredPlans
from tests.files import FIXTURES

ALEXNET = str(FIXTURES / "alexnet_small.npz")
ELF = str(FIXTURES / "elf")
ELF_CLASS = "experiments.reproductions.elf:ElfBinaries"
SOURCE = """
import numpy as np
from gst.data import GraphSource
from gst.graphs.graph import Graph


class Chains(GraphSource):
    def __init__(self, lengths: list[int], label: str = "chain", inner: GraphSource | None = None) -> None:
        self.lengths, self.label, self.inner = lengths, label, inner

    def __iter__(self):
        for length in self.lengths:
            edges = np.stack([np.arange(length - 1), np.arange(1, length)])
            yield Graph(np.ones((length, 1), np.float32), edges, name=f"{self.label}{length}")
"""


def test_every_name_makes_its_dataset(tmp_path: Path) -> None:
    assert datasets(["synthetic:500"]) == [dataset(["synthetic:500"])] == [SyntheticPrograms(num_nodes=500)]
    assert dataset([ALEXNET, "more/*.npz"]) == TpuGraphs([ALEXNET, "more/*.npz"])
    of_malnet = [f"root={tmp_path}", "part=test", "splits=here"]
    assert dataset(["gst.data:MalNet"], of_malnet) == MalNet(str(tmp_path), "test", "here")
    plans = dataset(["gst.placement:MeasuredPlans"], ["directories=[runs/*, more]"])
    assert isinstance(plans, MeasuredPlans) and plans.directories == ("runs/*", "more")
    arguments = ["root=/opt", "label=section", "min_bytes=5", "limit=7"]
    assert dataset([ELF_CLASS], arguments) == ElfBinaries("/opt", "section", 5, 7)


def test_an_argument_may_be_a_dataset_itself() -> None:
    arguments = ["source=gst.data.TpuGraphs", f"source.files=[{ALEXNET}]", "reduction=hops:1"]
    derived = dataset(["experiments.reproductions.kaggle.derived:Derived"], arguments)
    assert derived.source == TpuGraphs([ALEXNET])


def test_how_many_graphs_to_expect() -> None:
    assert len(dataset(["synthetic:500"])) == 1
    assert len(dataset([ALEXNET])) == 1
    assert len(dataset([ELF_CLASS], [f"root={ELF}", "min_groups=1", "min_bytes=1000"])) == 1


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        (["imagenet"], {}, "there is no dataset 'imagenet'; there are synthetic:NODES, tpugraphs"),
        (["synthetic:5", "tpugraphs"], {}, "synthetic:5 stands alone"),
        (["synthetic:many"], {}, "want the number of nodes"),
        (["synthetic:0"], {}, "want the number of nodes"),
        (["synthetic"], {}, "want the number of nodes"),
        (["synthetic:5"], {"part": "train"}, "synthetic:5 takes no option part; tpugraphs does"),
        ([ALEXNET], {"eval_indices": "list.json"}, "takes no option eval_indices; tpugraphs does"),
        ([ALEXNET], {"arguments": ["limit=3"]}, "takes no --arg; only MODULE:CLASS does"),
        ([ELF_CLASS], {"part": "train"}, "ElfBinaries takes no option part"),
        ([ELF_CLASS, "/usr"], {}, "stands alone"),
        ([ELF_CLASS], {"arguments": ["lable=section"]}, "--lable=section; give --arg NAME=VALUE for root, label"),
        ([ELF_CLASS], {"arguments": ["label"]}, "expected one argument; give --arg NAME=VALUE"),
        ([ELF_CLASS], {"arguments": ["limit=many"]}, "limit"),
        ([ELF_CLASS], {"arguments": ["limit=0"]}, "limit is 0; it starts at 1"),
        (["nowhere.graphs:Circuits"], {}, "cannot import 'nowhere.graphs' of .*; run gst where that module is"),
        (["gst.data:Circuits"], {}, "module 'gst.data' has no subclass 'Circuits' of gst.data.GraphSource"),
        (["gst.data:read_hlo"], {}, "module 'gst.data' has no subclass 'read_hlo'"),
    ],
)
def test_what_does_not_exist_is_refused(words: list[str], options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataset(words, **options)


def test_prepare_imports_a_class_from_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("mine_of_a_test.py").write_text(SOURCE)
    command = ["prepare", "mine_of_a_test:Chains", "--arg", "lengths=[5, 7]", "--arg", "label=path"]
    assert main([*command, "--json", "made.json"]) == 0
    made = json.loads(Path("made.json").read_text())
    assert (made["graphs"], made["nodes"]) == (2, 12) and not {"classes", "skipped"} & made.keys()
    assert [graph.name for graph in open_store(Path(made["store"]))] == ["path5", "path7"]
    assert main(["prepare", "mine_of_a_test:Chains"]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("gst: error: ") and "lengths, label, inner" in error


def test_prepare_binaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [f"root={ELF}", "min_bytes=1000", "min_groups=1"]
    command = ["prepare", ELF_CLASS, *(f"--arg={each}" for each in arguments), "--max-nodes", "4"]
    assert main([*command, "--json", "made.json"]) == 0
    made = json.loads(Path("made.json").read_text())
    assert (made["graphs"], made["nodes"], made["classes"]) == (1, 9, ["C"]) and made["segments"] >= 3
    graphs = open_store(Path(made["store"]))
    assert [graph.name.rpartition("/")[2] for graph in graphs] == ["calls_x86_64.so"]
    assert main([*command, "--json", "again.json"]) == 0
    assert json.loads(Path("again.json").read_text())["store"] == made["store"]


def test_prepare_says_what_was_skipped_and_the_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [f"root={FIXTURES}", "min_bytes=1000", "min_groups=1"]
    assert main(["prepare", ELF_CLASS, *(f"--arg={each}" for each in arguments), "--json", "made.json"]) == 0
    made = json.loads(Path("made.json").read_text())
    assert made["classes"] == ["C"] and made["skipped"]["not an ELF file"] >= 2
    assert "not an ELF file" in capsys.readouterr().out


def test_prepare_refuses_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, word in [
        (["imagenet"], "MODULE:CLASS"),
        ([ELF_CLASS, "--arg", "root=nowhere"], "nowhere"),
        (["gst.data:MalNet", "--arg", "root=nowhere"], "nowhere"),
        (["synthetic:100", "--part", "train"], "part"),
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
    assert main(["prepare", "synthetic:9", "--root", str(collections)]) == 2
    assert "synthetic:9 takes no option root; tpugraphs does" in capsys.readouterr().err


def test_the_commands_that_download_a_dataset_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "tpugraphs", "--root", "here"]) == 0
    commands = capsys.readouterr().out.splitlines()
    assert all(command.startswith("mkdir -p here && cd here && ") for command in commands)
    assert len(commands) == 15 and all("download.tensorflow.org/data/tpu_graphs" in command for command in commands)
