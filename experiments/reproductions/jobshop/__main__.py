"""Place a job shop; train the job shop policy, and compare it and the search that it begins with rules and CP-SAT.

    python -m experiments.reproductions.jobshop place ta21.txt --seconds 8
    python -m experiments.reproductions.jobshop train --seconds 560 --out jobshop.npz
    python -m experiments.reproductions.jobshop compare --json experiments/results/jobshop.json
    python -m experiments.reproductions.jobshop summary --picture experiments/reproductions/jobshop/gaps.png

Seconds of training and of the comparison are CPU time of the process, since cores may be shared.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from experiments.reproductions.jobshop.compare import compare, draw, summary
from experiments.reproductions.jobshop.network import save_weights
from experiments.reproductions.jobshop.placing import place, table
from experiments.reproductions.jobshop.training import train
from gst.machine.devices import machine_record
from gst.util.writing import write_json

RESULT = Path("experiments/results/jobshop.json")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    placing = commands.add_parser("place", help="place one problem, in either of the usual text formats")
    placing.add_argument("file", type=Path)
    placing.add_argument("--seconds", type=float, default=10.0, help="of tabu search (default: %(default)g)")
    placing.add_argument("--policy", default="shipped", help="file of weights, 'shipped' or 'none'")
    placing.add_argument("--seed", type=int, default=0)
    placing.add_argument("--out", type=Path, help="directory of plan.json (default: runs/place/FILE)")
    placing.add_argument("--json", type=Path, help="write the result here")
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
    if options.command == "place":
        try:
            result = place(options.file, options.out, options.seconds, options.policy, options.seed)
        except (ValueError, OSError) as error:
            raise SystemExit(f"error: {error}") from None
        print(table(result))
        print(f"The plan is in {result['plan_file']}")
        if options.json is not None:
            write_json(options.json, result)
    elif options.command == "train":
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
