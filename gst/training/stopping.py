"""`gst fit` ends when it is asked to: after its step, with a checkpoint to go on from."""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint

from gst.files.writing import directory_lock
from gst.process.interrupts import SIGNALS, Stopped

LAST = f"{ModelCheckpoint.CHECKPOINT_NAME_LAST}{ModelCheckpoint.FILE_EXTENSION}"


class Stoppable(L.Callback):
    """SIGINT and SIGTERM let a training finish its step, leave a checkpoint that `--ckpt_path last` finds, and end it;
    a second one ends it at once. Meanwhile no other training writes to its directories of checkpoints.

    A training that goes on from there is bit-identical to one that never stopped. So it does not stop between steps
    whose gradients are accumulated, nor after the last step of an epoch, which validation follows; where an epoch is a
    single step, it stops before the next one and leaves the checkpoints as they are.
    """

    def __init__(self) -> None:
        self._asked = 0
        self._held = ExitStack()

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Raises:
        ValueError: another process writes to a directory of checkpoints of this one.
        """
        if trainer.is_global_zero:
            for directory in {Path(str(each.dirpath)) for each in _kept(trainer)}:
                self._held.enter_context(directory_lock(directory))
                for left in directory.glob(".*.partial"):  # of a training that was killed
                    left.unlink()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._asked = 0
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._held.callback(signal.signal, number, signal.signal(number, self._ask))

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.num_training_batches == 1 and self._all_asked(trainer):
            raise Stopped(self._asked or signal.SIGTERM)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.is_last_batch or (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        if self._all_asked(trainer):
            raise Stopped(self._asked or signal.SIGTERM, _saved(trainer))

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self._held.close()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._held.close()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise Stopped(number)
        self._asked = number

    def _all_asked(self, trainer: L.Trainer) -> bool:
        """All processes of a training stop after the same step."""
        return trainer.strategy.reduce_boolean_decision(bool(self._asked), all=False)


def _kept(trainer: L.Trainer) -> list[ModelCheckpoint]:
    """The callbacks that write checkpoints somewhere."""
    return [each for each in trainer.checkpoint_callbacks if isinstance(each, ModelCheckpoint) and each.dirpath]


def _saved(trainer: L.Trainer) -> str:
    """Save a checkpoint; returns how to go on with it."""
    kept = _kept(trainer)
    if not kept:
        return "no checkpoint is kept; see trainer.enable_checkpointing"
    path = kept[0].last_model_path or f"{kept[0].dirpath}/{LAST}"
    if kept[0].save_last:
        kept[0].last_model_path = path  # before it is saved: the next training then replaces the file
    trainer.save_checkpoint(path)
    return f"the same command with --ckpt_path {path} goes on"
