"""Time of a step with 1 to 256 processes, by a model of links fed with figures measured on one machine.

    python -m experiments.bench scale --measured distributed.json --link wifi:2000:0.1 --plot scale.png

A step takes the computation and planning, as measured, and collectives with a latency a and a bandwidth b, none hidden
behind the computation (Thakur, Rabenseifner and Gropp, Optimization of Collective Communication in MPICH, 2005):

    all-to-all of m bytes per process      (P - 1) a + m (P - 1) / (P b)
    ring all-reduce of n bytes             2 (P - 1) a + 2 n (P - 1) / (P b)
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from statistics import StatisticsError, linear_regression
from typing import Any

from gst.util.progress import Progress, no_progress

PROCESSES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Link:
    """Links of a process to the others.

    Args:
        latency_us: of a message, microseconds.
        gigabytes_s: 10^9 bytes a second in each direction.
    """

    latency_us: float
    gigabytes_s: float


LINKS = {"10 GbE": Link(30.0, 1.25), "100 GbE": Link(5.0, 12.5), "NVLink": Link(3.0, 450.0)}


@dataclass(frozen=True)
class Step:
    """Of one process.

    Args:
        compute_ms: forward, backward and optimizer, without communication.
        plan_ms: planning and handling of rows, whatever the number of processes.
        plan_each_ms: more of it for each process, as all plan for all.
        pull_bytes, push_bytes: rows asked for and written, of which (P - 1) / P travel.
        gradient_bytes: of the parameters.
    """

    compute_ms: float
    plan_ms: float
    plan_each_ms: float
    pull_bytes: float
    push_bytes: float
    gradient_bytes: float


HELP = {
    "measured": "result of the benchmark distributed (default: measure now, on this machine)",
    "link": "NAME:MICROSECONDS:GIGABYTES of others than 10 GbE, 100 GbE and NVLink: latency and 10^9 bytes a second",
    "compute_ms": "of a step on your accelerator, in place of the measured one",
    "plot": "where to draw it: a PNG or SVG file",
}


def run(
    measured: Path | None = None,
    link: tuple[str, ...] = (),
    compute_ms: float | None = None,
    plot: Path | None = None,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Simulate a measured step over all links, print where communication takes over, and return `simulated`."""
    if measured is None:
        from experiments.bench.distributed import run as run_distributed

        figures = run_distributed(progress=progress)
    else:
        figures = figures_in(measured)
    result = simulated(step_of(figures, compute_ms), LINKS | dict(link_of(text) for text in link))
    if plot:
        draw(result, plot)
    for name, over in result["takes_over"].items():
        where = f"takes over with {over} processes" if over else "communication never takes as long as computing"
        print(f"{name:<12} {where}; most of it: {result['first'][name]}")
    return result


def figures_in(path: Path) -> dict[str, Any]:
    """Record that `python -m experiments.bench distributed --json` wrote.

    Raises:
        ValueError: it is not JSON.
        OSError: it cannot be read.
    """
    try:
        figures: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); pass the JSON of experiments.bench distributed") from error
    return figures


def link_of(text: str) -> tuple[str, Link]:
    """The name and the link in `name:microseconds:gigabytes`.

    Raises:
        ValueError: it does not read so.
    """
    try:
        name, latency, bandwidth = text.rsplit(":", 2)
        found = Link(float(latency), float(bandwidth))
    except ValueError:
        found = Link(-1.0, 0.0)
    if not (0 <= found.latency_us < math.inf and 0 < found.gigabytes_s < math.inf):
        raise ValueError(f"--link is {text!r}; wanted a name, a latency and a bandwidth above 0, as wifi:2000:0.1")
    return name, found


def step_of(result: Mapping[str, Any], compute_ms: float | None = None) -> Step:
    """Return the step that the benchmark distributed measured, with another time of its computation if one is given.

    Raises:
        ValueError: it is the result of something else.
    """
    try:
        processes = int(result["setting"]["processes"])
        others = (processes - 1) / processes
        own_ms = float(result["step_ms"]) - float(result["table_ms"])
        counts, planning = zip(*((int(count), float(ms)) for count, ms in result["planning_ms"].items()), strict=True)
        line = linear_regression(counts, planning)
        return Step(
            own_ms if compute_ms is None else compute_ms,
            max(0.0, line.intercept),
            max(0.0, line.slope),
            float(result["pull_bytes"]) / others,
            float(result["push_bytes"]) / others,
            float(result["gradient_bytes"]),
        )
    except (KeyError, TypeError, AttributeError, ZeroDivisionError, StatisticsError) as error:
        raise ValueError(f"no result of experiments.bench distributed ({error!r}); pass one to --measured") from error


def times_ms(step: Step, link: Link, processes: int) -> dict[str, float]:
    """Return the milliseconds of each part of a step."""
    others, latency_ms = processes - 1, link.latency_us / 1e3
    per_ms = link.gigabytes_s * 1e6

    def exchange(sent: float) -> float:
        return others * latency_ms + sent * others / processes / per_ms

    return {
        "compute": step.compute_ms,
        "plan": step.plan_ms + step.plan_each_ms * processes if processes > 1 else 0.0,
        "table": exchange(step.pull_bytes) + exchange(step.push_bytes),
        "gradients": 2 * exchange(step.gradient_bytes),
    }


def simulated(step: Step, links: Mapping[str, Link] = LINKS, processes: Sequence[int] = PROCESSES) -> dict[str, Any]:
    """Simulate all numbers of processes over all links.

    Returns:
        `takes_over`: by link, the least number of processes with which communication and planning take longer than the
        computation, None if they never do. `first`: what takes the most of it there, or with the most processes.
        `efficiency`: of the most processes, graphs a second over those of as many processes that need not communicate.
        `curves`: by link, for each number of processes the times in ms, `speedup` and `efficiency`.
    """
    curves = {
        name: [{"processes": count, **_point(times_ms(step, link, count), count)} for count in processes]
        for name, link in links.items()
    }
    return {
        "takes_over": {name: _first_over(curve) for name, curve in curves.items()},
        "first": {name: _largest(curve) for name, curve in curves.items()},
        "efficiency": {name: curve[-1]["efficiency"] for name, curve in curves.items()},
        "step": asdict(step),
        "links": {name: asdict(link) for name, link in links.items()},
        "curves": curves,
    }


def _point(times: dict[str, float], processes: int) -> dict[str, float]:
    efficiency = times["compute"] / sum(times.values())
    return {**times, "speedup": processes * efficiency, "efficiency": efficiency}


def _over(point: Mapping[str, float]) -> bool:
    return point["plan"] + point["table"] + point["gradients"] > point["compute"]


def _first_over(curve: Sequence[Mapping[str, float]]) -> int | None:
    return next((int(point["processes"]) for point in curve if _over(point)), None)


def _largest(curve: Sequence[Mapping[str, float]]) -> str:
    point = next((point for point in curve if _over(point)), curve[-1])
    return max(("plan", "table", "gradients"), key=lambda part: point[part])


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Speedups over the number of processes, one line for each link, as an SVG or PNG.

    Raises:
        ValueError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ValueError("--plot draws with matplotlib, which is not here; pip install matplotlib") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    for (name, curve), style in zip(result["curves"].items(), cycle(("-", "-", "--")), strict=False):
        (line,) = axes.plot(
            [p["processes"] for p in curve], [p["speedup"] for p in curve], marker="o", linestyle=style, label=name
        )
        over = [point for point in curve if _over(point)][:1]
        axes.scatter([p["processes"] for p in over], [p["speedup"] for p in over], s=140, facecolors="none",
                     edgecolors=line.get_color(), linewidths=2)  # fmt: skip
    counts = [point["processes"] for point in curve]
    axes.plot(counts, counts, color="0.7", label="no communication")
    axes.set(xscale="log", yscale="log", xlabel="processes", ylabel="graphs a second, over one process")
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_yticks([1, 10, 100], ["1", "10", "100"])
    axes.minorticks_off()
    axes.set_title("GST training; circled: communication takes longer than computing", fontsize=9)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)
