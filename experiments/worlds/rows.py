"""Rows of searches in a file: searched once, compared by ratios; and the options that both commands share."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.bootstrap import mean_interval
from experiments.worlds.world import WORLDS
from gst.machine.devices import machine_record
from gst.util.progress import bar
from gst.util.writing import write_json

Row = dict[str, Any]


def ratio_of(pairs: Iterable[tuple[float | None, float | None]]) -> list[float]:
    """Return the geometric mean of the first runtime of each pair / the second; both ends of its 95 % bootstrap
    interval; and the number of pairs that ran. Nothing without pairs."""
    logs = [math.log(mine / its) for mine, its in pairs if mine and its]
    return [*np.exp(mean_interval(logs)).tolist(), len(logs)] if logs else []


def or_none(ms: float) -> float | None:
    return None if math.isnan(ms) else float(ms)


def collect(
    path: Path, command: str, cases: Sequence[Row], rows_of: Callable[[Row, Sequence[Row]], Iterable[Row]], key: str,
    summary: Callable[[Sequence[Row]], Any],
) -> Row:  # fmt: skip
    """Add the rows of each case to a file, which is written after each case.

    Args:
        cases: values that all rows of a case share, such as its world and seed.
        rows_of: yields the missing rows of a case, given those that the file has.
        key: name of the summary of all rows in the file.

    Returns:
        The content of the file; empty if no row was missing.
    """
    before = json.loads(path.read_text()) if path.exists() else {"rows": [], "command": command}
    rows, command = before["rows"], "; ".join(dict.fromkeys([*before["command"].split("; "), command]))
    result: Row = {}
    for case in bar(cases):
        own = [row for row in rows if case.items() <= row.items()]
        if missing := [case | row for row in rows_of(case, own)]:
            rows += missing
            result = {"command": command, "rows": rows, key: summary(rows), "machine": machine_record()}
            write_json(path, result)
    return result


def parser_of(about: str | None, name: str, worlds: str, budgets: str) -> argparse.ArgumentParser:
    """Return a parser of the options of both commands, whose rows are those of `results/NAME.json`."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", default=worlds, help="of %(default)s")
    parser.add_argument("--seeds", type=int, default=10, help="machines of each case (default: %(default)s)")
    parser.add_argument("--budgets", default=budgets, help="numbers of measurements (default: %(default)s)")
    parser.add_argument("--evaluations", type=int, default=500, help="plans of each annealing (default: %(default)s)")
    results = Path(f"experiments/results/{name}.json")
    parser.add_argument("--json", type=Path, default=results, help="(default: %(default)s)")
    return parser


def listed(text: str, names: Iterable[str] = WORLDS) -> list[str]:
    """Return the names in a text with commas; raise ValueError if there is another one."""
    chosen = text.split(",")
    if unknown := set(chosen) - set(names):
        raise ValueError(f"there is no {min(unknown)!r}; there are {', '.join(names)}")
    return chosen


def main(run: Callable[[argparse.Namespace], Any], parser: argparse.ArgumentParser) -> None:
    """Run a command; a ValueError is one line and exit status 2."""
    try:
        run(parser.parse_args())
    except ValueError as error:
        parser.exit(2, f"{error}\n")
