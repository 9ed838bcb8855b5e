"""Datasets by the names that a command takes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from experiments.reproductions.elf import ElfBinaries
from gst.cli import main
from gst.cli.data import dataset, datasets, expected_graphs
from gst.data import SyntheticPrograms, TpuGraphs, TpuGraphsCollection
from gst.data.features import FEATURES, enrich
from gst.data.malnet import MalNet
from gst.data.reduction import reduce
from gst.data.tpugraphs import read
from gst.graphs.store import open_store
from tests.files import FIXTURES

ALEXNET = str(FIXTURES / "alexnet_small.npz")
UNET = FIXTURES / "hlo" / "unet_3d_part.npz"
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
        ([ALEXNET], {"eval_indices": "list.json"}, "takes no option eval_indices; tpugraphs does"),
        (["synthetic:5"], {"features": ("log",)}, "takes no option features; tpugraphs or a TpuGraphs npz file does"),
        (["malnet", "a"], {"reduction": "hops:1"}, "takes no option reduction"),
        ([ALEXNET], {"features": ("logs",)}, "there is no feature 'logs'; there are costs"),
        ([ALEXNET], {"reduction": "hop:1"}, "reduction 'hop:1'?"),
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


def test_features_and_reduction_reach_files_and_collections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("layout/xla/default/valid")
    folder.mkdir(parents=True)
    shutil.copy(UNET, folder)
    whole, derive = read(UNET), ["--features", "padding,costs", "--reduction", "hops:1"]
    expected = reduce(enrich(whole, ["costs", "padding"]), "hops:1")
    assert expected.num_nodes < whole.num_nodes and expected.node_features.shape[1] > whole.node_features.shape[1]
    command = ["prepare", "--json", "made.json", "--max-nodes", "1000"]
    for named in ([str(UNET)], ["tpugraphs", "--root", "."]):
        assert main([*command, *named, *derive]) == 0
        (graph,) = open_store(Path(json.loads(Path("made.json").read_text())["store"]))
        assert np.array_equal(graph.node_features[np.argsort(graph.node_ids)], expected.node_features)
        assert main([*command, *named]) == 0
        assert json.loads(Path("made.json").read_text())["nodes"] == whole.num_nodes
    given = {"root": ".", "features": ("costs",), "reduction": "hops:2"}
    made = TpuGraphsCollection(".", "layout/xla/default", "valid", features=("costs",), reduction="hops:2")
    assert datasets(["tpugraphs"], **given) == [made]


def test_help_names_every_feature(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["prepare", "--help"])
    assert ", ".join(FEATURES) in " ".join(capsys.readouterr().out.split())


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
