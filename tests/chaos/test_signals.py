"""SIGINT and SIGTERM: status 130 and 143, one line that says how to go on, and going on gives what nobody disturbed."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

import lightning as L
import pytest
import torch

from gst.cli import main
from gst.execution.measure import Log
from gst.training import checkpoints
from gst.util.arrays import ArrayWriter
from gst.util.process import Stopped, stoppable
from gst.util.writing import LOCK
from tests.choices import with_rest
from tests.outcomes import same

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
PROGRAM = "rnnlm:layers=1,hidden=8,steps=2,batch=2,vocabulary=10"
FIT = [
    "fit", "--config", str(ROOT / "experiments/configs/giant_synthetic.yaml"), "--trainer.logger=false",
    "--data.source.init_args.num_nodes=1000", "--data.max_nodes=250", "--data.source.init_args.num_configs=80",
    "--data.num_valid=24", "--data.num_test=24", "--trainer.max_epochs=3", "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false", "--data.configs_per_graph=8",
]  # fmt: skip
STEPS = 4  # of an epoch: 80 - 24 - 24 configurations in lists of 8
LAST = Path("runs/giant_synthetic/checkpoints/last.ckpt")


class SignalAt(L.Callback):
    """Sends this process a signal in the midst of a step, and again in those that follow if it is to be `repeated`."""

    def __init__(self, number: int, step: int, repeated: bool = False) -> None:
        self.number, self.step, self.repeated = number, step, repeated

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        if trainer.global_step == self.step:
            for _ in range(1 + self.repeated):
                os.kill(os.getpid(), self.number)


@pytest.fixture(autouse=True)
def in_own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """A shell starts what runs in the background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The last checkpoint of a training."""
    directory = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        assert main(FIT) == 0
        return torch.load(LAST, weights_only=True)


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    """Of ours: libraries that an earlier test of this process used may say something of their own."""
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("gst: ")][-1]


def stopped_at(number: int, step: int, *more: str, repeated: bool = False) -> int:
    """The status of a training that gets a signal in that step."""
    callback = [
        "--trainer.callbacks+=test_signals.SignalAt", f"--trainer.callbacks.number={int(number)}",
        f"--trainer.callbacks.step={step}", f"--trainer.callbacks.repeated={repeated}",
    ]  # fmt: skip
    return main([*FIT, *callback, *more])


def test_directories_are_locked_until_the_last_checkpoint_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    locked: list[bool] = []
    write = checkpoints.write

    def late(checkpoint: dict[str, Any], path: Path) -> None:
        time.sleep(0.3)
        write(checkpoint, path)
        locked.append((path.parent / LOCK).exists())

    monkeypatch.setattr(checkpoints, "write", late)
    assert stopped_at(signal.SIGTERM, 0) == 143
    assert locked and all(locked)


@pytest.mark.parametrize(
    ("step", "taken"),
    [
        pytest.param(0, 1, marks=pytest.mark.e2e),
        (STEPS + 1, STEPS + 2),
        pytest.param(2 * STEPS - 1, 2 * STEPS + 1, marks=pytest.mark.e2e),
    ],
    ids=["first", "within an epoch", "last of an epoch: validated, and a step more"],
)
def test_a_training_stops_after_its_step_and_goes_on_bit_identically(
    step: int, taken: int, undisturbed: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert stopped_at(signal.SIGTERM, step) == 143
    assert re.search(rf"gst: stopped by SIGTERM; .*--ckpt_path \S*{LAST} goes on$", last_line(capsys))
    assert torch.load(LAST, weights_only=True)["global_step"] == taken
    left = LAST.with_name(".last.ckpt.17.partial")
    left.touch()  # as a kill leaves it
    assert main([*FIT, "--ckpt_path", "last"]) == 0
    assert not left.exists()
    resumed = torch.load(LAST, weights_only=True)
    for part in ("global_step", "epoch", "state_dict", "optimizer_states", "lr_schedulers"):
        assert same(resumed[part], undisturbed[part]), part


def test_a_second_ctrl_c_does_not_wait(capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped_at(signal.SIGINT, STEPS + 1, repeated=True) == 130
    assert "stopped by SIGINT" in last_line(capsys)
    assert torch.load(LAST, weights_only=True)["global_step"] == STEPS, "the checkpoint of the epoch before is there"


@pytest.mark.e2e
def test_epochs_of_one_step_end_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped_at(signal.SIGTERM, 1, "--data.configs_per_graph=32") == 143
    assert "--ckpt_path last goes on from the last checkpoint" in last_line(capsys)
    assert torch.load(LAST, weights_only=True)["global_step"] == 2


@pytest.mark.parametrize(
    ("number", "status"), with_rest([(signal.SIGINT, 130), (signal.SIGTERM, 143)], [(signal.SIGTERM, 143)])
)
def test_a_preparation_goes_on(
    number: int, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["prepare", f"{FIXTURES}/tile/*.npz", "--max-nodes", "32", "--store"]
    finish = ArrayWriter.finish

    def signalled(writer: ArrayWriter, record: dict[str, Any]) -> None:
        finish(writer, record)
        os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr(ArrayWriter, "finish", signalled)
        assert main([*arguments, "killed"]) == status
    assert last_line(capsys).endswith("the same command goes on where this one stopped")
    assert not list(Path("killed").glob("*/meta.json"))
    assert main([*arguments, "killed"]) == main([*arguments, "whole"]) == 0
    resumed, whole = (
        {path.relative_to(root): path.read_bytes() for path in Path(root).glob("*/*.[jb]*n")}
        for root in ("killed", "whole")
    )
    assert resumed == whole and any(path.name == "meta.json" for path in whole)


@pytest.mark.e2e
@pytest.mark.slow
def test_a_measurement_goes_on_and_leaves_no_process() -> None:
    log = Log(Path("out/measurements.jsonl"))
    arguments = ["measure", PROGRAM, "--devices", "cpu:0", "--out", "out", "--patience", "0", "--random", "12"]

    is_over = Event()

    def stop_soon() -> None:
        while len(log.read()) < 5 and not is_over.wait(0.01):  # the header and the first plans
            pass
        if not is_over.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(stop_soon)
        try:
            assert main([*arguments, "--repetitions", "1000"]) == 143
        finally:
            is_over.set()
    rows = log.read()
    assert 5 <= len(rows) < 13
    assert not any("gst.execution.isolated" in words for words in _children())
    assert main([*arguments, "--repetitions", "2", "--resume"]) == 0
    assert log.read()[: len(rows)] == rows and len(log.read()) == 13


def _children() -> list[str]:
    """The command lines of the processes that this one has started; threads and processes may end meanwhile."""
    found = []
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            found += [Path(f"/proc/{pid}/cmdline").read_text() for pid in path.read_text().split()]
    return found


def test_handlers_are_put_back_and_what_was_ignored_stays_ignored() -> None:
    before = signal.getsignal(signal.SIGINT)
    after_nohup = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with pytest.raises(Stopped, match="stopped by SIGINT") as stop, stoppable():
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
        assert stop.value.status == 130
        assert signal.getsignal(signal.SIGINT) is before
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, after_nohup)


def test_a_signal_that_compiled_code_turns_into_a_system_error_is_still_one() -> None:
    with pytest.raises(Stopped, match="stopped by SIGTERM"), stoppable():
        try:
            raise SystemError("returned a result with an exception set") from Stopped(signal.SIGTERM)
        except SystemError as error:
            raise SystemError("so did its caller") from error
    with pytest.raises(SystemError, match="another"), stoppable():
        raise SystemError("another")


def test_threads_run_commands_too() -> None:
    seen = []

    def run() -> None:
        with stoppable():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]
