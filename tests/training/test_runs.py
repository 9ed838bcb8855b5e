"""The files of a run: its configuration, which evaluations read and leave as it is, and what an error leaves behind."""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path

import pytest
import torch
from made_targets import SMALL, small

from gst.cli import main
from gst.training.cli import GstCLI, _with_config
from tests.choices import with_rest

ROOT = Path(__file__).parents[2]
WANDB = "--trainer.logger=lightning.pytorch.loggers.WandbLogger"
OFFLINE = (WANDB, "--trainer.logger.offline=true", "--trainer.logger.save_dir=run")


@pytest.fixture(autouse=True)
def in_own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_SILENT", "true")


@pytest.mark.e2e
def test_an_evaluation_takes_the_configuration_of_the_run_and_leaves_it() -> None:
    assert small("fit", "--model.loss=log_runtime") == 0
    saved = Path("run/config.yaml").read_bytes()
    Path("small.yaml").unlink()
    checkpoint = "--ckpt_path=run/checkpoints/best.ckpt"
    assert main(["test", checkpoint]) == 2, "a class of ours is built only where the configuration is named"
    text = saved.decode().replace("made_targets.MadeTargets", "gst.data.SyntheticPrograms")
    Path("run/config.yaml").write_text(text)
    assert _with_config(["test", checkpoint]) == ["test", f"--config={Path('run/config.yaml').resolve()}", checkpoint]
    Path("run/config.yaml").write_bytes(saved)
    named = "--config=run/config.yaml"
    for verb in ("validate", "test"):
        assert main([verb, named, checkpoint, "--json", f"{verb}.json"]) == 0
        assert (
            f"{verb[:4].replace('vali', 'val')}/median_error" in json.loads(Path(f"{verb}.json").read_text())["metrics"]
        )
    assert main(["predict", named, checkpoint, "--predictions.path=p.csv"]) == 0
    assert Path("run/config.yaml").read_bytes() == saved
    assert len(Path("p.csv").read_text().splitlines()) == 1 + 2 * 2  # two configurations of two graphs


def test_options_of_the_model_hold_although_a_checkpoint_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training has its own, as with `last`; an evaluation those of the checkpoint but for the command line's."""
    checkpoint, seen = "--ckpt_path=run/checkpoints/best.ckpt", []

    def stopped(cli: GstCLI) -> None:
        model = cli.config[cli.subcommand]["model"]
        seen.append((model["num_fresh"], model["keep_probability"], model["pooling"]))
        raise ValueError("seen")

    Path("run/checkpoints").mkdir(parents=True)
    settings = {"num_fresh": 1, "keep_probability": 0.5, "table": True, "pooling": "mean"}
    torch.save({"state_dict": {}, "hyper_parameters": settings}, checkpoint[12:])
    monkeypatch.setattr(GstCLI, "instantiate_classes", stopped)
    for verb in ("fit", "test"):
        assert small(verb, checkpoint, "--model.num_fresh=7", "--model.pooling", "sum") == 2
    assert seen == [(7, 1.0, "sum"), (7, 0.5, "sum")]


WRONG = ["--model.encoder.init_args.channels=16", "--data.num_valid=60", "--data.max_nodes=0", "--data.num_test=-1"]


@pytest.mark.parametrize("wrong", with_rest(WRONG, WRONG[:2]))
def test_an_error_of_the_user_is_one_line_and_begins_no_run(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert small("fit", *OFFLINE, wrong) == 2
    assert len([line for line in capsys.readouterr().err.splitlines() if line.startswith("gst: error:")]) == 1
    assert not list(Path().glob("**/offline-run-*"))


def test_numbers_with_an_exponent_in_a_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    text = SMALL.replace("lr: 1e-3", "lr: 1e-5, weight_decay: 1E-2, betas: [9e-1, 99e-2]")
    Path("mine.yaml").write_text(text + "lr_scheduler:\n  class_path: torch.optim.lr_scheduler.CosineAnnealingLR\n"
                                 "  init_args: {T_max: 15, eta_min: 1e-6}\n")  # fmt: skip
    with pytest.raises(SystemExit):
        main(["fit", "--config", "mine.yaml", "--print_config"])
    shown = capsys.readouterr().out
    for line in ("lr: 1.0e-05", "weight_decay: 0.01", "eta_min: 1.0e-06", "- 0.9\n", "- 0.99\n"):
        assert line in shown


@pytest.fixture(autouse=True)
def as_before() -> object:
    """Levels of loggers and filters of warnings are those of the process."""
    levels = {name: logging.getLogger(name).level for name in ("lightning.pytorch", "lightning.fabric")}
    with warnings.catch_warnings():
        yield
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
