"""Train the job shop policy, and compare it and the search that it begins with rules and CP-SAT.

    python -m experiments.reproductions.jobshop train --seconds 560 --out jobshop.npz
    python -m experiments.reproductions.jobshop compare --json experiments/results/jobshop.json
    python -m experiments.reproductions.jobshop summary --picture experiments/reproductions/jobshop/gaps.png

Seconds are of the process's CPU time, since cores may be shared.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from experiments.reproductions.jobshop.compare import compare, draw, summary
from experiments.reproductions.jobshop.network import save_weights
from experiments.reproductions.jobshop.training import train
from gst.machine.devices import machine_record

RESULT = Path("experiments/results/jobshop.json")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", help="train weights on generated problems")
    training.add_argument("--seconds", type=float, default=560.0, help="of the process")
    training.add_argument("--steps", type=int, help="in place of seconds; does not depend on the machine")
    training.add_argument("--seed", type=int, default=0)
    training.add_argument("--out", type=Path, required=True)
    comparing = commands.add_parser("compare", help="run what the JSON does not hold yet")
    comparing.add_argument("--json", type=Path, default=RESULT)
    comparing.add_argument("--seconds", type=float, default=8.0, help="of search")
    comparing.add_argument("--seeds", type=int, default=3, help="of sampled rollouts and untrained weights")
    showing = commands.add_parser("summary", help="print the tables")
    showing.add_argument("--json", type=Path, default=RESULT)
    showing.add_argument("--picture", type=Path)
    options = parser.parse_args(arguments)
    if options.command == "train":
        state = train(options.seed, None if options.steps else options.seconds, options.steps, options.out)
        save_weights(options.out, state.average)
        lines = [f"step {step}: makespan {value:.4f} of untrained" for step, value in state.curve[-3:]]
        print("\n".join([*lines, f"{state.step} steps in {state.seconds:.0f} s"]))
    elif options.command == "compare":
        command = f"python -m experiments.reproductions.jobshop compare --seconds {options.seconds:g} "
        command += f"--seeds {options.seeds}"
        print(summary(compare(options.json, options.seconds, options.seeds, command, machine_record())))
    else:
        result = json.loads(options.json.read_text())
        print(summary(result))
        if options.picture is not None:
            draw(result, options.picture)


if __name__ == "__main__":
    main()
