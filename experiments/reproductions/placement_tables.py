"""The command line of ColocRL, HDP and GO on our workloads, by simulation of 2, 4 and 8 GPUs.

Rows are those of the papers as far as we have the model (InceptionV3, NMT, RNNLM, Transformer-XL, WaveNet). Times are
simulated milliseconds of one training step on the roofline machines of `gst.placement.machines`, never measured, one
of each seed. `make results` makes the tables in the folders' README.md of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from experiments.bench.placement_simulated import run
from gst.util.progress import Bars

PROGRAMS = "rnnlm,gnmt,transformer_xl,wavenet,inception"


def command_line(name: str, about: str, methods: Sequence[str]) -> None:
    """Run the command line of one of the three systems.

    Args:
        name: of the system.
        methods: compared; `MODULE:NAME` is imported.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default=PROGRAMS)
    parser.add_argument("--machines", default="gpus:2,gpus:4,gpus:8")
    parser.add_argument("--evaluations", type=int, default=1_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=Path(f"experiments/results/{name}.json"))
    options = parser.parse_args()
    command = f"python -m experiments.reproductions.{name} --evaluations {options.evaluations} --seeds {options.seeds}"
    with Bars() as bars:
        run(
            tuple(options.programs.split(",")), tuple(options.machines.split(",")), tuple(methods),
            options.evaluations, options.seeds, options.json, command, bars.show,
        )  # fmt: skip
