"""`gst demo`: what it takes, does and prints."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gst.progress import Bars
from gst.waiting import wait_briefly


def add_demo(commands: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add it; `command(commands, name, run, summary, examples)` makes a subcommand as all of `gst` are."""
    demo = command(
        commands,
        "demo",
        _demo,
        "the whole loop on the devices found: capture, measure, learn, place, report",
        "gst demo\ngst demo --program inception --json runs/demo.json",
    )
    demo.add_argument("--program", default="rnnlm", help="a bundled program or MODULE:FUNCTION (default: %(default)s)")
    demo.add_argument("--devices", help="names separated by commas, see gst devices (default: all of them)")
    demo.add_argument(
        "--separate-memory",
        action="store_true",
        help="give each CPU device a memory of its own: values are copied, as between accelerators",
    )
    demo.add_argument("--out", type=Path, default=Path("runs/demo"), help="directory of results (default: %(default)s)")
    demo.add_argument(
        "--budget", type=int, default=40, help="plans to measure during the search (default: %(default)s)"
    )
    demo.add_argument("--seed", type=int, default=0, help="of the search (default: %(default)s)")
    demo.add_argument("--resume", action="store_true", help="go on with the measurements in --out")


def _demo(options: argparse.Namespace) -> dict[str, Any]:
    # Read when torch is loaded: spinning OpenMP threads would steal the cores of other devices.
    wait_briefly()
    from gst.placement.demo import demo
    from gst.report import headline

    with Bars() as bars:
        names = options.devices.split(",") if options.devices else None
        result = demo(
            options.program,
            options.out,
            names,
            options.separate_memory,
            options.budget,
            options.seed,
            options.resume,
            options.command,
            bars.show,
        )
    width = max(len(name) for name in result["plans"])
    print(f"{'plan':<{width}}  median ms  95 % interval")
    ran = {name: plan for name, plan in result["plans"].items() if plan["median_ms"] is not None}
    for name, plan in sorted(ran.items(), key=lambda item: item[1]["median_ms"]):
        print(f"{name:<{width}}  {plan['median_ms']:9.2f}  {plan['low_ms']:.2f} .. {plan['high_ms']:.2f}")
    print(headline(result))
    print(f"Look at {options.out / 'report.html'}")
    return result
