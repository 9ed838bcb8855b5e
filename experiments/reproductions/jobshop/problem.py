"""A job shop: jobs visit every machine once, each in an order of its own; a machine runs one operation at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int64

MOST_OPERATIONS, MOST_TIME = 100_000, 10**9
MOST_BYTES = 10_000_000
MOST_TABU = 2**27  # entries of the table of tabu search: operations x jobs


@dataclass(frozen=True, eq=False)
class JobShop:
    """Job shop problem: jobs, machines, and the time of each operation.

    Args:
        machines: (jobs, steps): the machine of each job's first, second, ... operation; a row is a permutation.
        times: (jobs, steps): time of that operation, not negative, in the problem's own unit.

    Raises:
        ValueError: some job does not visit each machine once, or a time is negative.

    Examples:
        >>> shop = JobShop(np.array([[0, 1], [1, 0]]), np.array([[3, 2], [2, 4]]))
        >>> shop.num_jobs, shop.num_machines, shop.num_operations
        (2, 2, 4)
    """

    machines: Int64[np.ndarray, "jobs steps"]
    times: Int64[np.ndarray, "jobs steps"]

    def __post_init__(self) -> None:
        if self.machines.ndim != 2 or self.machines.shape != self.times.shape or not self.machines.size:
            raise ValueError(f"shapes {self.machines.shape} and {self.times.shape}; want two of (jobs, machines)")
        steps = np.arange(self.machines.shape[1])
        wrong = np.flatnonzero((np.sort(self.machines, axis=1) != steps).any(1))
        if len(wrong):
            raise ValueError(f"job {wrong[0]} does not visit each of {len(steps)} machines once")
        if self.times.min() < 0 or self.times.max() > MOST_TIME:
            raise ValueError(f"times from {self.times.min()} to {self.times.max()}; want 0 to {MOST_TIME}")

    @property
    def num_jobs(self) -> int:
        return self.machines.shape[0]

    @property
    def num_machines(self) -> int:
        return self.machines.shape[1]

    @property
    def num_operations(self) -> int:
        return self.machines.size


def generated_job_shop(seed: int, jobs: int, machines: int) -> JobShop:
    """A random problem in Taillard's manner: times uniform from 1 to 99, the order of machines a random permutation.

    Its random numbers are not those of Taillard's generator, so that no published problem comes out.

    Examples:
        >>> generated_job_shop(0, 3, 2).times.shape
        (3, 2)
    """
    generator = np.random.default_rng(seed)
    times = generator.integers(1, 100, (jobs, machines))
    return JobShop(generator.permuted(np.tile(np.arange(machines), (jobs, 1)), axis=1), times)


def read_job_shop(path: Path) -> JobShop:
    """A problem from a text file, in either of the usual formats; see `parse_job_shop`.

    Raises:
        ValueError: no such file, or no job shop; the message is one line and names the file.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"over {MOST_BYTES} bytes")
        return parse_job_shop(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError):
        raise ValueError(f"{path}: cannot be read as text; give a job shop's file") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def parse_job_shop(text: str) -> JobShop:
    """A problem from text: lines of pairs of machine and time, or Taillard's matrix of times and matrix of machines.

    The first line of numbers is `jobs machines`; what follows it on that line, and lines that do not begin with a
    number, are left out. Pairs count machines from 0 (from 1 if no 0 is there), Taillard's matrix from 1.

    Raises:
        ValueError: what is missing, in one line.

    Examples:
        >>> parse_job_shop("2 2\\n0 3 1 2\\n1 2 0 4\\n").times.tolist()
        [[3, 2], [2, 4]]
        >>> parse_job_shop("2 2\\nTimes\\n3 2\\n2 4\\nMachines\\n1 2\\n2 1\\n").machines.tolist()
        [[0, 1], [1, 0]]
    """
    lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), 1)]
    lines = [(number, words) for number, words in lines if words and (words[0][0].isdigit() or words[0][0] == "-")]
    if not lines:
        raise ValueError("no numbers; want a first line of 'jobs machines'")
    number, head = lines[0]
    jobs, machines = [*_integers(number, head[:2]), 0, 0][:2]
    if jobs < 1 or machines < 1 or jobs * machines > MOST_OPERATIONS:
        raise ValueError(f"line {number}: {jobs} jobs and {machines} machines; want 1 to {MOST_OPERATIONS} operations")
    if jobs * jobs * machines > MOST_TABU:
        raise ValueError(
            f"line {number}: {jobs} jobs on {machines} machines need more than {8 * MOST_TABU >> 20} MiB for a search"
        )
    table = [(number, _integers(number, words)) for number, words in lines[1:]]
    widths = {len(values) for _, values in table}
    if len(table) == jobs and widths == {2 * machines}:
        pairs = np.array([values for _, values in table], np.int64).reshape(jobs, machines, 2)
        return JobShop(_from_zero(pairs[:, :, 0]), pairs[:, :, 1].copy())
    if len(table) == 2 * jobs and widths == {machines}:
        matrix = np.array([values for _, values in table], np.int64)
        return JobShop(_from_zero(matrix[jobs:]), matrix[:jobs])
    raise ValueError(
        f"{len(table)} lines of {min(widths, default=0)} to {max(widths, default=0)} numbers after the first; want "
        f"{jobs} of {2 * machines}, or {2 * jobs} of {machines} (times, then machines)"
    )


def _integers(line: int, words: Sequence[str]) -> list[int]:
    try:
        values = [int(word) for word in words]
    except ValueError:
        raise ValueError(f"line {line}: {' '.join(words)[:40]!r} holds what is no integer") from None
    largest = max(values, key=abs)
    if abs(largest) > MOST_TIME:
        raise ValueError(f"line {line}: {largest} is beyond {MOST_TIME}")
    return values


def _from_zero(machines: Int64[np.ndarray, "jobs steps"]) -> Int64[np.ndarray, "jobs steps"]:
    return (machines - 1 if machines.min() == 1 else machines).copy()
