"""Third-party models under `gst.place`, compared with eager, compiled and frozen PyTorch, ONNX Runtime and OpenVINO.

    python -m experiments.bench third_party --names mnasnet1_0,resnet18
    python -m experiments.bench third_party --data FOLDER --json third_party.json

The models are GraphNet samples, for inference. Each runs in a process of its own with an empty compile cache, as a
user's does, and is placed first, so that the time to plan is that of a first visit. Its row is on disk as soon as it is
known: the same command goes on from there and tries again what failed. A sample takes up to five minutes on two quiet
cores. Packages that are not installed are named in `reasons`.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import gst
from experiments.bench.child import child_environment, command_of
from experiments.bench.executor import ratio_interval
from experiments.reproductions.graphnet.module import module_of
from experiments.reproductions.graphnet.reader import FxSource, read_sources
from gst.execution.measure import Log, Measurement, measure, rested
from gst.execution.on_accelerator import compiled_by_threads
from gst.machine.devices import machine_record
from gst.placement.planning import Settings
from gst.programs import differ_beyond_rounding
from gst.reporting.headline import MOST_LOAD
from gst.util.process import WAITING
from gst.util.progress import Progress, no_progress
from gst.whole_model.variants import as_written

HEADROOM = 1.2  # at least, of the programs of which a mean is reported separately
SLOWER = 0.97  # of the best of eager and compiled: more than 3 % slower
PLACED, DIRECT, EAGER = "placed", "direct", "eager"
MOST_S = 120.0  # of timing, except for the least number of rounds
OPTIONS: dict[str, dict[str, Any]] = {"compiled": {}, "frozen": {"freezing": True}}  # of torch.compile
Run = Callable[[], Any]

HELP = {
    "data": "archive or folder of GraphNet samples", "names": "of samples (default: all)",
    "variants": "compared with gst.place: eager, compiled, frozen, onnxruntime, openvino; eager:1 is on one thread",
    "threads": "that each variant runs on", "seconds": "to plan each; 0 = no limit",
    "tasks": "that are decided, with fusion or without", "rounds": "of timing",
    "time_limit": "seconds of each sample", "out": "where rows are kept",
}  # fmt: skip


def run(
    data: Path = Path("../shared/data/graphnet.tar.xz"),
    names: tuple[str, ...] = (),
    variants: tuple[str, ...] = (EAGER, "compiled", "frozen", "onnxruntime", "openvino"),
    threads: tuple[int, ...] = (1, 2),
    seconds: float = 60.0,
    tasks: tuple[str, ...] = ("placement", "schedule"),
    rounds: int = 25,
    time_limit: float = 900.0,
    out: Path = Path("runs/bench/third_party"),
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Place and time each sample.

    Returns:
        programs: for each the row of `report`, or `failed` with the reason; and the figures of `together`.

    Raises:
        ValueError: there is no such sample.
    """
    sources = {each.name: each for each in read_sources(data)}
    if missing := [name for name in names if name not in sources]:
        raise ValueError(f"{data} has no sample {missing[0]!r}; there are {', '.join(sources)}")
    settings = {"variants": variants, "threads": threads, "rounds": rounds, "seconds": seconds or None, "tasks": tasks}
    log = Log(out / "third_party.jsonl")
    done = {row["key"]: row["row"] for row in log.read() if "failed" not in row["row"]}
    rows: dict[str, dict[str, Any]] = {}
    for number, name in enumerate(names or sources):
        progress(f"placing and timing {name}", number, len(names or sources))
        key = _key(sources[name], settings)
        if key not in done:
            done[key] = _row(data, name, settings, time_limit)
            log.append({"key": key, "name": name, "row": done[key]})
        rows[name] = done[key]
        print(_line(name, rows[name]), flush=True)
    return {"machine": machine_record(), "settings": settings, "programs": rows, **together(rows)}


def _key(source: FxSource, settings: Mapping[str, Any]) -> str:
    text = json.dumps([source.name, source.model, source.weights, settings], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _row(data: Path, name: str, settings: Mapping[str, Any], time_limit_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryFile("w+") as words:
        environment = {key: value for key, value in child_environment().items() if key not in WAITING}
        environment |= {"TORCHINDUCTOR_CACHE_DIR": cache, "OMP_NUM_THREADS": str(max(settings["threads"]))}
        command = command_of("third_party:report", data=str(data), name=name, settings=settings)
        try:
            child = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, stderr=words, text=True, timeout=time_limit_s
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"no result within {time_limit_s:g} s"}
        if child.returncode == 0:
            return dict(json.loads(child.stdout))
        words.seek(0)
        return {"failed": (words.read().strip().splitlines() or [f"exit status {child.returncode}"])[-1][:300]}


def together(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return geometric means over the samples that ran, and the names of slower, wrong and disturbed ones."""
    ran = {name: row for name, row in rows.items() if "failed" not in row}
    if not ran:
        return {"ran": 0, "failed": len(rows)}
    roomy = [row["over_best"][0] for row in ran.values() if row.get("room", 0.0) >= HEADROOM]
    return {
        "ran": len(ran),
        "failed": len(rows) - len(ran),
        "over_eager": statistics.geometric_mean(row["over_eager"][0] for row in ran.values()),
        "over_best": statistics.geometric_mean(row["over_best"][0] for row in ran.values()),
        "over_best_with_room": statistics.geometric_mean(roomy) if roomy else None,
        "over_each": _over_each(ran.values()),
        "slower": sorted(name for name, row in ran.items() if row["over_best"][0] < SLOWER),
        "wrong": sorted(name for name, row in ran.items() if PLACED in row["reasons"]),
        "busy": sorted(name for name, row in ran.items() if row["load"] > MOST_LOAD),
        "seconds_to_plan": statistics.median(row["seconds_to_plan"] for row in ran.values()),
    }


def _over_each(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the speedup over each other variant: geometric mean, number of programs, and number of wins."""
    ratios: dict[str, list[float]] = {}
    for row in rows:
        for label, (median_ms, *_) in row["ms"].items():
            if label != PLACED and label not in row["reasons"]:
                ratios.setdefault(label, []).append(median_ms / row["ms"][PLACED][0])
    return {
        label: {"mean": statistics.geometric_mean(each), "programs": len(each), "ahead": sum(one > 1 for one in each)}
        for label, each in sorted(ratios.items())
    }


def _line(name: str, row: Mapping[str, Any]) -> str:
    if "failed" in row:
        return f"{name:<34} failed: {row['failed']}"
    over = "  ".join(
        f"{what} {ratio:.2f} ({low:.2f} .. {high:.2f})"
        for what, (ratio, low, high) in (("over eager", row["over_eager"]), ("over the best", row["over_best"]))
    )
    return f"{name:<34} {row['ms'][PLACED][0]:8.2f} ms  {over}  {row['winner']}, {row['seconds_to_plan']:.0f} s"


# One sample, in a process of its own ---------------------------------------------------------------------------------


def report(data: str, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Place one sample and time it.

    Returns:
        nodes, parameters, threads (the most); `ms`: for each variant its median and interval, `eager:2` is as written
        on two threads; the ratios `over_eager`, `over_best` (of eager and compiled on all threads) and `over_direct`
        (placed with its check of a call, over without), with intervals; `winner`, `seconds_to_plan`, `reasons` of
        variants that failed or are wrong, and `load`, the share of the cores that other processes took; `room`, twice
        the compiled time on two threads over that on one: the largest possible gain of a plan for two cores.

    Raises:
        ValueError: the random weights give outputs that are not finite.
    """
    module, inputs = module_of(next(each for each in read_sources(Path(data)) if each.name == name))
    with torch.no_grad():
        want = pytree.tree_leaves(module(*inputs))
    if not all(bool(each.isfinite().all()) for each in want if isinstance(each, Tensor)):
        raise ValueError("its random weights give numbers that are not finite, so that no output can be compared")
    most, again = max(settings["threads"]), partial(as_written, module)
    torch.set_num_threads(most)
    started = time.perf_counter()
    chosen = Settings(tasks=tuple(settings["tasks"]))
    placed = gst.place(module, inputs, seconds=settings["seconds"], settings=chosen)
    runs = {PLACED: _with_threads(partial(placed.module(), *inputs), most)}
    seconds = time.perf_counter() - started
    direct = dict(runs)
    if placed.winner in placed.runs:
        direct[DIRECT] = _with_threads(partial(placed.runs[placed.winner].run, *inputs), most)
    reasons: dict[str, str] = {}

    def check(label: str, variant: Run) -> None:
        if difference := differ_beyond_rounding(pytree.tree_leaves(variant()), want, again, inputs):
            reasons[label] = f"wrong outputs: {difference}"

    for variant, threads in _variants(settings):
        label = f"{variant}:{threads}"
        try:
            runs[label] = _made(variant, module, inputs, threads)
            check(label, runs[label])
        except Exception as error:  # whatever a compiler raises
            runs.pop(label, None)
            reasons[label] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    torch.set_num_threads(most)
    check(PLACED, runs[PLACED])
    alternately = partial(measure, repetitions=settings["rounds"], time_of=rested, seconds=MOST_S)
    measured, guarded = alternately(runs), alternately(direct)
    return {
        "nodes": len(module.graph.nodes),
        "parameters": sum(each.numel() for each in module.parameters()),
        "threads": most,
        **_figures(measured, most, reasons),
        "over_direct": _ratio(guarded, PLACED, DIRECT) if DIRECT in direct else None,
        "winner": placed.winner,
        "seconds_to_plan": seconds,
        "reasons": reasons,
        "load": max(each.load for each in measured.values()),
    }


def _figures(measured: Mapping[str, Measurement], most: int, reasons: Mapping[str, str]) -> dict[str, Any]:
    ms = {label: [each.median_ms, each.low_ms, each.high_ms] for label, each in measured.items() if each.samples_ms}
    usual = [label for label in (f"{EAGER}:{most}", f"compiled:{most}") if label in ms and label not in reasons]
    best = min(usual, key=lambda label: ms[label][0])
    figures = {"ms": ms, "best_other": best, "over_eager": _ratio(measured, f"{EAGER}:{most}", PLACED)}
    if {"compiled:1", "compiled:2"} <= ms.keys():
        figures["room"] = 2 * ms["compiled:2"][0] / ms["compiled:1"][0]
    return figures | {"over_best": _ratio(measured, best, PLACED)}


def _ratio(measured: Mapping[str, Measurement], above: str, below: str) -> tuple[float, float, float]:
    return ratio_interval(*(np.array(measured[label].samples_ms) for label in (above, below)))


def _variants(settings: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return each variant and number of threads; `eager:1` names one number, `eager` stands for all."""
    pairs: list[tuple[str, int]] = []
    for each in settings["variants"]:
        variant, _, threads = each.partition(":")
        pairs += [(variant, int(threads))] if threads else [(variant, count) for count in settings["threads"]]
    return pairs


def _made(variant: str, module: nn.Module, inputs: Sequence[Tensor], threads: int) -> Run:
    if variant == EAGER:
        return _with_threads(partial(as_written, module, inputs), threads)
    if variant in RUNTIMES:
        return RUNTIMES[variant](module, inputs, threads)
    return _compiled(module, inputs, threads, **OPTIONS[variant])


def _with_threads(run: Run, threads: int) -> Run:
    def with_threads() -> Any:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        return run()

    return with_threads


def _compiled(module: Any, inputs: Sequence[Tensor], threads: int, **options: Any) -> Run:
    from torch._inductor import config

    torch.set_num_threads(threads)
    function = torch.compile(torch.fx.GraphModule(module, module.graph))

    def run() -> Any:
        with torch.no_grad():
            return function(*inputs)

    with config.patch({"cpp.threads": threads, **options}), compiled_by_threads():
        run()
    return _with_threads(run, threads)


def onnx_runtime(module: nn.Module, inputs: Sequence[Tensor], threads: int) -> Run:
    """Export a module to ONNX, for ONNX Runtime, which optimises the graph.

    Raises:
        ValueError: a package is not installed.
    """
    _want("onnx", "onnxscript", "onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
    with tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory) / "model.onnx")
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(module, tuple(inputs), path, dynamo=True, verbose=False)
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    feeds = {name: value.numpy() for name, value in zip(names, inputs, strict=True)}
    return lambda: [torch.from_numpy(each) for each in session.run(None, feeds)]


def openvino(module: nn.Module, inputs: Sequence[Tensor], threads: int) -> Run:
    """Compile a module by OpenVINO for latency, in single precision.

    Raises:
        ValueError: the package is not installed.
    """
    _want("openvino")
    import openvino

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = openvino.convert_model(module, example_input=tuple(inputs))
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
    arrays = [each.numpy() for each in inputs]

    def run() -> list[Tensor]:
        results = request.infer(arrays, share_inputs=True, share_outputs=True)
        return [torch.from_numpy(results[number]) for number in range(len(results))]

    return run


def _want(*packages: str) -> None:
    if missing := [name for name in packages if find_spec(name) is None]:
        raise ValueError(f"{missing[0]} is not installed; pip install {' '.join(packages)}")


RUNTIMES: dict[str, Callable[..., Run]] = {"onnxruntime": onnx_runtime, "openvino": openvino}
