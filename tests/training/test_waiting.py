"""Processes that wait for each other: waits have a limit, signals end them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from ranks import in_processes

from gst.training.processes import waits_explained

ROOT = Path(__file__).parents[2]


def wait_alone(rank: int, world_size: int) -> str:
    """The first process comes to a collective that the others leave out."""
    dist.barrier()  # with its longer limit: the processes may have started apart
    own = dist.new_group(timeout=timedelta(seconds=2))
    dist.barrier()
    if rank:
        return ""
    try:
        with waits_explained():
            dist.all_gather_object([None] * world_size, rank, own)
    except TimeoutError as error:
        return str(error)
    return "nothing happened"


@pytest.mark.e2e
def test_a_collective_that_takes_too_long_names_the_process_and_the_place(tmp_path: Path) -> None:
    said = in_processes(2, wait_alone, tmp_path)[0]
    assert said.startswith("process 0 of 2 waited too long for the others in ")
    assert "(wait_alone)" in said and "--collective_timeout" in said and "\n" not in said


def test_errors_of_the_program_stay_as_they_are() -> None:
    with pytest.raises(RuntimeError, match="loading state_dict"), waits_explained():
        raise RuntimeError("Error(s) in loading state_dict")


ALONE = """
import signal, sys, torch.distributed as dist
from gst.util.process import stoppable
from gst.training.processes import ended_by_signals
signal.signal(signal.SIGINT, signal.default_int_handler)  # which shells let processes in the background ignore
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
print("here", flush=True)
if rank:
    sys.stdin.read()
with stoppable(), ended_by_signals():
    dist.barrier()
"""


@pytest.mark.e2e
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_process_that_waits_for_another_within_seconds(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-c", ALONE]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    both = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "meeting")], env=environment, text=True, **pipes)
        for rank in (0, 1)
    ]
    try:
        for each in both:
            assert each.stdout is not None and "here" in each.stdout.readline()
        time.sleep(1)  # until the first one is in the barrier
        started = time.monotonic()
        both[0].send_signal(number)
        _, said = both[0].communicate(timeout=60)
        assert both[0].returncode == 128 + number and time.monotonic() - started < 30
        assert f"stopped by {number.name}: process 0 of 2 waited for the others in __main__, line" in said
    finally:
        for each in both:
            each.kill()
            each.communicate()
