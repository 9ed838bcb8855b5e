"""Several processes that talk through gloo, for tests of what they share."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

LIMIT = 150  # seconds


def in_processes(world_size: int, work: Callable[..., Any], folder: Path, *arguments: Any) -> list[Any]:
    """What `work(rank, world_size, *arguments)` returns in each of `world_size` processes, which make one gloo group.
    A failure of one of them fails the test, with its traceback."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", "gst.method.estimator", "gst.nn", "tests.warm"])
    meeting = folder / f"meeting-{len(list(folder.iterdir()))}"
    pipes, processes = [], []
    for rank in range(world_size):
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, rank, world_size, meeting, work, arguments), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        return [_answer(pipe, rank) for rank, pipe in enumerate(pipes)]
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _answer(pipe: Connection, rank: int) -> Any:
    assert pipe.poll(LIMIT), f"process {rank} said nothing in {LIMIT} s"
    done, answer = pipe.recv()
    assert done, f"process {rank} failed: {answer}"
    return answer


def _work(
    pipe: Connection, rank: int, world_size: int, meeting: Path, work: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{meeting}", rank=rank, world_size=world_size, timeout=timedelta(seconds=LIMIT)
        )
        pipe.send((True, work(rank, world_size, *arguments)))
        pipe.recv()  # the others may still need this one; the parent ends it
    except EOFError:
        pass
    except BaseException:
        pipe.send((False, traceback.format_exc()))
