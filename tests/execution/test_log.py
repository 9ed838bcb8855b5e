"""A log survives a crash in the middle of a line, and nothing else."""

from pathlib import Path

import pytest

from gst.execution.measure import Log


def test_records_come_back_in_order(tmp_path: Path) -> None:
    log = Log(tmp_path / "new" / "log.jsonl")
    assert log.read() == []
    log.append({"a": 1})
    log.append({"b": [2.5, None]})
    assert log.read() == Log(log.path).read() == [{"a": 1}, {"b": [2.5, None]}]


@pytest.mark.parametrize("keep", [1, 5, 8])
def test_an_unfinished_last_line_is_left_out_and_then_replaced(tmp_path: Path, keep: int) -> None:
    log = Log(tmp_path / "log.jsonl")
    log.append({"a": 1})
    log.append({"b": 2})
    content = log.path.read_bytes()
    log.path.write_bytes(content[: len(content) // 2 + keep - (keep == 8)])
    assert log.read() == [{"a": 1}]
    log.append({"c": 3})
    assert log.read() == [{"a": 1}, {"c": 3}]


def test_other_damage_is_refused_with_its_place(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.jsonl")
    log.path.write_text('{"a": 1}\n{"b": \n{"c": 3}\n')
    with pytest.raises(ValueError, match=r"log\.jsonl:2: not JSON"):
        log.read()
    log.path.write_text('{"a": 1}\n[1]\n')
    with pytest.raises(ValueError, match=r"log\.jsonl:2: list instead of an object"):
        log.read()


def test_what_is_not_json_is_refused(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.jsonl")
    with pytest.raises(ValueError, match="cannot write a record"):
        log.append({"a": float("nan")})
    assert log.read() == []
