"""Processes that wait for each other: waits have a limit."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from ranks import in_processes

from gst.training.processes import waits_explained


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
