"""`gst demo`: training on a growing graph, a cost model of a real program, and the placement loop, in three minutes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gst.reporting.demo import NEXT, gains, render_demo
from gst.util.progress import Bars, Progress
from gst.util.writing import atomic_write, write_json

if TYPE_CHECKING:
    from gst.cli.demo_parts import Sizes

Record = dict[str, Any]
SHARES = {"growth": 0.45, "ranking": 0.4, "placement": 1.0}  # of the seconds that are left, at most


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
    from gst.machine.load import SPOILT, LoadMeter, present_load

    meter = LoadMeter()
    setting = {**asdict(sizes), "nodes": list(sizes.nodes), "seed": seed}
    record: Record = {"command": command, "machine": machine_record(), "seconds": 0.0}
    for number, name in enumerate(NEXT, 1):
        path = out / f"{name}.json"
        finished = json.loads(path.read_text()) if resume and path.exists() else {}
        if finished.get("setting") != setting:
            path.unlink(missing_ok=True)
            of_part, load = LoadMeter(), present_load()
            smaller = demo_parts.QUICK if load > SPOILT and sizes == demo_parts.Sizes() else sizes
            limited = replace(smaller, seconds=SHARES[name] * max(sizes.seconds - meter.spent(), 0.0))
            run = getattr(demo_parts, name)
            label = f"{number} of {len(NEXT)}: "
            part = run(limited, out, seed, resume, lambda what, *counts, label=label: progress(label + what, *counts))
            finished = {**part, "setting": setting, "seconds": of_part.elapsed()}
            finished["smaller_at_load"] = load if smaller != sizes else None
            write_json(path, finished)
        record[name] = finished
        record["seconds"] += finished["seconds"]
        with atomic_write(out / "report.html") as file:
            file.write(render_demo(record))
    return record
