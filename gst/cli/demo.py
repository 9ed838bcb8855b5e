"""`gst demo`: training on a growing graph, a cost model of a real program, and the placement loop, in three minutes."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gst.reporting.demo import NEXT, gains, render_demo
from gst.util.process import wait_briefly
from gst.util.progress import Bars, Progress
from gst.util.writing import atomic_write, write_json

if TYPE_CHECKING:
    from gst.cli.demo_parts import Sizes

Record = dict[str, Any]


def add(commands: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the subcommand; `command(commands, name, run, summary, examples)` makes it like all those of `gst`."""
    demo = command(
        commands, "demo", _demo,
        "show in three minutes what the project is for: training, ranking and placement, in one report",
        "gst demo\n"
        "gst demo --quick                                  # the same three parts, smaller, in one minute\n"
        "gst demo --out runs/demo --json runs/demo.json --resume",
    )  # fmt: skip
    demo.add_argument("--quick", action="store_true", help="smaller graphs and fewer steps: one minute on two cores")
    demo.add_argument("--out", type=Path, default=Path("runs/demo"), help="directory of results (default: %(default)s)")
    demo.add_argument("--seed", type=int, default=0, help="seed of all random draws (default: %(default)s)")
    demo.add_argument("--resume", action="store_true", help="keep the parts that are finished in --out")


def _demo(options: argparse.Namespace) -> Record:
    wait_briefly()  # before torch is loaded: spinning OpenMP threads would take the cores of other devices
    from gst.cli.demo_parts import QUICK, Sizes

    sizes = QUICK if options.quick else Sizes()
    with Bars() as bars:
        record = run_demo(sizes, options.out, options.seed, options.resume, options.command, bars.show)
    for name, (value, words, _) in gains(record).items():
        print(f"{NEXT[name][0]}: {value} {words}")
    print(f"Look at {options.out / 'report.html'}")
    return record


def run_demo(sizes: Sizes, out: Path, seed: int, resume: bool, command: str, progress: Progress) -> Record:
    """Run the three parts and write a JSON file for each and `report.html` to `out` as soon as a part ends.

    Args:
        resume: True if a part that is finished in `out`, with the same sizes and seed, is not run again.
        command: shown in the report.
    """
    from gst.cli import demo_parts
    from gst.machine.devices import machine_record

    setting = {**asdict(sizes), "nodes": list(sizes.nodes), "seed": seed}
    record: Record = {"command": command, "machine": machine_record(), "seconds": 0.0}
    for number, name in enumerate(NEXT, 1):
        path = out / f"{name}.json"
        finished = json.loads(path.read_text()) if resume and path.exists() else {}
        if finished.get("setting") != setting:
            path.unlink(missing_ok=True)
            started = time.perf_counter()
            run = getattr(demo_parts, name)
            label = f"{number} of {len(NEXT)}: "
            part = run(sizes, out, seed, resume, lambda what, *counts, label=label: progress(label + what, *counts))
            finished = {**part, "setting": setting, "seconds": time.perf_counter() - started}
            write_json(path, finished)
        record[name] = finished
        record["seconds"] += finished["seconds"]
        with atomic_write(out / "report.html") as file:
            file.write(render_demo(record))
    return record
