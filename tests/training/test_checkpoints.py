"""Checkpoints written in the background: whole or not at all, as they were when they were saved."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from embedding_cache import EmbeddingTable
from gst.training import checkpoints
from gst.training.checkpoints import BackgroundCheckpointIO, Stoppable, copied, read, write


def checkpoint() -> dict[str, Any]:
    table = EmbeddingTable(9, 3)
    table.push(torch.tensor([4, 2]), torch.ones(2, 3), 5)
    return {
        "state_dict": {"weight": torch.arange(4.0), "table._extra_state": table.get_extra_state()},
        "optimizer_states": [{"state": {0: {"step": torch.tensor(3.0)}}}],
        "epoch": 2,
    }


def same(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second


def test_what_is_loaded_is_what_was_saved_and_is_nobody_elses(tmp_path: Path) -> None:
    plain, path = BackgroundCheckpointIO(), tmp_path / "folder" / "a.ckpt"
    given = checkpoint()
    plain.save_checkpoint(given, path)
    given["state_dict"]["weight"].zero_()  # training goes on
    loaded = plain.load_checkpoint(path)
    assert same(loaded, checkpoint())
    loaded["state_dict"]["weight"].fill_(7)
    loaded["optimizer_states"][0]["state"][0]["step"] += 1
    assert same(plain.load_checkpoint(path), checkpoint())
    plain.teardown()
    assert [each.name for each in path.parent.iterdir()] == ["a.ckpt"]


def test_training_goes_on_while_a_file_is_written_and_sees_it_only_when_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, plain, path = threading.Event(), BackgroundCheckpointIO(), tmp_path / "a.ckpt"

    def slow(*arguments: Any) -> None:
        assert go.wait(30)
        write(*arguments)

    monkeypatch.setattr(checkpoints, "write", slow)
    plain.save_checkpoint(checkpoint(), path)
    assert not path.exists()
    plain.remove_checkpoint(path)  # after it was written
    go.set()
    plain.teardown()
    assert not path.exists()


def test_a_file_is_replaced_by_a_whole_one_or_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.ckpt"
    write({"epoch": 1}, path)

    def full_disk(value: Any, file: Any) -> None:
        file.write(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full_disk)
    plain = BackgroundCheckpointIO()
    plain.save_checkpoint({"epoch": 2}, path)
    with pytest.raises(OSError, match=r"a\.ckpt.*No space left.*make room"):
        plain.teardown()
    assert read(path) == {"epoch": 1} and len(list(tmp_path.iterdir())) == 1


def test_what_went_wrong_before_is_said_by_the_next_save(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    plain = BackgroundCheckpointIO()
    plain.save_checkpoint({"epoch": 1}, tmp_path / "file" / "a.ckpt")
    with pytest.raises(OSError, match="file"):
        for _ in range(3):
            plain.save_checkpoint({"epoch": 1}, tmp_path / "b.ckpt")
        plain.teardown()


def test_a_checkpoint_that_is_not_there_or_holds_code_is_refused(tmp_path: Path) -> None:
    plain = BackgroundCheckpointIO()
    with pytest.raises(FileNotFoundError, match="no such checkpoint"):
        plain.load_checkpoint(tmp_path / "a.ckpt")
    torch.save({"code": Path("x")}, tmp_path / "b.ckpt")
    with pytest.raises(ValueError, match="only tensors and plain values are read"):
        plain.load_checkpoint(tmp_path / "b.ckpt", weights_only=False)
    write(checkpoint(), tmp_path / "c.ckpt")
    whole = (tmp_path / "c.ckpt").read_bytes()
    for damaged in (b"", b"text", bytes(3000), bytes(range(256)), whole[: len(whole) // 2]):
        (tmp_path / "c.ckpt").write_bytes(damaged)
        with pytest.raises(ValueError, match="damaged"):
            plain.load_checkpoint(tmp_path / "c.ckpt")


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (OSError(24, "Too many open files"), OSError),
        (MemoryError(), MemoryError),
        (torch.OutOfMemoryError("CUDA out of memory"), ValueError),
    ],
)
def test_a_good_checkpoint_is_not_called_damaged(
    error: Exception, raised: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise error

    (tmp_path / "a.ckpt").touch()
    monkeypatch.setattr(torch, "load", failing)
    with pytest.raises(raised) as caught:
        read(tmp_path / "a.ckpt")
    assert caught.value is error or str(caught.value) == f"{tmp_path}/a.ckpt cannot be read: CUDA out of memory"


@pytest.mark.parametrize(
    ("name", "goes_on", "is_fast", "is_said"),
    [
        ("last.ckpt", None, False, True),
        ("last.ckpt", "last", False, False),
        ("last.ckpt", None, True, False),
        ("mine.txt", None, False, False),
    ],
)
def test_a_training_says_that_it_may_replace_checkpoints_of_an_earlier_one(
    name: str, goes_on: str | None, is_fast: bool, is_said: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).touch()
    saver = ModelCheckpoint(dirpath=tmp_path)
    trainer: Any = SimpleNamespace(
        is_global_zero=True, checkpoint_callbacks=[saver], ckpt_path=goes_on, fast_dev_run=is_fast,
        strategy=SimpleNamespace(checkpoint_io=None),
    )  # fmt: skip
    stoppable, module = Stoppable(), L.LightningModule()
    stoppable.on_fit_start(trainer, module)
    stoppable.teardown(trainer, module, "fit")
    words = f"{tmp_path} holds last.ckpt of an earlier training, which this one may replace; --ckpt_path last goes on"
    assert (words in capsys.readouterr().err) == is_said


def test_copies_keep_their_kind() -> None:
    """A MultiStepLR keeps its milestones in a Counter, which made of pairs would count the pairs."""
    given = {"milestones": Counter({30: 1, 60: 2}), "list": [OrderedDict(a=torch.ones(2)), (1, "b")]}
    made = copied(given)
    assert made["milestones"] == given["milestones"] and type(made["milestones"]) is Counter
    assert type(made["list"][0]) is OrderedDict and made["list"][1] == (1, "b")
    assert made["list"][0]["a"].equal(torch.ones(2)) and made["list"][0]["a"] is not given["list"][0]["a"]


def test_what_was_to_be_replaced_stays_where_the_new_one_cannot_be_written(tmp_path: Path) -> None:
    old, new = tmp_path / "old.ckpt", tmp_path / "folder" / "new.ckpt"
    writer = BackgroundCheckpointIO()
    writer.save_checkpoint({"step": 1}, old)
    (tmp_path / "folder").write_text("no folder")
    writer.save_checkpoint({"step": 2}, new)
    writer.remove_checkpoint(old)  # as Lightning does right after
    with pytest.raises(OSError):
        writer.teardown()
    assert read(old)["step"] == 1
