"""Core sets follow what cores share, on made-up machines of 1 to 256 cores: trees of files as Linux has them."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from gst.machine.devices import MOST_SETS, core_groups, core_sets, select, shared_domains
from tests.machine.made_up import cores, made_up_system


def sets_of(root: Path, count: int) -> list[str]:
    return [each.name for each in core_sets(cores(count), shared_domains(root))]


def test_by_hand_eight_threads_of_four_cores_on_two_nodes(tmp_path: Path) -> None:
    """Threads of one core are 4 apart; cores 0 and 1 are on one node."""
    assert sets_of(made_up_system(tmp_path, 8, threads=2, cache=2, numa=2), 8) == [
        "cpu:0+4", "cpu:1+5", "cpu:2+6", "cpu:3+7", "cpu:0-1+4-5", "cpu:2-3+6-7", "cpu:0-7",
    ]  # fmt: skip


def test_three_cores_to_a_cache_are_a_set_and_none_reaches_over_its_border(tmp_path: Path) -> None:
    assert sets_of(made_up_system(tmp_path, 6, cache=3, numa=6), 6) == [
        "cpu:0-1", "cpu:3-4", "cpu:0-2", "cpu:3-5", "cpu:0-5",
    ]  # fmt: skip


@pytest.mark.parametrize(("count", "threads", "cache", "numa"), [(64, 1, 8, 32), (64, 2, 4, 16), (120, 1, 12, 60)])
def test_of_many_cores_sets_nest_and_are_bounded(
    tmp_path: Path, count: int, threads: int, cache: int, numa: int
) -> None:
    domains = shared_domains(made_up_system(tmp_path, count, threads, cache, numa))
    sets = core_sets(cores(count), domains)
    assert 0 < len(sets) <= MOST_SETS and sets[-1].threads == count
    members = [frozenset(each.cores) for each in sets]
    least = min(map(len, members))
    assert all(domain in members for domain in domains if len(domain) >= least)
    for one, other in combinations(members, 2):
        assert one <= other or not one & other, "sets of a laminar family"
    assert [each.name for each in select([each.name for each in sets], cores(count))] == [each.name for each in sets]


def test_cores_that_may_not_be_used_are_in_no_set(tmp_path: Path) -> None:
    domains = shared_domains(made_up_system(tmp_path, 8, cache=4, numa=8))
    assert core_groups([1, 2, 3, 6], domains) == [(1, 2), (1, 2, 3), (1, 2, 3, 6)]


def test_a_set_is_named_in_one_way_alone() -> None:
    assert select(["cpu:0+2-3"], cores(4))[0].cores == (0, 2, 3)
    for wrong in ("cpu:0+1", "cpu:2+0", "cpu:1+1", "cpu:0-1+1-2"):
        with pytest.raises(ValueError, match=r"core set .*each number must be greater"):
            select([wrong], cores(4))
    with pytest.raises(ValueError, match=r"there is no cpu:9"):
        select(["cpu:0+9"], cores(4))
