"""One GraphNet sample placed and timed beside what its user has without gst, in a process of its own.

    python -m experiments.bench.strangers_child DATA NAME SETTINGS.json    # out: one line of JSON

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
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import gst
from experiments.bench.executor import ratio_interval
from experiments.bench.speedup_score import least_tolerance
from experiments.bench.strangers_program import module_of
from experiments.bench.strangers_runtimes import RUNTIMES
from gst.data.graphnet import read_sources
from gst.devices.execute.measure import Measurement, measure, timed
from gst.programs import outputs_differ

PLACED, DIRECT = "placed", "direct"
REST_S = 0.01  # between runs, until idle threads of OpenMP sleep
Run = Callable[[], Any]


def report(data: Path, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of one sample.

    Args:
        data: archive or folder of samples.
        name: of the sample.
        settings: `ways` (of `WAYS` and `RUNTIMES`), `threads` (numbers), `rounds`, and `seconds` to plan in.

    Returns:
        nodes (calls in its graph), parameters, threads (the most), and for each way its median, low and high ms:
        `eager:2` is the module as written on two threads; the ratios `over_eager`, `over_best` (of eager and compiled
        on all threads) and `over_direct` (of what was placed with its guard to without, in turns), with intervals;
        `agrees_at`, for each way the least tolerance at which its outputs are those of the module as written, see
        `experiments.bench.speedup_score`; `winner`, `seconds_to_plan`, `reasons` of ways that failed, and `load`, the
        share of the cores that other processes took while these were timed.
    """
    source = next(each for each in read_sources(data) if each.name == name)
    module, inputs = module_of(source)
    most = max(settings["threads"])
    torch.set_num_threads(most)
    runs: dict[str, Run] = {}
    started = time.perf_counter()
    placed = gst.place(module, inputs, seconds=settings["seconds"])
    runs[PLACED], seconds = partial(placed.module(), *inputs), time.perf_counter() - started
    pair = {PLACED: runs[PLACED]}
    if placed.winner in placed.runs:
        pair[DIRECT] = partial(placed.runs[placed.winner].run, *inputs)
    reasons: dict[str, str] = {}
    agrees_at: dict[str, int | None] = {}
    with torch.no_grad():
        want = pytree.tree_leaves(module(*inputs))
        if not all(bool(each.isfinite().all()) for each in want if isinstance(each, Tensor)):
            raise ValueError("its random weights give numbers that are not finite, so that no output can be compared")
    for way in settings["ways"]:
        for threads in settings["threads"]:
            label = f"{way}:{threads}"
            try:
                runs[label] = {**WAYS, **RUNTIMES}[way](module, inputs, threads)
                got = pytree.tree_leaves(runs[label]())
                agrees_at[label] = least_tolerance(got, want)
                if difference := outputs_differ(got, want):
                    reasons[label] = f"wrong outputs: {difference}"
            except Exception as error:  # whatever a compiler raises
                runs.pop(label, None)
                reasons[label] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    torch.set_num_threads(most)
    got = pytree.tree_leaves(runs[PLACED]())
    agrees_at[PLACED] = least_tolerance(got, want)
    if difference := outputs_differ(got, want):
        reasons[PLACED] = f"wrong outputs: {difference}"
    measured = measure(runs, settings["rounds"], time_of=_rested)
    alternating = measure(pair, settings["rounds"], time_of=_rested)  # so that both find the same in the caches
    parameters = sum(each.numel() for each in module.parameters())
    sizes = {"nodes": len(module.graph.nodes), "parameters": parameters, "threads": most}
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


def _rested(run: Run) -> float:
    elapsed_ms = timed(run)
    time.sleep(REST_S)
    return elapsed_ms


def _figures(measured: Mapping[str, Measurement], most: int, reasons: Mapping[str, str]) -> dict[str, Any]:
    ms = {label: [each.median_ms, each.low_ms, each.high_ms] for label, each in measured.items() if each.samples_ms}
    had = [label for label in (f"eager:{most}", f"compiled:{most}") if label in ms and label not in reasons]
    best = min(had, key=lambda label: ms[label][0])
    return {
        "ms": ms,
        "best_other": best,
        "over_eager": _ratio(measured, f"eager:{most}", PLACED),
        "over_best": _ratio(measured, best, PLACED),
    }


def _ratio(measured: Mapping[str, Measurement], above: str, below: str) -> tuple[float, float, float]:
    return ratio_interval(*(np.array(measured[label].samples_ms) for label in (above, below)))


# What a user has without gst ------------------------------------------------------------------------------------------


def _with_threads(function: Callable[..., Any], inputs: Sequence[Tensor], threads: int) -> Run:
    def run() -> Any:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        with torch.no_grad():
            return function(*inputs)

    return run


def _eager(module: nn.Module, inputs: Sequence[Tensor], threads: int) -> Run:
    return _with_threads(module, inputs, threads)


def _compiled(module: nn.Module, inputs: Sequence[Tensor], threads: int, **options: Any) -> Run:
    from torch._inductor import config

    torch.set_num_threads(threads)
    run = _with_threads(torch.compile(torch.fx.GraphModule(module, module.graph)), inputs, threads)
    with config.patch({"cpp.threads": threads, **options}):
        run()
    return run


WAYS: dict[str, Callable[..., Run]] = {
    "eager": _eager,
    "compiled": _compiled,
    "frozen": partial(_compiled, freezing=True),
}


def main() -> None:
    answer = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what compilers print is no answer
    data, name, settings = sys.argv[1:]
    print(json.dumps(report(Path(data), name, json.loads(settings))), file=answer)


if __name__ == "__main__":
    main()
