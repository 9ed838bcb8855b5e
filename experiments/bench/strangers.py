"""Programs that nobody here has tuned, placed by `gst.place`, beside eager and compiled PyTorch: the inference of
GraphNet samples, or training steps of the transformers library.

    python -m experiments.bench strangers --names mnasnet1_0,resnet18
    python -m experiments.bench strangers --steps --names bert,t5
    python -m experiments.bench strangers --data FOLDER --json strangers.json --plot strangers.png

Each sample runs in a process of its own with an empty compile cache, and its row is on disk as soon as it is known:
the same command goes on from there, and tries again what failed. A sample takes up to five minutes on two quiet cores:
one to plan, half a one for each way and number of threads that is compiled, and seconds to time them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.bench import child_environment
from experiments.bench.speedup_score import TOLERANCES, speedup_score
from experiments.bench.strangers_child import STEP
from experiments.bench.strangers_picture import draw
from experiments.bench.strangers_steps import STEPS
from experiments.reproductions.graphnet.reader import FxSource, read_sources
from gst.execution.measure import Log
from gst.machine.devices import machine_record
from gst.reporting.headline import MOST_LOAD
from gst.util.process import WAITING
from gst.util.progress import Bars, Progress

ROOM = 1.2  # at least, of the programs of which a mean is taken apart
SLOWER = 0.97  # of the best of eager and compiled: more than 3 % slower


def bench(
    data: Path | None, names: Sequence[str], out: Path, settings: Mapping[str, Any], time_limit_s: float,
    progress: Progress,
) -> dict[str, Any]:  # fmt: skip
    """Rows of the programs by name, see `experiments.bench.strangers_child.report`, and what they say together.

    Args:
        data: archive or folder of GraphNet samples; None for the training steps of `STEPS`.
        names: of them; all if empty.
        out: directory of the rows.
        settings: see `report`.
        time_limit_s: of each program.

    Raises:
        ValueError: there is no such program.
    """
    sources: Mapping[str, FxSource | str] = STEPS if data is None else {each.name: each for each in read_sources(data)}
    if missing := [name for name in names if name not in sources]:
        where = "the benchmark has no step" if data is None else f"{data} has no sample"
        raise ValueError(f"{where} {missing[0]!r}; there are {', '.join(sources)}")
    log = Log(out / "strangers.jsonl")
    done = {row["key"]: row["row"] for row in log.read() if "failed" not in row["row"]}
    rows: dict[str, dict[str, Any]] = {}
    chosen = list(names or sources)
    for number, name in enumerate(chosen):
        progress(f"placing and timing {name}", number, len(chosen))
        key = _key(sources[name], settings)
        if key not in done:
            source = sources[name]
            what = (STEP, source) if isinstance(source, str) else (str(data), name)
            done[key] = _row(what, settings, time_limit_s)
            log.append({"key": key, "name": name, "row": done[key]})
        rows[name] = done[key]
    progress("placed and timed", len(chosen), len(chosen))
    return {"machine": machine_record(), "settings": dict(settings), "programs": rows, **_together(rows)}


def _key(source: FxSource | str, settings: Mapping[str, Any]) -> str:
    content = [source] if isinstance(source, str) else [source.name, source.model, source.weights]
    text = json.dumps([*content, settings], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _row(what: tuple[str, str], settings: Mapping[str, Any], time_limit_s: float) -> dict[str, Any]:
    """Return the child's record of a program, see `experiments.bench.strangers_child`, or `{"failed": reason}`."""
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryFile("w+") as words:
        environment = {key: value for key, value in child_environment().items() if key not in WAITING}
        environment |= {"TORCHINDUCTOR_CACHE_DIR": cache, "OMP_NUM_THREADS": str(max(settings["threads"]))}
        command = [sys.executable, "-m", "experiments.bench.strangers_child", *what, json.dumps(settings)]
        try:
            child = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, stderr=words, text=True, timeout=time_limit_s
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"no result within {time_limit_s:g} s"}
        if child.returncode == 0:
            return json.loads(child.stdout)
        words.seek(0)
        return {"failed": (words.read().strip().splitlines() or [f"exit status {child.returncode}"])[-1][:300]}


def _together(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Summarise all programs: number that ran, geometric means, and names of slower, wrong or disturbed ones."""
    ran = {name: row for name, row in rows.items() if "failed" not in row}
    if not ran:
        return {"ran": 0, "failed": len(rows)}
    return {
        "ran": len(ran),
        "failed": len(rows) - len(ran),
        "speedup_scores": _scores(rows),
        "over_eager": statistics.geometric_mean(row["over_eager"][0] for row in ran.values()),
        "over_best": statistics.geometric_mean(row["over_best"][0] for row in ran.values()),
        "over_best_with_room": _mean_with_room(ran.values()),
        "over_each": _over_each(ran.values()),
        "slower": sorted(name for name, row in ran.items() if row["over_best"][0] < SLOWER),
        "wrong": sorted(name for name, row in ran.items() if "placed" in row["reasons"]),
        "busy": sorted(name for name, row in ran.items() if row["load"] > MOST_LOAD),
        "seconds_to_plan": statistics.median(row["seconds_to_plan"] for row in ran.values()),
    }


def _over_each(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the speedup of the placed program over each other variant: geometric mean, number of programs, and number
    of wins."""
    ratios: dict[str, list[float]] = {}
    for row in rows:
        for label, (median_ms, *_) in row["ms"].items():
            if label != "placed" and label not in row["reasons"]:
                ratios.setdefault(label, []).append(median_ms / row["ms"]["placed"][0])
    return {
        label: {"mean": statistics.geometric_mean(each), "programs": len(each), "ahead": sum(one > 1 for one in each)}
        for label, each in sorted(ratios.items())
    }


def _mean_with_room(rows: Iterable[Mapping[str, Any]]) -> float | None:
    ratios = [row["over_best"][0] for row in rows if row.get("room", 0.0) >= ROOM]
    return statistics.geometric_mean(ratios) if ratios else None


def _scores(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """GraphNet's S(t) for each t, by way; a sample that failed counts as one that the way fails on."""
    labels = sorted({label for row in rows.values() for label in row.get("agrees_at", {})})
    scores = {}
    for label in labels:
        programs = [_speedup(row, label) for row in rows.values()]
        scores[label] = {str(t): speedup_score(programs, t) for t in TOLERANCES}
    return scores


def _speedup(row: Mapping[str, Any], label: str) -> tuple[float, int | None] | None:
    eager = row.get("ms", {}).get(f"eager:{row.get('threads')}")
    if eager is None or label not in row["ms"]:
        return None
    return eager[0] / row["ms"][label][0], row["agrees_at"].get(label)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """The benchmark as its command asks; prints a line for each sample."""
    ways = options.ways or ("eager,compiled" if options.steps else "eager,compiled,frozen,onnxruntime,openvino")
    settings = {
        "ways": ways.split(","),
        "threads": [int(each) for each in options.threads.split(",")],
        "rounds": options.rounds,
        "seconds": options.seconds or None,
        "tasks": options.tasks.split(","),
    }
    names = [each for each in (options.names or "").split(",") if each]
    with Bars() as bars:
        data = None if options.steps else options.data
        result = bench(data, names, options.out, settings, options.time_limit, bars.show)
    result |= {"command": options.command}
    for name, row in result["programs"].items():
        print(_line(name, row))
    if result["ran"]:
        print(
            f"{result['ran']} programs: {result['over_eager']:.2f} times as fast as eager, {result['over_best']:.2f} "
            f"times as the best of eager and compiled; slower: {', '.join(result['slower']) or 'none'}"
        )
        if (with_room := result["over_best_with_room"]) is not None:
            print(f"{with_room:.2f} times as the best where two cores compiled leave room for {ROOM:g} times")
        scores = {label: scores["-5"] for label, scores in result["speedup_scores"].items()}
        print("GraphNet's S(-5): " + ", ".join(f"{label} {score:.2f}" for label, score in scores.items()))
        if result["busy"]:
            print(f"{len(result['busy'])} were timed while others used the cores: these times say little")
    if options.plot is not None:
        draw(result, options.plot)
    return result


def _line(name: str, row: Mapping[str, Any]) -> str:
    if "failed" in row:
        return f"{name:<34} failed: {row['failed']}"
    over = "  ".join(
        f"{what} {ratio:.2f} ({low:.2f} .. {high:.2f})"
        for what, (ratio, low, high) in (("over eager", row["over_eager"]), ("over the best", row["over_best"]))
    )
    return f"{name:<34} {row['ms']['placed'][0]:8.2f} ms  {over}  {row['winner']}, {row['seconds_to_plan']:.0f} s"
