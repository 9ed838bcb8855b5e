"""A full disk, a directory that cannot be written, clocks that jump, files of another schema: one line, no loss."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
import torch

from gst.cli import main
from gst.data.synthetic import SyntheticPrograms
from gst.execution.measure import Log, measure
from gst.graphs.store import prepare, verify
from gst.util.arrays import JOURNAL
from gst.util.writing import atomic_write
from tests.outcomes import refused

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
PROGRAM = "rnnlm:layers=1,hidden=8,steps=2,batch=2,vocabulary=10"
PLACE = ["place", PROGRAM, "--machine", "gpus:2", "--methods", "annealing,go", "--evaluations", "100"]
FIT = [
    "fit", "--config", str(ROOT / "experiments/configs/giant_synthetic.yaml"), "--trainer.logger=false",
    "--data.source.init_args.num_nodes=2000", "--data.source.init_args.num_configs=40", "--data.num_valid=8",
    "--data.num_test=8", "--trainer.max_epochs=2", "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false", "--trainer.callbacks=[]",
    "--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint", "--trainer.callbacks.filename=last",
    "--trainer.callbacks.enable_version_counter=false", "--trainer.callbacks.dirpath",
]  # fmt: skip


@pytest.fixture(autouse=True)
def in_own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 320 KiB."""
    path = tmp_path / "disk"
    path.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=320k", "none", path], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"file systems cannot be mounted here: {made.stderr.strip()}")
    yield path
    subprocess.run(["umount", path], check=True)


def fill(disk: Path, leave: int) -> Path:
    """Take all of a disk but so many bytes, by a file that is returned."""
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    filler = disk / "filler"
    filler.write_bytes(b"\0" * (free - leave))
    return filler


def test_a_log_on_a_full_disk_ends_with_a_whole_line_and_goes_on(disk: Path) -> None:
    log, row = Log(disk / "log.jsonl"), {"row": "x" * 3000}
    filler = fill(disk, 16384)
    with pytest.raises(OSError, match=r"cannot write to \S+log\.jsonl: No space left on device; .* make room"):
        while True:
            log.append(row)
    written = len(log.read())
    assert 0 < written < 6 and log.path.read_bytes().endswith(b"}\n")
    assert log.read() == [row] * written
    filler.unlink()
    log.append({"row": "after"})
    assert log.read() == [row] * written + [{"row": "after"}]


@pytest.mark.parametrize(
    "leave", [8192, *(pytest.param(bytes_left, marks=pytest.mark.e2e) for bytes_left in (4096, 16384))]
)
def test_a_search_on_a_full_disk_goes_on_once_there_is_room(
    leave: int, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filler = fill(disk, leave)
    arguments = [*PLACE, "--out", str(disk / "out"), "--json", str(disk / "result.json")]
    refused(capsys, arguments, "No space left on device", "make room")
    for path in (disk / "out/plan.json", disk / "result.json"):
        assert not path.exists() or json.loads(path.read_text())
    before = Log(disk / "out/searches.jsonl").read()
    filler.unlink()
    assert main([*arguments, "--resume"]) == 0
    assert Log(disk / "out/searches.jsonl").read()[: len(before)] == before
    assert json.loads((disk / "result.json").read_text())["plans"]


def test_a_preparation_on_a_full_disk_leaves_nothing(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(disk, 65536)
    arguments = ["prepare", str(FIXTURES / "alexnet_small.npz"), "--max-nodes", "32", "--store", str(disk / "stores")]
    refused(capsys, arguments, str(disk / "stores"), "No space left on device", "make room")
    assert not list(disk.rglob("*.bin")) and not list(disk.rglob("meta.json"))


def test_a_checkpoint_on_a_full_disk_leaves_the_one_before(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    last = disk / "checkpoints" / "last.ckpt"
    assert main([*FIT, str(last.parent)]) == 0
    before = last.read_bytes()
    fill(disk, 8192)
    more = [*FIT, str(last.parent), "--trainer.max_epochs=3", "--ckpt_path", str(last)]
    refused(capsys, more, "last.ckpt", "make room")
    assert last.read_bytes() == before and torch.load(last, weights_only=True)["epoch"] == 1
    assert list(last.parent.iterdir()) == [last]


@pytest.mark.slow
def test_a_checkpoint_of_another_model_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FIT, "checkpoints", "--trainer.max_epochs=1"]) == 0
    content = torch.load("checkpoints/last.ckpt", weights_only=True)
    content["state_dict"].pop("estimator.head.linear.weight")
    torch.save(content, "older.ckpt")
    words = ("--ckpt_path", "another model", "estimator.head.linear.weight")
    refused(capsys, [*FIT, "checkpoints", "--ckpt_path", "older.ckpt"], *words)


def test_a_directory_that_cannot_be_written(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    store = ["prepare", str(FIXTURES / "alexnet_small.npz"), "--store", str(disk / "stores")]
    for arguments in (
        [*PLACE, "--out", str(disk / "out")],
        ["measure", PROGRAM, "--devices", "cpu:0", "--out", str(disk / "out")],
        store,
        [*FIT, str(disk / "checkpoints")],
    ):
        refused(capsys, arguments, "Read-only file system", str(disk))


def test_a_file_takes_the_place_of_another_whole_or_not_at_all(disk: Path) -> None:
    path = disk / "new" / "result.json"
    with atomic_write(path) as file:
        file.write("first")
    with pytest.raises(KeyError), atomic_write(path) as file:
        file.write("second")
        raise KeyError
    fill(disk, 4096)
    with pytest.raises(OSError, match=rf"cannot write {path}: No space left"), atomic_write(path) as file:
        file.write("third" * 4096)
    assert path.read_text() == "first" and list(path.parent.iterdir()) == [path]


def test_nothing_depends_on_the_time_of_day(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The clock is set back by an hour whenever somebody looks at it."""
    hours = count(500_000, -1)
    monkeypatch.setattr(time, "time", lambda: 3600.0 * next(hours))
    seen = measure({"sleep": lambda: time.sleep(0.002)}, repetitions=3)["sleep"]
    assert all(2.0 <= sample < 1000.0 for sample in seen.samples_ms)
    store = prepare(SyntheticPrograms(num_nodes=300, num_configs=4), tmp_path / "stores")
    assert store == prepare(SyntheticPrograms(num_nodes=300, num_configs=4), tmp_path / "stores")


def test_a_store_that_was_killed_before_it_got_its_name_is_no_store(tmp_path: Path) -> None:
    graphs = list(SyntheticPrograms(num_nodes=300, num_configs=4))
    store = prepare(graphs, tmp_path)
    unnamed = tmp_path / ".partial-0123456789abcdef"
    store.rename(unnamed)
    (unnamed / JOURNAL).touch()
    assert prepare(graphs, tmp_path) == store
    verify(store)


def test_a_log_of_another_schema_is_refused_with_its_number(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.jsonl")
    log.path.write_text('{"made": "before lines had a number"}\n')
    log.append({"row": 1})
    assert log.read() == [{"made": "before lines had a number"}, {"row": 1}]
    whole = log.path.read_text()
    for schema in (0, 2, "1", None):
        log.path.write_text(whole + json.dumps({"schema": schema, "row": 2}) + "\n")
        with pytest.raises(ValueError, match=rf"log\.jsonl:3: schema {schema!r}, this version reads 1; "):
            log.read()
