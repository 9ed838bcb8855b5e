"""Checkpoint files, written atomically by a background thread, and the callback that saves one on a signal."""

from __future__ import annotations

import errno
import io
import os
import random
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from copy import copy
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.serialization import config

from gst.util.copies import local_copy
from gst.util.process import SIGNALS, Stopped
from gst.util.progress import notice
from gst.util.untrusted import DAMAGE, check_classes, plain
from gst.util.writing import atomic_path, directory_lock

AT_ONCE = 2  # checkpoints held in memory until they are written: a best one and a last one
FLUSHED_AT = 16 << 20  # bytes
OF_DAMAGE = ("PytorchStreamReader", "mmap can only be used")
"""In what torch says of a file that is no archive of its own, or a damaged one."""


class BackgroundCheckpointIO(TorchCheckpointIO):
    """Lightning's CheckpointIO with a thread that writes a copy of the checkpoint.

    A file appears under its name once it is on the disk; the file that it replaces is removed only then. Lightning
    writes remote paths (`s3://...`). The next call raises an error of the thread, at the latest `teardown`.
    """

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._pending: list[Future[None]] = []

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Copy the checkpoint and let the thread write it; waits while two earlier ones are unwritten."""
        if _is_remote(path) or storage_options is not None:
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        self._settle(AT_ONCE - 1)
        self._run(write, copied(checkpoint), Path(path))

    def load_checkpoint(
        self, path: Any, map_location: Callable[..., Any] | None = lambda storage, location: storage,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Read a checkpoint, with memory-mapped rows of a table; see `read` for errors."""
        self._settle(0)
        return copied(read(local_copy(path), map_location))

    def remove_checkpoint(self, path: Any) -> None:
        if _is_remote(path):
            super().remove_checkpoint(path)
        else:
            self._run(self._remove, path, list(self._pending))

    def _remove(self, path: Any, earlier: list[Future[None]]) -> None:
        """Remove the file, unless a checkpoint saved before failed to be written."""
        if all(each.exception() is None for each in earlier):
            super().remove_checkpoint(path)

    def wait(self) -> None:
        """Wait until nothing is being written; an error of the thread is left to the next call."""
        wait(list(self._pending))

    def teardown(self) -> None:
        """Wait until everything is written."""
        try:
            self._settle(0)
        finally:
            if self._thread is not None:
                self._thread.shutdown()
                self._thread = None

    def _run(self, job: Callable[..., None], *arguments: Any) -> None:
        self._thread = self._thread or ThreadPoolExecutor(1, "checkpoint")
        self._pending.append(self._thread.submit(job, *arguments))

    def _settle(self, most: int) -> None:
        """Wait until at most `most` jobs are left. Raises the error of a job."""
        while len(self._pending) > most or (self._pending and self._pending[0].done()):
            self._pending.pop(0).result()


def write(checkpoint: dict[str, Any], path: Path) -> None:
    """Write a checkpoint atomically: under another name, flushed to the disk, then renamed; OSError if it cannot."""
    # checksums take as long as writing, and no memory-mapped read verifies them
    no_checksums = config.patch({"save.compute_crc32": False})  # type: ignore[attr-defined]
    try:
        with atomic_path(path) as partial, partial.open("wb", buffering=0) as file, no_checksums:
            torch.save(checkpoint, Flushed(file))  # type: ignore[arg-type]
    except RuntimeError as error:  # torch wraps what the disk says
        raise OSError(f"{path}: the checkpoint cannot be written ({plain(error)}); make room") from error
    _flush_folder(path.parent)


class Flushed:
    """File that is flushed to the disk every `FLUSHED_AT` bytes and leaves the page cache to the training."""

    def __init__(self, file: io.FileIO) -> None:
        self._file, self._flushed, self._written = file, 0, 0

    def write(self, data: bytes | memoryview) -> int:
        rest = memoryview(data).cast("B")
        while rest:
            count = self._file.write(rest[:FLUSHED_AT])
            rest, self._written = rest[count:], self._written + count
            if self._written - self._flushed >= FLUSHED_AT:
                self.flush()
        return len(data)

    def flush(self) -> None:
        os.fsync(self._file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file.fileno(), self._flushed, self._written - self._flushed, os.POSIX_FADV_DONTNEED)
        self._flushed = self._written


def read(path: Path, map_location: Any = "cpu") -> dict[str, Any]:
    """Read a checkpoint with memory-mapped tensors, without executing any code in it.

    Raises:
        FileNotFoundError: there is no such file.
        OSError, MemoryError: the disk, the system or memory does not allow it; the file may be a good one.
        ValueError: it is damaged, no checkpoint, or does not fit on the device of `map_location`.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such checkpoint")
    try:  # what torch says of such files advises to load them unsafely, or nothing that helps
        checkpoint: dict[str, Any] = torch.load(path, map_location=map_location, weights_only=True, mmap=True)
    except DAMAGE as error:
        is_of_file = isinstance(error, OSError) and error.errno == errno.EINVAL  # one that was cut
        if isinstance(error, OSError | MemoryError) and not is_of_file:
            raise
        if isinstance(error, RuntimeError) and not any(words in str(error) for words in OF_DAMAGE):
            raise ValueError(f"{path} cannot be read: {plain(error)}") from error
        if named := re.search(r"GLOBAL ([\w.]+)", str(error)):
            raise ValueError(f"{path} holds a {named[1]}; only tensors and plain values are read") from None
        raise ValueError(f"{path} is not a checkpoint of `gst fit`, or damaged; take an earlier one") from error
    if not isinstance(checkpoint, dict):
        raise ValueError(f"{path} is not a checkpoint of `gst fit`: it holds a {type(checkpoint).__name__}")
    return checkpoint


def opened(path: str) -> dict[str, Any] | None:
    """Read the checkpoint of `--ckpt_path`; None for `last`, which Lightning finds. Errors as `check_readable`."""
    if path == "best":
        raise ValueError("--ckpt_path best is known while training alone; give the file, such as DIR/best.ckpt")
    if path.partition(":")[0] in ("last", "hpc", "registry") and not Path(path).is_file():  # Lightning reads a file
        return None
    return read(local_copy(path))


def check_readable(path: str, own: Mapping[str, Any] | None = None) -> None:
    """Refuse a checkpoint before anything is started with it, unless it is `last`.

    Args:
        path: as `--ckpt_path`.
        own: settings of the model by the configuration, whose classes the checkpoint may name; an unlisted layer of
            torch_geometric, which may evaluate its text, has to be equal in both.

    Raises:
        FileNotFoundError, ValueError: see `read` and `local_copy`; also a class that is not trusted, and `best`, which
            only the process that trained knows.
    """
    if (content := opened(path)) is None:
        return
    if "state_dict" not in content:
        raise ValueError(f"{path} is not a checkpoint of `gst fit`: it holds no weights of a model")
    names = [each for each in _class_paths(own or {}) if not each.startswith("torch_geometric.")]
    check_built(path, content, names, own)


def check_built(
    path: Path | str, content: Mapping[str, Any], trusted: Iterable[str], own: Mapping[str, Any] | None = None,
    replaced: Iterable[str] = (),
) -> None:  # fmt: skip
    """Raise ValueError if settings of a checkpoint fail `check_classes`, but those equal in `own` and the replaced."""
    own, settings = own or {}, content.get("hyper_parameters") or {}
    if not isinstance(settings, Mapping):
        raise ValueError(f"{path} is not a checkpoint of `gst fit`: its settings are a {type(settings).__name__}")
    try:
        built = {key: each for key, each in settings.items() if key not in replaced}
        check_classes({key: each for key, each in built.items() if key not in own or own[key] != each}, trusted)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _class_paths(settings: Any) -> Iterator[str]:
    if isinstance(settings, Mapping):
        if isinstance(named := settings.get("class_path"), str):
            yield named
        settings = list(settings.values())
    if isinstance(settings, FunctionType):  # a loss
        yield f"{settings.__module__}.{settings.__qualname__}"
    if isinstance(settings, list | tuple):
        for each in settings:
            yield from _class_paths(each)


def copied(value: Any, name: str = "") -> Any:
    """Return a deep copy with tensors on the CPU. Extra state of modules is not copied: it is new already."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if name.endswith("_extra_state"):
        return value
    if isinstance(value, dict):
        made = copy(value)  # whatever kind of dict it is; a Counter made of pairs would count the pairs
        for key, entry in value.items():
            made[key] = copied(entry, str(key))
        return made
    return type(value)(map(copied, value)) if type(value) in (list, tuple) else value


def random_states(device: torch.device) -> dict[str, Any]:
    """Return the states of the generators of torch, NumPy and Python, and of `device`, of plain types and tensors."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002 (of the global generator, by which users draw)
    states = {
        "torch": torch.get_rng_state(), "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
    }  # fmt: skip
    return states if device.type == "cpu" else states | {"device": torch.get_device_module(device).get_rng_state()}


def set_random_states(states: Mapping[str, Any], device: torch.device) -> None:
    """Set the generators to what `random_states` returned."""
    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    if device.type != "cpu" and "device" in states:
        torch.get_device_module(device).set_rng_state(states["device"])


def _is_remote(path: Any) -> bool:
    return "://" in str(path)


def _flush_folder(folder: Path) -> None:
    """Flush the directory entry, so that the new name outlives a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


LAST = f"{ModelCheckpoint.CHECKPOINT_NAME_LAST}{ModelCheckpoint.FILE_EXTENSION}"


class Stoppable(L.Callback):
    """Callback that ends a training on SIGINT or SIGTERM after its step, with a checkpoint for `--ckpt_path last`.

    A second signal ends it at once. It also locks the checkpoint directories against other trainings. A resumed
    training is bit-identical to one that never stopped. So it does not stop between steps whose gradients are
    accumulated, nor after the last step of an epoch, which validation follows.
    """

    def __init__(self) -> None:
        self._asked = 0
        self._held = ExitStack()

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Raise ValueError if another process writes to a directory of checkpoints of this one."""
        if trainer.is_global_zero:
            places = {str(each.dirpath) for each in checkpoint_callbacks(trainer)}
            for directory in (Path(each) for each in places if "://" not in each):  # others have no locks
                self._held.enter_context(directory_lock(directory))
                for left in directory.glob("*.partial"):  # of a training that was killed
                    left.unlink()
                if trainer.ckpt_path is None and not trainer.fast_dev_run:  # type: ignore[attr-defined]
                    _tell_what_is_replaced(directory)

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
        self._release(trainer)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._release(trainer)

    def _release(self, trainer: L.Trainer) -> None:
        """Give up signals and locks once nothing is being written."""
        writer = trainer.strategy.checkpoint_io
        if isinstance(writer, BackgroundCheckpointIO):
            writer.wait()
        self._held.close()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise Stopped(number)
        self._asked = number

    def _all_asked(self, trainer: L.Trainer) -> bool:
        """True if any process got a signal, so that all stop after the same step."""
        return trainer.strategy.reduce_boolean_decision(bool(self._asked), all=False)


def checkpoint_callbacks(trainer: L.Trainer) -> list[ModelCheckpoint]:
    """The callbacks of a trainer that write checkpoints to a directory."""
    return [each for each in trainer.checkpoint_callbacks if isinstance(each, ModelCheckpoint) and each.dirpath]


def _tell_what_is_replaced(directory: Path) -> None:
    if names := sorted(each.name for each in directory.glob(f"*{ModelCheckpoint.FILE_EXTENSION}")):
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        notice(
            f"{directory} holds {', '.join(names[:3])}{more} of an earlier training, which this one may replace; "
            "--ckpt_path last goes on with it instead, and a copy of the folder keeps it"
        )


def _saved(trainer: L.Trainer) -> str:
    """Save a checkpoint; returns how to go on with it."""
    first = next(iter(checkpoint_callbacks(trainer)), None)
    if first is None:
        return "no checkpoint is kept; see trainer.enable_checkpointing"
    path = first.last_model_path or f"{first.dirpath}/{LAST}"
    if first.save_last:
        first.last_model_path = path  # before it is saved: the next training then replaces the file
    trainer.save_checkpoint(path)
    return f"the same command with --ckpt_path {path} goes on"
