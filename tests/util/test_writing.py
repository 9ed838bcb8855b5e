"""One process at a time writes to a directory of results; the lock says who, and dies with its owner."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from gst.cli import main
from gst.execution.measure import Log
from gst.util.writing import LOCK, directory_lock, write_json

ROOT = Path(__file__).parents[2]
HOLD = """
import sys, time
from pathlib import Path
from gst.util.writing import directory_lock
with directory_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(100)
"""


@pytest.fixture(autouse=True)
def in_own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@contextmanager
def held_by_another(directory: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", HOLD, directory], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        try:
            yield other
        finally:
            other.kill()


def test_the_other_process_is_named_and_its_death_frees_the_directory() -> None:
    with held_by_another("out") as other:
        words = rf"process {other.pid} on \S+ is writing to out; wait"
        with pytest.raises(ValueError, match=words), directory_lock(Path("out")):
            pass
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert Path("out", LOCK).exists(), "a file is left, and means nothing"
        with directory_lock(Path("out")):
            assert str(os.getpid()) in Path("out", LOCK).read_text()
    assert not Path("out", LOCK).exists()


def test_where_nothing_was_written_nothing_is_left() -> None:
    with directory_lock(Path("a/b/c")):
        pass
    assert not Path("a").exists()
    with directory_lock(Path("a/b/c")):
        Path("a/b/result").touch()
    assert Path("a/b/result").exists() and not Path("a/b/c").exists()
    Path("mine").mkdir()
    with directory_lock(Path("mine")):
        pass
    assert Path("mine").exists(), "it was there before"


@pytest.mark.parametrize(
    "arguments",
    [
        ["place", "rnnlm", "--machine", "gpus:2", "--out", "out"],
        ["demo", "--out", "out"],
        ["measure", "rnnlm", "--devices", "cpu:0", "--out", "out", "--resume"],
        ["fit", "--config", str(ROOT / "experiments/configs/giant_synthetic.yaml"), "--trainer.logger=false",
         "--data.source.init_args.num_nodes=500", "--data.source.init_args.num_configs=40", "--data.num_valid=8",
         "--data.num_test=8", "--trainer.callbacks=[]", "--trainer.enable_progress_bar=false",
         "--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint", "--trainer.callbacks.dirpath=out"],
    ],
    ids=lambda arguments: arguments[0],
)  # fmt: skip
def test_a_second_command_says_who_writes_there(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with held_by_another("out") as other:
        assert main(arguments) == 2
    words = capsys.readouterr().err.strip().splitlines()[-1]
    assert words.startswith("gst: error: ") and f"process {other.pid} " in words and "writing to" in words
    assert list(Path("out").iterdir()) == [Path("out", LOCK)], "nothing was written"


def test_lines_of_two_writers_of_one_log_all_arrive_whole() -> None:
    """Threads that open the file each for itself exclude each other as processes do."""

    def write(writer: int) -> None:
        for number in range(30):
            Log(Path("log.jsonl")).append({"writer": writer, "number": number, "long": "x" * 100_000})

    with ThreadPoolExecutor(2) as writers:
        list(writers.map(write, range(2)))
    records = Log(Path("log.jsonl")).read()
    for writer in range(2):
        assert [each["number"] for each in records if each["writer"] == writer] == list(range(30))


def test_an_append_waits_for_the_line_of_another_to_end() -> None:
    log = Log(Path("log.jsonl"))
    with log.path.open("ab", buffering=0) as other, ThreadPoolExecutor(1) as thread:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write(b'{"row": ')
        waiting = thread.submit(log.append, {"row": 2})
        time.sleep(0.3)
        assert not waiting.done()
        other.write(b"1}\n")
        fcntl.flock(other, fcntl.LOCK_UN)
        waiting.result(timeout=30)
    assert log.read() == [{"row": 1}, {"row": 2}]


def test_numbers_that_json_lacks_are_null() -> None:
    write_json(Path("result.json"), {"loss": float("inf"), "rows": [float("nan"), 1.5, -float("inf")]})
    assert json.loads(Path("result.json").read_text()) == {"loss": None, "rows": [None, 1.5, None]}
