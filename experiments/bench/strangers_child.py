"""One stranger placed and timed beside what its user has without gst, in a process of its own.

    python -m experiments.bench.strangers_child DATA NAME SETTINGS    # a GraphNet sample; out: one line of JSON
    python -m experiments.bench.strangers_child step PROGRAM SETTINGS    # a training step

The process is that of a user: nothing is set but the number of threads. It places first, with an empty compile cache,
so that the time to plan is that of a first visit.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import gst
from experiments.bench.executor import ratio_interval
from experiments.bench.speedup_score import least_tolerance
from experiments.bench.strangers_program import module_of
from experiments.bench.strangers_runtimes import RUNTIMES
from experiments.reproductions.graphnet.reader import read_sources
from gst.execution.measure import Measurement, measure, rested
from gst.execution.on_accelerator import compiled_by_threads
from gst.placement.planning import Settings
from gst.programs import Step, as_module, differ_beyond_rounding, resolve, traced
from gst.whole_model.variants import as_written

PLACED, DIRECT = "placed", "direct"
STEP = "step"  # instead of data: the name is that of a training step
MOST_S = 120.0  # of timing, but for the least number of rounds
Run = Callable[[], Any]


class Subject(NamedTuple):
    """The placed program.

    Args:
        model: the module of a sample, or a training step.
        inputs: what it is called with.
        graph: what compilers and other runtimes are given: of a step, what was captured of it.
        flat_inputs: what that is called with.
    """

    model: nn.Module | Step
    inputs: tuple[Any, ...]
    graph: torch.fx.GraphModule
    flat_inputs: Sequence[Any]


def sample(data: Path, name: str) -> Subject:
    """The inference of a GraphNet sample; its random weights must give numbers that are finite."""
    module, inputs = module_of(next(each for each in read_sources(data) if each.name == name))
    graph = torch.fx.GraphModule(module, module.graph)
    with torch.no_grad():
        outputs = pytree.tree_leaves(module(*inputs))
    if not all(bool(each.isfinite().all()) for each in outputs if isinstance(each, Tensor)):
        raise ValueError("its random weights give numbers that are not finite, so that no output can be compared")
    return Subject(module, inputs, graph, inputs)


def training(program: str) -> Subject:
    """A training step, see `gst.programs.resolve`. All ways are given the same tensors: where these lie in memory is
    worth a few percent."""
    step, captured = resolve(program), traced(program)
    flat = [each.detach() for each in pytree.tree_leaves(step.inputs)]
    return Subject(step, step.inputs, as_module(captured), flat)


def report(subject: Subject, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of a stranger.

    Args:
        subject: what is placed.
        settings: `ways` (`eager`, of `OPTIONS` and `RUNTIMES`; `eager:1` is on one thread, `eager` on each number),
            `threads` (numbers), `rounds`, `seconds` to plan in (None = as long as it takes), and `tasks`, see
            `gst.placement.planning.Settings`.

    Returns:
        nodes (calls in its graph), parameters (of a step: all numbers of its state), threads (the most), and for each
        way its median, low and high ms: `eager:2` is as written on two threads; the ratios `over_eager`, `over_best`
        (of eager and compiled on all threads) and `over_direct` (of what was placed, with its guard to without), with
        intervals; `agrees_at`, for each way the least tolerance at which its outputs are those of the module as
        written, see `experiments.bench.speedup_score`; `winner`, `seconds_to_plan`, `reasons` of ways that failed, and
        `load`, the share of the cores that other processes took while these were timed; `room`, two times what it takes
        compiled on two threads over what on one: what a perfect plan of compiled operations for two cores could gain.
    """
    model, inputs, most = subject.model, subject.inputs, max(settings["threads"])
    torch.set_num_threads(most)
    runs: dict[str, Run] = {}
    started = time.perf_counter()
    chosen = Settings(tasks=tuple(settings["tasks"]))
    placed = gst.place(model, inputs, seconds=settings["seconds"], settings=chosen)
    runs[PLACED] = _with_threads(partial(placed.module(), *inputs), most)
    seconds = time.perf_counter() - started
    pair = {PLACED: runs[PLACED]}
    if placed.winner in placed.runs:
        pair[DIRECT] = _with_threads(partial(placed.runs[placed.winner].run, *inputs), most)
    reasons: dict[str, str] = {}
    agrees_at: dict[str, int | None] = {}
    want = pytree.tree_leaves(as_written(model, inputs))
    again = partial(as_written, model)
    for way, threads in _ways(settings):
        label = f"{way}:{threads}"
        try:
            runs[label] = _way(way, subject, threads)
            got = pytree.tree_leaves(runs[label]())
            agrees_at[label] = least_tolerance(got, want)
            if difference := differ_beyond_rounding(got, want, again, inputs):
                reasons[label] = f"wrong outputs: {difference}"
        except Exception as error:  # whatever a compiler raises
            runs.pop(label, None)
            reasons[label] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    torch.set_num_threads(most)
    got = pytree.tree_leaves(runs[PLACED]())
    agrees_at[PLACED] = least_tolerance(got, want)
    if difference := differ_beyond_rounding(got, want, again, inputs):
        reasons[PLACED] = f"wrong outputs: {difference}"
    in_turns = partial(measure, repetitions=settings["rounds"], time_of=rested, seconds=MOST_S)
    measured = in_turns(runs)
    alternating = in_turns(pair)  # so that both find the same in the caches
    given = model.parameters() if isinstance(model, nn.Module) else pytree.tree_leaves(inputs[0])
    sizes = {
        "nodes": len(subject.graph.graph.nodes), "parameters": sum(each.numel() for each in given), "threads": most,
    }  # fmt: skip
    load = max(each.load for each in measured.values())
    return {
        **sizes,
        **_figures(measured, most, reasons),
        "over_direct": _ratio(alternating, PLACED, DIRECT) if DIRECT in pair else None,
        "winner": placed.winner,
        "seconds_to_plan": seconds,
        "agrees_at": agrees_at,
        "reasons": reasons,
        "load": load,
    }


def _figures(measured: Mapping[str, Measurement], most: int, reasons: Mapping[str, str]) -> dict[str, Any]:
    ms = {label: [each.median_ms, each.low_ms, each.high_ms] for label, each in measured.items() if each.samples_ms}
    had = [label for label in (f"eager:{most}", f"compiled:{most}") if label in ms and label not in reasons]
    best = min(had, key=lambda label: ms[label][0])
    return {
        "ms": ms,
        "best_other": best,
        "over_eager": _ratio(measured, f"eager:{most}", PLACED),
        "over_best": _ratio(measured, best, PLACED),
        **(
            {"room": 2 * ms["compiled:2"][0] / ms["compiled:1"][0]} if {"compiled:1", "compiled:2"} <= ms.keys() else {}
        ),
    }


def _ratio(measured: Mapping[str, Measurement], above: str, below: str) -> tuple[float, float, float]:
    return ratio_interval(*(np.array(measured[label].samples_ms) for label in (above, below)))


# What a user has without gst ------------------------------------------------------------------------------------------


def _ways(settings: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Each way and number of threads, as they are asked for."""
    pairs: list[tuple[str, int]] = []
    for each in settings["ways"]:
        way, _, threads = each.partition(":")
        pairs += [(way, int(threads))] if threads else [(way, count) for count in settings["threads"]]
    return pairs


def _way(way: str, subject: Subject, threads: int) -> Run:
    if way == EAGER:
        return _with_threads(partial(as_written, subject.model, subject.inputs), threads)
    if way in RUNTIMES:
        if isinstance(subject.model, Step):
            raise ValueError("it runs inference alone")
        return RUNTIMES[way](subject.model, subject.inputs, threads)
    return _compiled(subject, threads, **OPTIONS[way])


def _with_threads(run: Run, threads: int) -> Run:
    def with_threads() -> Any:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        return run()

    return with_threads


def _compiled(subject: Subject, threads: int, **options: Any) -> Run:
    from torch._inductor import config

    torch.set_num_threads(threads)
    function = torch.compile(torch.fx.GraphModule(subject.graph, subject.graph.graph))

    def run() -> Any:
        with torch.no_grad():
            return function(*subject.flat_inputs)

    with config.patch({"cpp.threads": threads, **options}), compiled_by_threads():
        run()
    return _with_threads(run, threads)


EAGER = "eager"
OPTIONS: dict[str, dict[str, Any]] = {"compiled": {}, "frozen": {"freezing": True}}  # of the compiler


def main() -> None:
    answer = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what compilers print is no answer
    data, name, settings = sys.argv[1:]
    subject = training(name) if data == STEP else sample(Path(data), name)
    print(json.dumps(report(subject, json.loads(settings))), file=answer)


if __name__ == "__main__":
    main()
