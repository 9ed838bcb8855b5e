"""Winner of the final measurements: never slower than the step as written, by times that luck did not choose."""

from __future__ import annotations

import numpy as np

from gst.execution.measure import Measurement, is_faster, median_interval
from gst.placement.measured import NUM_BASELINES, Finals, fastest, finalists
from gst.placement.objectives import Planned
from gst.whole_model.variants import COMPILED, PYTORCH


def measurement(ms: float, noise: float = 0.0, seed: int = 0, key: str | None = "plan", runs: int = 25) -> Measurement:
    samples = ms + noise * np.random.default_rng(seed).normal(size=runs)
    return Measurement("", key, tuple(samples), *median_interval(samples.tolist(), np.random.default_rng(0)))


def failed(key: str | None = None) -> Measurement:
    nan = float("nan")
    return Measurement("", key, (), nan, nan, nan, "failed", "no compiler")


def finals(plan: float, written: float, compiled: float | None, noise: float = 0.0) -> Finals:
    def runs(seed: int) -> dict[str, Measurement]:
        return {
            "heft": measurement(plan, noise, seed),
            PYTORCH: measurement(written, noise, seed + 1, None),
            COMPILED: failed() if compiled is None else measurement(compiled, noise, seed + 2, None),
        }

    return Finals(runs(0), runs(10))


def test_what_is_slower_by_its_median_is_not_faster() -> None:
    """On a busy machine most runs of one may be faster than those beside them, while its median is not."""
    written, plan = np.tile([2.0, 4.0, 6.0, 8.0, 0.0], 20), np.tile([1.0, 3.0, 5.0, 7.0, 9.0], 20)
    rng = np.random.default_rng(0)
    one, other = (Measurement("", None, tuple(each), *median_interval(each.tolist(), rng)) for each in (plan, written))
    assert np.median(plan - written) < 0 and one.median_ms > other.median_ms
    assert not is_faster(one, other) and not is_faster(other, one)


def test_what_the_user_had_runs_where_no_plan_is_faster() -> None:
    assert finals(54.7, 51.3, None, 0.5).winner == PYTORCH
    assert finals(7.6, 4.7, 2.3, 0.1).winner == COMPILED
    assert finals(40.0, 51.3, 45.0, 0.5).winner == "heft"
    assert finals(40.0, 51.3, None, 0.5).winner == "heft"


def test_ties_go_to_the_simplest() -> None:
    assert finals(5.0, 5.0, 5.0).winner == PYTORCH
    assert finals(4.99, 5.0, 4.98, noise=0.5).winner == PYTORCH, "within noise"
    assert finals(4.0, 5.0, 4.0).winner == COMPILED


def test_a_plan_that_is_faster_in_one_of_two_sets_does_not_replace_what_the_user_had() -> None:
    lucky, honest = finals(4.0, 5.0, None), finals(5.5, 5.0, None)
    assert Finals(lucky.first, honest.second).winner == Finals(honest.first, lucky.second).winner == PYTORCH
    assert Finals(lucky.first, lucky.second).winner == "heft"


def test_a_plan_is_chosen_by_both_sets_and_its_time_is_of_the_second() -> None:
    first = {
        "a": measurement(4.0, key="a"),
        "b": measurement(4.1, key="b"),
        "c": failed("c"),
        "d": measurement(9, key="d"),
    }
    steps = {PYTORCH: measurement(6.0, key=None), COMPILED: failed()}
    second = {"a": measurement(4.2, key="a"), "b": measurement(4.15, key="b")}
    figures = Finals(first | steps, second | steps).figures()
    assert figures["best"] == figures["winner"] == "a"
    assert figures["objective"] == figures["winner_ms"] == 4.2, "not the least that was ever seen"
    assert figures["pytorch_ms"] == 6.0 and figures["compiled_ms"] is None
    assert Finals(first | steps, second | steps | {"a": failed("a")}).best == "b"
    assert Finals(first | steps, second | steps | {"a": measurement(4.8, key="a")}).best == "b", "15 % slower again"


def test_names_of_one_plan_count_as_one() -> None:
    several = {"a": measurement(2.0, key="x"), "b": measurement(2.0, key="x"), "c": measurement(3.0, key="y")}
    assert fastest(several, 1) == ["a", "b"] and fastest(several) == ["a", "b", "c"]


def test_many_devices_do_not_make_many_finalists() -> None:
    planned = {f"single:cpu:{core}": Planned(None, 10.0 + core, 0.0, 1) for core in range(64)}
    planned |= {f"metis:{count}": Planned(None, 5.0 + count, 0.0, 1) for count in range(40)}
    planned |= {"heft": Planned(None, float("nan"), 0.0, 1), "annealing": Planned(None, 99.0, 0.0, 1)}
    chosen = list(finalists(planned, ["annealing"]))
    assert chosen == ["single:cpu:0", *(f"metis:{count}" for count in range(NUM_BASELINES)), "annealing"]
