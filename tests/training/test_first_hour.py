"""What a new user of `gst fit` gets wrong in the first hour: one line that says what to do, before time is spent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from enum import Enum
from pathlib import Path

import pytest
import torch
from made_targets import SMALL, small

from gst.training.checkpoints import read
from tests.outcomes import refused

ROOT = Path(__file__).parents[2]
STOPPING = "--trainer.callbacks+=lightning.pytorch.callbacks.EarlyStopping"
BEST = "--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint"
PLATEAU = ("--lr_scheduler=lightning.pytorch.cli.ReduceLROnPlateau", "--lr_scheduler.monitor=val/tua")


class Colour(Enum):
    """A class of the user."""

    RED = 1


@pytest.fixture(autouse=True)
def in_own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(Path(__file__).parent)]))


def last_line(printed: str) -> str:
    return printed.strip().splitlines()[-1]


@pytest.mark.parametrize("flags", [
    (STOPPING, "--trainer.callbacks.monitor=val/tua"),
    pytest.param((BEST, "--trainer.callbacks.monitor=tau"), marks=pytest.mark.rest),
    pytest.param(PLATEAU, marks=pytest.mark.e2e),
], ids=["early stopping", "best", "learning rate"])  # fmt: skip
def test_a_misspelt_monitor_is_refused_before_the_first_epoch(
    flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert small("fit", *flags) == 2
    line = last_line(capsys.readouterr().err)
    assert line.startswith("gst: error: monitor '") and "there are val/" in line and "val/tau" in line
    assert not list(Path().rglob("*.ckpt"))


def test_a_monitor_that_is_missed_later_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert small("fit", STOPPING, "--trainer.callbacks.monitor=train/less", "--trainer.num_sanity_val_steps=0") == 2
    assert "train/less" in last_line(capsys.readouterr().err)


@pytest.mark.slow
def test_a_service_without_a_login_is_one_line_that_says_what_to_do() -> None:
    """In a process of its own: the client keeps a service for each."""
    Path("small.yaml").write_text(SMALL)
    logger = ["--trainer.logger=lightning.pytorch.loggers.WandbLogger", "--trainer.logger.save_dir=run"]
    command = [sys.executable, "-m", "gst.cli", "fit", "--config", "small.yaml", *logger]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    line = last_line(done.stderr)
    assert line.startswith("gst: error: ") and "wandb login" in line and "WANDB_MODE=offline" in line


def test_resume_is_said_to_be_another_option(capsys: pytest.CaptureFixture[str]) -> None:
    Path("small.yaml").write_text(SMALL)
    refused(capsys, ["fit", "--config", "small.yaml", "--resume"], "--resume", "--ckpt_path last")


@pytest.mark.parametrize("verb", ["fit", "test"])
def test_a_damaged_checkpoint_is_named_though_no_configuration_is_given(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"state_dict": {"weight": torch.ones(9999)}}, "whole.ckpt")
    Path("cut.ckpt").write_bytes(Path("whole.ckpt").read_bytes()[:20000])
    refused(capsys, [verb, "--ckpt_path", "cut.ckpt"], "cut.ckpt is not a checkpoint of `gst fit`, or damaged")
    refused(capsys, [verb, "--ckpt_path=none.ckpt"], "none.ckpt: there is no such checkpoint")


def test_an_object_in_a_checkpoint_is_named() -> None:
    torch.save({"state_dict": {}, "callbacks": {"mine": Colour.RED}}, "mine.ckpt")
    with pytest.raises(ValueError, match=r"mine\.ckpt holds a \S*test_first_hour\.Colour; only tensors"):
        read(Path("mine.ckpt"))


def answers_to(process: subprocess.Popen[str], number: int) -> bool:
    caught = Path(f"/proc/{process.pid}/status").read_text().split("SigCgt:")[1].split()[0]
    return bool(int(caught, 16) >> (number - 1) & 1)


@pytest.mark.e2e
@pytest.mark.parametrize("seconds", [0.0, 0.3, 0.7, 1.2, 2.2])
def test_a_signal_while_a_command_starts_is_one_line(seconds: float) -> None:
    """Seconds since the command catches signals. A shell starts what runs in the background with SIGINT ignored."""
    Path("small.yaml").write_text(SMALL)
    command = [sys.executable, "-m", "gst.cli", "fit", "--config", "small.yaml", "--trainer.max_epochs=100000"]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        while not answers_to(process, signal.SIGTERM):
            time.sleep(0.01)
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert "Traceback" not in said and last_line(said).startswith("gst: stopped by SIGINT")


INTERRUPTED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
import gst.cli

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.exit(gst.cli.main(["fit"]))
"""


@pytest.mark.parametrize("module", ["gst.cli.command_line", "gst.util.progress"])
def test_a_signal_before_a_command_catches_signals_is_one_line(module: str) -> None:
    """It comes when `module` is about to be imported."""
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED, module], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 130 and "Traceback" not in ended.stderr, ended.stderr
    assert last_line(ended.stderr).startswith("gst: stopped by SIGINT")
