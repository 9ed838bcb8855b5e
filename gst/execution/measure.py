"""Alternate timing of callables on quiet cores, with a bootstrap interval of the median; logs on disk."""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np

from gst.lowering.plan import ExecutionError
from gst.machine.devices import machine_record, synchronise_accelerators
from gst.machine.load import SPOILT, LoadGate, LoadMeter
from gst.util.untrusted import parse_json, plain, shown

RESAMPLES = 1000
SPIN_S = 0.01  # for which idle OpenMP threads may go on spinning, at the cost of whatever runs next
LONG_MS = 500.0  # of a step for which the caches and threads that it finds matter little
LEAST_ROUNDS = 7  # that are timed, however long they take
LEAST_LOOK_S = 0.1  # of a round whose load is judged: the kernel counts in ticks


@dataclass(frozen=True)
class Measurement:
    """Times of one callable, or the reason of its failure. Times are milliseconds, NaN if it failed.

    Args:
        label: name of the callable.
        plan_key: key of the plan that ran, if it was a plan.
        samples_ms: one time for each repetition, in order.
        median_ms, low_ms, high_ms: of the samples, with the bootstrap 95 % interval of the median.
        outcome: 'failed' if the callable raised; it was then not called again.
        reason: the message of that error.
        load: share of the cores that other processes took meanwhile, 0 .. 1.
        quiet: True if the gate found the cores free whenever it looked.
        machine: see `machine_record`.
        time: of the end, UTC, ISO 8601.
        peak_bytes: the most that intermediate values took in a run, if that was counted.
    """

    label: str
    plan_key: str | None
    samples_ms: tuple[float, ...]
    median_ms: float
    low_ms: float
    high_ms: float
    outcome: Literal["ok", "failed"] = "ok"
    reason: str = ""
    load: float = 0.0
    quiet: bool = True
    machine: Mapping[str, Any] = field(default_factory=dict)
    time: str = ""
    peak_bytes: int | None = None

    @property
    def repetitions(self) -> int:
        return len(self.samples_ms)

    def to_dict(self) -> dict[str, Any]:
        """Return a record for a `Log`: NaN becomes None."""
        return {key: None if value != value else value for key, value in asdict(self).items()}

    @staticmethod
    def from_dict(record: Mapping[str, Any]) -> Measurement:
        """Read a record of `to_dict`; earlier versions had `clocks` too."""
        record = {key: value for key, value in record.items() if key != "clocks"}
        times = {key: math.nan if record[key] is None else record[key] for key in ("median_ms", "low_ms", "high_ms")}
        return Measurement(**{**record, **times, "samples_ms": tuple(record["samples_ms"])})


def measure(
    callables: Mapping[str, Callable[[], Any]],
    repetitions: int = 20,
    warmup: int = 3,
    gate: LoadGate | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    time_of: Callable[[Callable[[], Any]], float] | None = None,
    seconds: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Measurement]:
    """Time callables alternately: each runs once in a round, in a random order, so that changes of the machine affect
    all.

    Args:
        callables: by label; each is called `warmup + repetitions` times.
        repetitions, warmup: timed calls of each, and calls before them.
        gate: waits for quiet cores before every round, and a round during which others took more than `SPOILT` of the
            cores is repeated; its patience is for the whole call. Neither if None.
        seed: of the order in each round, and of the bootstrap.
        progress: called with rounds done and rounds in all.
        time_of: calls one of them and returns its milliseconds; `timed` if None.
        seconds: no round begins later than this by `clock`, once `LEAST_ROUNDS` are timed.

    Returns:
        For each label its measurement. A callable that raises is 'failed', and the others continue.

    Raises:
        ValueError: fewer than one repetition.

    Examples:
        >>> measurements = measure({"sum": lambda: sum(range(100)), "bad": lambda: 1 / 0}, repetitions=3, warmup=1)
        >>> len(measurements["sum"].samples_ms), measurements["bad"].reason
        (3, 'ZeroDivisionError: division by zero')
    """
    if repetitions < 1 or warmup < 0:
        raise ValueError(f"want repetitions >= 1 and warmup >= 0, got {repetitions} and {warmup}")
    samples: dict[str, list[float]] = {label: [] for label in callables}
    failures: dict[str, str] = {}
    labels, order = list(callables), np.random.default_rng(seed)
    time_of, meter = time_of or timed, LoadMeter()
    quiet, patience = True, gate.patience_s if gate else 0.0
    ends = clock() + seconds
    for number in range(warmup + repetitions):
        if number >= warmup + LEAST_ROUNDS and clock() > ends:
            break
        looks = gate if number >= warmup and patience > 0 else None
        if looks is not None and looks.interval_s > 0:
            spent, is_quiet = looks.wait(patience)
            quiet = quiet and is_quiet
            patience -= 0.0 if is_quiet and spent <= 2 * looks.interval_s else spent
        if number == warmup:
            meter.start()
        in_order = {labels[each]: callables[labels[each]] for each in order.permutation(len(labels))}
        times_ms, spoilt_s = _round(in_order, time_of, failures, looks)
        while 0 < spoilt_s <= patience:
            patience -= spoilt_s
            times_ms, spoilt_s = _round(in_order, time_of, failures, looks)
        for label, elapsed_ms in times_ms.items() if number >= warmup else ():
            samples[label].append(elapsed_ms)
        if progress is not None:
            progress(number + 1, warmup + repetitions)
    load, machine, now = round(meter.share(), 4), machine_record(), datetime.now(UTC).isoformat(timespec="seconds")
    rng, result = np.random.default_rng(seed), {}
    for label, times in samples.items():
        failed = label in failures
        median, low, high = (float("nan"),) * 3 if failed else median_interval(times, rng)
        result[label] = Measurement(
            label, None, tuple(times), median, low, high, "failed" if failed else "ok",
            failures.get(label, ""), load, quiet, machine, now,
        )  # fmt: skip
    return result


def _round(
    callables: Mapping[str, Callable[[], Any]], time_of: Callable[[Callable[[], Any]], float], failures: dict[str, str],
    gate: LoadGate | None,
) -> tuple[dict[str, float], float]:  # fmt: skip
    """Return the milliseconds of one call of each without a failure, and its seconds if others spoilt it."""
    watched, times_ms = None if gate is None else LoadMeter(gate.read, gate.clock), {}
    for label, call in callables.items():
        if label in failures:
            continue
        try:
            times_ms[label] = time_of(call)
        except Exception as error:
            failures[label] = str(error) if isinstance(error, ExecutionError) else f"{type(error).__name__}: {error}"
    if watched is None or (elapsed := watched.elapsed()) < LEAST_LOOK_S or watched.share() <= SPOILT:
        return times_ms, 0.0
    return times_ms, elapsed


def median_interval(samples: Sequence[float], rng: np.random.Generator) -> tuple[float, float, float]:
    """Return the median of the samples and its bootstrap 95 % interval (percentiles), which contains it."""
    values = np.asarray(samples, np.float64)
    median = float(np.median(values))
    medians = np.median(rng.choice(values, (RESAMPLES, len(values))), axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return median, min(float(low), median), max(float(high), median)


def timed(function: Callable[[], object]) -> float:
    """Return the milliseconds of one call, until its work on accelerators is done too."""
    synchronise_accelerators()
    start = time.perf_counter()
    result = function()
    synchronise_accelerators()
    elapsed_ms = (time.perf_counter() - start) * 1e3
    del result  # freed outside the clock
    return elapsed_ms


def rested(step: Callable[[], object]) -> float:
    """Return the milliseconds of a step, after an untimed one unless it is long; then sleep until idle threads do."""
    elapsed_ms = timed(step)
    if elapsed_ms < LONG_MS:
        elapsed_ms = timed(step)
    time.sleep(SPIN_S)
    return elapsed_ms


def failing(reason: str) -> NoReturn:
    """Raise `ExecutionError` with the reason why something cannot run."""
    raise ExecutionError(reason)


# Log ------------------------------------------------------------------------------------------------------------------

SCHEMA = 1  # of the lines; a line without a number has this one


class Log:
    """An append-only file of JSON lines. Processes that append at once wait for each other (flock(2)).

    Examples:
        >>> log = Log(Path("runs.jsonl"))
        >>> log.append({"plan": "heft", "ms": 12.5})
        >>> log.read()
        [{'plan': 'heft', 'ms': 12.5}]
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record and wait until the disk has it; a line that a crash left unfinished is cut off first.

        Raises:
            ValueError: the record holds NaN, infinity or something else that is not JSON.
            OSError: the file cannot be written; it then ends with the record before.
        """
        try:
            line = json.dumps({"schema": SCHEMA, **record}, allow_nan=False) + "\n"
        except (TypeError, ValueError) as error:
            raise ValueError(f"cannot write a record to {self.path}: {error}") from error
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            _cut_unfinished_line(file)
            _write_whole(file, line.encode())

    def read(self) -> list[dict[str, Any]]:
        """Return all records in the order of writing, none without a file; an unfinished last line is left out.

        Raises:
            ValueError: another line is damaged or of another schema; the message names file and line.
        """
        if not self.path.exists():
            return []
        records = []
        *lines, _unfinished = self.path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, start=1):
            try:
                record = parse_json(line)
            except ValueError as error:
                raise ValueError(
                    f"{self.path}:{number}: not JSON ({plain(error)}); remove the line to go on"
                ) from error
            if not isinstance(record, dict):
                raise ValueError(f"{self.path}:{number}: {type(record).__name__} instead of an object")
            if (schema := record.pop("schema", SCHEMA)) != SCHEMA:
                raise ValueError(
                    f"{self.path}:{number}: schema {shown(schema)}, this version reads {SCHEMA}; go on with the "
                    "version that wrote it, or give another directory"
                )
            records.append(record)
        return records


def _cut_unfinished_line(file: FileIO) -> None:
    size = file.seek(0, os.SEEK_END)
    if not size:
        return
    file.seek(-1, os.SEEK_END)
    if file.read(1) != b"\n":
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


def _write_whole(file: FileIO, line: bytes) -> None:
    """Append a line and sync it to the disk; on an error nothing of it is kept."""
    start = file.seek(0, os.SEEK_END)
    try:
        written = 0
        while written < len(line):
            written += file.write(line[written:])
        os.fsync(file.fileno())
    except OSError as error:
        with suppress(OSError):
            file.truncate(start)
        message = f"cannot write to {file.name}: {error.strerror}; what was written before is kept; make room and go on"
        raise OSError(error.errno, message) from error


def is_faster(one: Measurement, other: Measurement) -> bool:
    """True if one is faster than the other beyond noise: its median is lower, and the 95 % interval of the median
    difference of alternating runs lies below 0."""
    if one.outcome != "ok" or other.outcome != "ok":
        return one.outcome == "ok"
    if one.median_ms >= other.median_ms:
        return False
    differences = np.subtract(one.samples_ms, other.samples_ms)
    return median_interval(differences.tolist(), np.random.default_rng(0))[2] < 0
