"""Damaged files are read or refused in one line that names them, in little time and memory, and never executed.

The long form, with thousands of cases for each reader: `python -m experiments.bench fuzz`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.fuzz import limits
from tests.fuzz.damage import CANARY, damaged
from tests.fuzz.limits import Finding, findings, genuine
from tests.fuzz.readers import READERS, Reader

CASES = 6
pytestmark = pytest.mark.usefixtures("unchecked")


def found(reader: Reader, cases: int, seed: int = 1) -> list[Finding]:
    return [each for each in findings(reader, range(cases), seed) if each is not None]


@pytest.mark.parametrize("name", READERS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_damaged_files(name: str) -> None:
    assert found(READERS[name], max(3, round(CASES * READERS[name].share))) == []


@pytest.mark.parametrize(
    ("name", "case"), [("cost graph", 7232), ("store", 8053), ("store", 8557), ("cost model", 5101), ("policy", 6531)]
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_ten_thousand_cases_found_stays_mended(name: str, case: int) -> None:
    assert list(findings(READERS[name], range(case, case + 1), 0)) == [None]


@pytest.mark.parametrize("name", [name for name, reader in READERS.items() if reader.share == 1][::4])
def test_damage_is_the_same_each_time_and_seldom_none(name: str, tmp_path: Path) -> None:
    _, files = genuine(READERS[name], tmp_path / "genuine")
    path, content = next(iter(files.items()))
    made = [[damaged(path.name, content, np.random.default_rng((3, case))) for case in range(40)] for _ in range(2)]
    assert made[0] == made[1]
    assert sum(each == content for each in made[0]) < 10


# Who watches the watchman ----------------------------------------------------------------------------


def _one_file(read: Callable[[Path], object]) -> Reader:
    """A reader that takes the genuine file for good, and does as `read` with every other."""

    def write(folder: Path) -> Path:
        (folder / "file.bin").write_bytes(b"genuine")
        return folder / "file.bin"

    return Reader(write, lambda path: None if path.read_bytes() == b"genuine" else read(path))


def _raise(error: Exception) -> object:
    raise error


def _hang(path: Path) -> object:
    while True:
        pass


def _hoard(path: Path) -> object:
    return np.ones(1 << 27)


def _out_of_memory(path: Path) -> object:
    try:
        return _hoard(path)
    except MemoryError as error:
        raise ValueError(f"{path}: too large") from error


@pytest.mark.parametrize(
    ("read", "kind", "what"),
    [
        (lambda path: _raise(KeyError("nodes")), "crash", "KeyError"),
        (lambda path: _raise(ValueError("it is damaged")), "crash", "does not name the file"),
        (lambda path: _raise(ValueError(f"{path}: bad\nvery bad")), "crash", "not one short line"),
        (lambda path: _raise(ValueError(f"{path}: \x1b[31mred")), "crash", "not one short line"),
        (lambda path: (path.parent / CANARY).mkdir(), "crash", "executed"),
        (lambda path: os.kill(os.getpid(), signal.SIGSEGV), "crash", "status -11"),
        (_hang, "unbounded", "more than 0.3 s"),
        (_hoard, "unbounded", "more than 500 MiB"),
        (_out_of_memory, "unbounded", "memory ran out"),
    ],
)
def test_what_no_reader_may_do_is_found(
    read: Callable[[Path], object], kind: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MOST_SECONDS", 0.3)
    (one,) = found(_one_file(read), 1)
    assert one.kind == kind and what in one.what


def test_after_a_case_that_ends_the_process_the_others_are_tried() -> None:
    write = _one_file(lambda path: None).write
    ending = Reader(write, lambda path: os._exit(3) if path.parent.name == "case" else None)
    assert [each.case for each in found(ending, 3)] == [0, 1, 2]
