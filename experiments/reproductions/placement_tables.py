"""The times behind the tables of ColocRL, HDP and GO, on our workloads, by simulation of 2, 4 and 8 GPUs.

Rows are those of the papers as far as we have the model (InceptionV3, NMT, RNNLM, Transformer-XL, WaveNet, NASNet for
AmoebaNet). Times are simulated milliseconds of one training step on the roofline machines of `gst.placement.machines`,
never measured, one of each seed. `make results` makes the tables in the folders' README.md of them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.bench.placement_simulated import row
from gst.machine.devices import machine_record
from gst.placement.methods import registered

PROGRAMS = ("rnnlm", "gnmt", "transformer_xl", "wavenet", "inception")
MACHINES = ("gpus:2", "gpus:4", "gpus:8")


def table(
    known: dict[str, Any], programs: Sequence[str], machines: Sequence[str], methods: Sequence[str], evaluations: int,
    seeds: int, path: Path, command: str,
) -> None:  # fmt: skip
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


def command_line(name: str, about: str, methods: Sequence[str]) -> None:
    """Run the command line of one of the three single-task systems.

    Args:
        name: of the system.
        methods: compared; `MODULE:NAME` is imported.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default=",".join(PROGRAMS))
    parser.add_argument("--machines", default=",".join(MACHINES))
    parser.add_argument("--evaluations", type=int, default=1_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=Path(f"experiments/results/{name}.json"))
    options = parser.parse_args()
    known = json.loads(options.json.read_text()) if options.json.exists() else {}
    command = f"python -m experiments.reproductions.{name} --evaluations {options.evaluations} --seeds {options.seeds}"
    table(
        known, options.programs.split(","), options.machines.split(","), registered(methods), options.evaluations,
        options.seeds, options.json, command,
    )  # fmt: skip
