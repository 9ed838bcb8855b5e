"""Tables of the published placement systems on our workloads, by simulation of 2, 4 and 8 GPUs.

Each system has a module: `colocrl`, `hdp`, `go`, `go_multitask`. The rows are those of the paper as far as we have the
model (InceptionV3, NMT, RNNLM, Transformer-XL, WaveNet, NASNet for AmoebaNet), the columns what it was compared with.
Times are simulated milliseconds of one training step on the roofline machines of `gst.placement.machines`, never
measured; an entry of several seeds is their median.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.benchmarks.placement_simulated import row
from gst.devices import machine_record

PROGRAMS = ("rnnlm", "gnmt", "transformer_xl", "wavenet", "inception")
MACHINES = ("gpus:2", "gpus:4", "gpus:8")


def table(
    known: dict[str, Any], programs: Sequence[str], machines: Sequence[str], methods: Sequence[str], evaluations: int,
    seeds: int, path: Path, command: str,
) -> dict[str, Any]:  # fmt: skip
    """Rows (`program on machine`) that `known` lacks are worked out, each written to `path` as soon as it is there."""
    settings = {"methods": list(methods), "evaluations": evaluations, "seeds": seeds}
    if known.get("settings", settings) != settings:
        raise SystemExit(f"{path} has other settings, {known['settings']}; give another --json")
    rows = known.get("rows", {})
    for program in programs:
        for machine in machines:
            if (key := f"{program} on {machine}") not in rows:
                rows[key] = row(program, machine, methods, evaluations, seeds)
                result = {"rows": rows, "settings": settings, "machine": machine_record(), "command": command}
                path.write_text(json.dumps(result, indent=1) + "\n")
    return {"rows": rows, "settings": settings}


def markdown(rows: Mapping[str, Mapping[str, Any]], columns: Mapping[str, Sequence[str]], learner: str) -> str:
    """A line for each row: the least of each column's baselines, the learner, and how much faster it is than the best
    of them."""
    head = f"| simulated ms | {' | '.join(columns)} | {learner} | best other / {learner} |"
    lines = [head, "|---" * (len(columns) + 3) + "|"]
    for key, each in rows.items():
        found = statistics.median(each["methods_ms"][learner])
        others = [min(_of(each, name) for name in names) for names in columns.values()]
        told = " | ".join(f"{ms:.2f}" for ms in [*others, found])
        lines.append(f"| {key} | {told} | {min(others) / found:.2f}x |")
    return "\n".join(lines)


def _of(each: Mapping[str, Any], name: str) -> float:
    """Milliseconds of a baseline or of a method; of a baseline that is not there, infinite."""
    if name in each["methods_ms"]:
        return float(statistics.median(each["methods_ms"][name]))
    several = [ms for label, ms in each["portfolio_ms"].items() if label.partition(":")[0] == name]
    return min(several, default=float("inf"))


def command_line(name: str, about: str, methods: Sequence[str], columns: Mapping[str, Sequence[str]]) -> None:
    """What the modules of the three single-task systems do; `name` is the learner's too."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default=",".join(PROGRAMS))
    parser.add_argument("--machines", default=",".join(MACHINES))
    parser.add_argument("--evaluations", type=int, default=1_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=Path(f"experiments/results/{name}.json"))
    options = parser.parse_args()
    known = json.loads(options.json.read_text()) if options.json.exists() else {}
    found = table(
        known, options.programs.split(","), options.machines.split(","), methods, options.evaluations, options.seeds,
        options.json, f"python -m experiments.reproductions.{name} --evaluations {options.evaluations} "
        f"--seeds {options.seeds}",
    )  # fmt: skip
    print(markdown(found["rows"], columns, name))
