"""Types of HLO text as estimates read them: loops within loops, pairs of a start and its done."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.reproductions.timm.__main__ import main
from experiments.reproductions.timm.step_time.xla import read_xla
from tests.data.test_hlo_types import ALL, COLLECTIVES, LOOPS, written


@pytest.mark.parametrize("name", ALL)
def test_the_command_estimates_it(name: str, tmp_path: Path) -> None:
    assert main(["estimate", str(written(tmp_path, ALL[name])), "--on", "h100"]) == 0


def test_loops_within_loops_repeat_each_other(tmp_path: Path) -> None:
    """The root of the middle loop's body is a loop itself: 5 times 3 times 3 runs of the innermost body."""
    program = read_xla(written(tmp_path, LOOPS))
    runs = {count: len(group) for count, group in zip(program.repeats, program.groups, strict=True) if group}
    assert runs == {45: 2} and program.unknown_loops == 0


def test_a_pair_of_start_and_done_costs_once(tmp_path: Path) -> None:
    program = read_xla(written(tmp_path, COLLECTIVES))
    kinds = [each.kind for each in program.operations]
    assert kinds.count("all-reduce-start") == 2 and kinds.count("clone") == 1
    assert [kind for kind in kinds if kind.endswith("-done")] == ["recv-done"]  # it alone returns what no start had
    gathered = next(each for each in program.operations if each.kind == "collective-permute-start")
    assert [value.shape for value in gathered.reads] == [(16,)]  # the result of the all-gather, without its operand
