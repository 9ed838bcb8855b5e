"""Damaged files are read or refused in one line that names them, in little time and memory, and never executed.

The long form, with thousands of cases for each reader: `python -m experiments.bench fuzz`.
"""

from __future__ import annotations

import pytest

from tests.fuzz.limits import Finding, findings
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
