"""What a user gets wrong: one clear line, exit status 2, nothing half-written left behind."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from gst.cli import data, main
from gst.data.tpugraphs import read
from gst.programs import operation

FIXTURES = Path(__file__).parents[1] / "fixtures"
ALEXNET = FIXTURES / "alexnet_small.npz"
CONFIG = Path(__file__).parents[2] / "experiments" / "configs" / "alexnet_layout.yaml"


@pytest.fixture(autouse=True)
def in_own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str], *words: str) -> None:
    capsys.readouterr()
    assert main(arguments) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    errors = [line for line in lines if line.startswith("gst: error: ")]
    assert len(errors) == 1 and lines[-1] == errors[0], lines
    for word in words:
        assert word in errors[0], errors[0]
    assert not list(Path.cwd().rglob("*partial*"))


def damaged(**changes: np.ndarray | None) -> str:
    arrays = dict(np.load(ALEXNET)) | changes
    np.savez("damaged.npz", **{key: value for key, value in arrays.items() if value is not None})
    return "damaged.npz"


def test_no_command_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: gst" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"edge_index": None}, "edge_index"),
        ({"edge_index": np.array([[5000, 0]])}, "5000"),
        ({"node_feat": np.zeros((0, 70), np.float32), "node_opcode": np.zeros(0, np.uint8)}, "no nodes"),
        ({"node_feat": np.full((372, 70), np.nan, np.float32)}, "NaN"),
        ({"config_runtime": np.full(1500, 2**63, np.uint64)}, "overflow"),
    ],
    ids=["absent key", "edge out of range", "zero nodes", "NaN features", "int overflow"],
)
def test_a_damaged_file_leaves_earlier_stores_alone(
    capsys: pytest.CaptureFixture[str], changes: dict, word: str
) -> None:
    assert main(["prepare", str(ALEXNET), "--max-nodes", "100"]) == 0
    before = {path: path.stat().st_mtime_ns for path in Path("runs").rglob("*")}
    refused(capsys, ["prepare", damaged(**changes), "--max-nodes", "100"], "damaged.npz", word)
    assert {path: path.stat().st_mtime_ns for path in Path("runs").rglob("*")} == before


def fit(*more: str) -> list[str]:
    return ["fit", "--config", str(CONFIG), "--trainer.fast_dev_run=1", "--trainer.enable_progress_bar=false", *more]


def test_what_a_user_gets_wrong_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("short.npz").write_bytes(ALEXNET.read_bytes()[:1000])
    Path("wrong.yaml").write_text(CONFIG.read_text().replace("num_fresh", "num_frehs"))
    Path("text.ckpt").write_text("hello")
    same = damaged(config_runtime=np.full(len(np.load(ALEXNET)["config_runtime"]), 7))
    few, file = ("--data.num_valid=10", "--data.num_test=10"), f"--data.source.init_args.files=[{ALEXNET}]"
    infinite = fit(file, *few, "--trainer.fast_dev_run=6", "--optimizer.init_args.lr=1e20")
    cases: list[tuple[list[str], tuple[str, ...]]] = [
        (["prepare", "nowhere.npz"], ("nowhere.npz",)),
        (["prepare", "short.npz"], ("short.npz", "not a readable npz")),
        (fit(f"--data.source.init_args.files=[{same}]", *few), ("equal",)),
        (fit(file, "--data.num_test=99999"), ("99999",)),
        (infinite, ("the loss became", "alexnet_small")),
        (["fit", "--config", "wrong.yaml"], ("num_frehs",)),
        (["fit"], ("model.encoder", "--config FILE.yaml", "experiments/configs/giant_synthetic.yaml")),
        (["rank", "nothing.ckpt", str(ALEXNET)], ("nothing.ckpt",)),
        (["rank", "text.ckpt", str(ALEXNET)], ("text.ckpt",)),
        (["place", "rnnlm", "--devices", "cpu:0,tpu:7", "--out", "out"], ("tpu:7", "cpu:0")),
        (["place", "nothing", "--out", "out"], ("nothing", "rnnlm")),
    ]
    for arguments, words in cases:
        refused(capsys, arguments, *words)
    assert not Path("out").exists()


def test_a_checkpoint_that_would_run_code_is_not_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    class Evil:
        def __reduce__(self) -> tuple:
            return os.mkdir, ("owned",)

    torch.save({"state_dict": Evil()}, "evil.ckpt")
    refused(capsys, ["rank", "evil.ckpt", str(ALEXNET)], "evil.ckpt")
    assert not Path("owned").exists()


def test_prepare_twice_does_nothing_and_says_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["prepare", str(ALEXNET), "--max-nodes", "100", "--json", "prepare.json"]
    assert main(arguments) == 0
    first = json.loads(Path("prepare.json").read_text())
    assert first["nodes"] == 372 and first["segments"] >= 4
    before = {file: file.stat().st_mtime_ns for file in Path(first["store"]).iterdir()}
    assert main(arguments) == 0
    assert json.loads(Path("prepare.json").read_text()) == first
    assert {file: file.stat().st_mtime_ns for file in Path(first["store"]).iterdir()} == before


@pytest.mark.parametrize("subcommand", ["fit", "predict"])
def test_the_help_of_a_training_begins_with_a_usage_and_ends_with_examples(
    subcommand: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([subcommand, "--help"])
    printed = capsys.readouterr().out
    first, second, *_, last = printed.strip().split("\n\n")
    assert first == f"usage: gst {subcommand} --config FILE.yaml [--SECTION.NAME VALUE ...]"
    assert second.endswith(". Examples are at the end.") and last.startswith("examples:")
    assert len(printed.splitlines()) <= 80


def test_the_short_help_names_options_that_exist_and_a_section_lists_all_of_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sections = {}
    for section in ("model", "data", "trainer"):
        with pytest.raises(SystemExit, match="0"):
            main(["fit", f"--help.{section}"])
        sections[section] = capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        main(["fit", "--help"])
    named = re.findall(r"--((model|data|trainer)\.\w+)", capsys.readouterr().out)
    assert len(named) > 20 and all(f"  --{option}" in sections[section] for option, section in named)
    assert main(["fit", "--help.fun"]) == 2 and "the sections are trainer, model" in capsys.readouterr().err


def test_an_xla_program_becomes_a_tpugraphs_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "program.npz"
    assert main(["trace", "--hlo", str(FIXTURES / "hlo" / "lowered.txt"), "--out", str(out)]) == 0
    assert "134 nodes, 155 edges, 14 configurable nodes" in capsys.readouterr().out
    assert read(out).num_nodes == 134


def test_the_kinds_of_the_command_line_are_those_of_programs() -> None:
    assert data.KINDS == operation.KINDS and data.ACCELERATOR == operation.ACCELERATOR
