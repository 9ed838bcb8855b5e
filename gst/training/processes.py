"""Training with several processes: loss weights, reduction of logged values, timeouts of collectives."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any, TypeVar

import lightning as L
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor

from gst.data.loader import Step
from gst.method.draws import Peers
from gst.util.untrusted import plain

Entry = TypeVar("Entry")
LIBRARIES = ("torch", "lightning", "threading", "contextlib")


def share_of(step: Step, peers: Peers, loss: str) -> float:
    """Return the weight of a process's loss, such that the mean over processes is the loss of all graphs together.

    It is the share of the terms that the loss averages, times the number of processes; 0 for an idle process."""
    total = _terms(peers.targets, loss)
    return 0.0 if peers.idle or not total else _terms(step.targets, loss) / total * peers.world_size


def _terms(targets: Tensor, loss: str) -> int:
    """Pairs with different targets within a graph where the loss compares pairs, else targets."""
    if loss != "pairwise_hinge":
        return int((~targets.isnan()).sum())
    return int((targets[:, :, None] > targets[:, None, :]).sum())


def gathered(own: Sequence[Entry]) -> list[Entry]:
    """Gather lists of all processes: the first entry of each process, then the second of each, ...

    Examples:
        >>> gathered([1, 2])  # one process alone
        [1, 2]
    """
    if not (dist.is_available() and dist.is_initialized()):
        return list(own)
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, list(own))
    longest = max(map(len, every))
    return [entries[place] for place in range(longest) for entries in every if place < len(entries)]


def reduced(own: Mapping[str, tuple[float, Callable[[list[float]], float]]]) -> dict[str, float]:
    """Reduce each named value over all processes, by a function such as `max`; a collective. Logged values come from
    here or are equal on all processes: with `sync_dist` Lightning reduces a value when it is read, and the progress
    bar, which reads it, exists on the first process alone.

    Examples:
        >>> reduced({"memory": (3.0, max), "speed": (2.0, sum)})
        {'memory': 3.0, 'speed': 2.0}
    """
    every = gathered([{name: value for name, (value, _) in own.items()}])
    return {name: reduce([each[name] for each in every]) for name, (_, reduce) in own.items()}


# Timeouts --------------------------------------------------------------------------------------------


def limit_waits(trainer: L.Trainer, seconds: float) -> None:
    """Set the timeout of all collectives of a training; `waits_explained` turns the error into a message."""
    if isinstance(trainer.strategy, DDPStrategy):
        trainer.strategy._timeout = timedelta(seconds=seconds)


@contextmanager
def waits_explained() -> Iterator[None]:
    """Raise an error with the rank and the line of code for a collective that fails within the context.

    Raises:
        TimeoutError: the other processes did not come to a collective in time.
        ConnectionError: another process ended, or cannot be reached.
    """
    try:
        yield
    except RuntimeError as error:  # gloo has no class of errors of its own
        text = str(error)
        if not (isinstance(error, dist.DistError) or "gloo" in text or "Connection closed by peer" in text):
            raise
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        where, who = _place(frames), _process()
        if "imed out" in text or "imeout" in text:
            raise TimeoutError(
                f"{who} waited too long for the others in {where}; look at their messages, and if they were still at "
                f"work raise --collective_timeout ({plain(error)})"
            ) from error
        raise ConnectionError(f"{who} lost the others in {where}; look at their messages ({plain(error)})") from error


def _place(frames: Sequence[FrameType]) -> str:
    """Module, line and function of the innermost frame outside libraries; `frames` are ordered inwards."""
    modules = [str(frame.f_globals.get("__name__", "")) for frame in frames]
    callers = [i for i, name in enumerate(modules) if name != __name__ and name.split(".")[0] not in LIBRARIES]
    last = frames[callers[-1]] if callers else frames[-1]
    return f"{last.f_globals.get('__name__')}, line {last.f_lineno} ({last.f_code.co_name})"


def _process() -> str:
    rank, size = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")), os.environ.get("WORLD_SIZE", "1")
    if dist.is_available() and dist.is_initialized():
        rank, size = str(dist.get_rank()), str(dist.get_world_size())
    return f"process {rank} of {size}"
