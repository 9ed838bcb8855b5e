"""Trials of a sweep on the hosts of a Ray cluster, which share its folder. Import it once the cluster is joined."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import ray

from gst.training.sweeps import LOOK_S, begun

ATTEMPTS = 5  # of a trial whose worker or host is lost
END_S = 30.0  # for a trial to end after its SIGTERM


class RemoteTrial:
    """A trial on a host, with the methods of `subprocess.Popen` that a sweep calls."""

    def __init__(self, task: Any) -> None:
        self._task, self._status = task, task.future()

    def poll(self) -> int | None:
        """Return the exit status, None while the trial runs; that of a killed process if every attempt was lost."""
        try:
            return self._status.result() if self._status.done() else None
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.RayError:
            return -signal.SIGKILL

    def terminate(self) -> None:
        """End the child process there by SIGTERM."""
        ray.cancel(self._task)

    def wait(self) -> None:
        """Wait until the child process has ended."""
        futures.wait([self._status], END_S)


def on_hosts(most: int) -> tuple[int, Callable[..., RemoteTrial]]:
    """Return the number of simultaneous trials, at most `most`, and a function that starts one: on a GPU if the cluster
    has any, and on its share of the cores, for which Ray sets the number of threads."""
    hosts = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    limit = "GPU" if any("GPU" in host for host in hosts) else "CPU"
    number, cores = shares(hosts, limit, most)
    task = ray.remote(max_retries=ATTEMPTS, num_cpus=cores, num_gpus=int(limit == "GPU"))(_run)

    def begin(words: list[str], name: str, folder: Path) -> RemoteTrial:
        folder.mkdir()
        return RemoteTrial(task.remote(Path.cwd(), words, name, folder))

    return number, begin


def shares(hosts: Sequence[Mapping[str, float]], limit: str, most: int) -> tuple[int, int]:
    """Return the number of simultaneous trials, each with one unit of `limit`, and the cores of each, as many as fit.

    Examples:
        >>> shares([{"CPU": 8}, {"CPU": 4}], "CPU", most=3), shares([{"CPU": 8, "GPU": 2}], "GPU", most=3)
        ((3, 4), (2, 4))
    """
    room = lambda cores: sum(int(min(host.get("CPU", 0) // cores, host.get(limit, 0))) for host in hosts)  # noqa: E731
    if not (number := min(most, room(1))):
        raise ValueError("no host of the cluster has a core for a trial")
    total = int(sum(host.get("CPU", 0) for host in hosts))
    return number, max(cores for cores in range(1, total + 1) if room(cores) >= number)


def _run(directory: Path, words: list[str], name: str, folder: Path) -> int:
    """Task of a host: run a trial, anew if a worker was lost with it, and return the exit status."""
    for each in (directory, directory / folder):
        if not each.is_dir():
            raise ValueError(f"{each} is not on {socket.gethostname()}; give an --out that all hosts share")
    os.chdir(directory)
    shutil.rmtree(folder, ignore_errors=True)
    child = begun(words, name, folder, end=signal.SIGKILL)
    try:
        while (status := child.poll()) is None:
            time.sleep(LOOK_S)  # Ray does not interrupt `wait`
        return status
    finally:
        child.terminate()
        child.wait()
