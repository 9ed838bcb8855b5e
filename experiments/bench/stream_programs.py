"""Stream programs at length: random plans under bad luck, mutants against every interleaving, and how fast lowering is.

    python -m experiments.bench stream_programs --plans 1000 --json experiments/results/stream_program.json

Programs are the bundled workloads at the sizes of the tests. A plan puts every operation anywhere, on 1 to 8 memories
of 1 to 4 lanes, in a random order; half of the plans fuse random groups. It is lowered and checked, the hostile
interpreter runs it, and its outputs are compared with those of the program run in order. Mutants are those of programs
of six nodes, for which every interleaving is looked at.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from experiments.bench.hostile import hostile_run
from gst.lowering.calls import eager
from gst.lowering.lower import lowered, stream_program
from gst.lowering.race_check import check
from gst.lowering.stream_program import WAIT
from gst.machine.devices import machine_record
from gst.programs import outputs_differ

ROOT = Path(__file__).parents[2]
SHAPES = ((2, 1), (1, 2), (3, 1), (2, 2))  # memories, and lanes in each, of the programs of which mutants are made
REPORTED = 50  # plans between two lines of progress


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run stream programs and return a record of the runs; a difference in any output fails the command."""
    sys.path.append(str(ROOT))
    return {
        "plans": hostile_plans(options.plans, options.seed),
        "mutants": judged_mutants(options.programs, options.seed),
        "speed": speed(options.operations),
        "machine": machine_record(),
        "command": f"python -m experiments.bench stream_programs --plans {options.plans} --programs {options.programs} "
        "--json experiments/results/stream_program.json",
    }


def hostile_plans(plans: int, seed: int = 0) -> dict[str, Any]:
    """Lower, check and run so many random plans.

    Raises:
        AssertionError: outputs of a plan differ, or it takes more memory than the checker says.
    """
    from tests.lowering.test_stream_program import allocated, lanes_of, random_plan
    from tests.programs.small import SMALL, small_program

    names, began = sorted(SMALL), time.perf_counter()
    wanted = {name: eager(small_program(name)) for name in names}
    counts = dict.fromkeys(names, 0)
    steps = waits = copies = events = 0
    for number in range(plans):
        rng = np.random.default_rng([seed, number])
        name = names[number % len(names)]
        program, devices = small_program(name), lanes_of(int(rng.integers(1, 9)), int(rng.integers(1, 5)))
        streams = stream_program(program, random_plan(program, devices, rng), devices, allocated(program))
        peak = check(streams).peak_bytes
        ran = hostile_run(program, streams, number)
        difference = outputs_differ(ran.outputs, wanted[name])
        assert difference is None, f"plan {number} of {name}: {difference}"
        over = [memory for memory, most in ran.most_bytes.items() if most > peak[memory]]
        assert not over, f"plan {number} of {name} takes more than its peak in {over}"
        counts[name] += 1
        steps, events = steps + streams.num_steps, events + streams.num_events
        waits, copies = waits + int((streams.kind == WAIT).sum()), copies + int((streams.target >= 0).sum())
        if number % REPORTED == REPORTED - 1:
            print(f"{number + 1} plans equal to the program in {time.perf_counter() - began:.0f} s", flush=True)
    return {
        "equal": sum(counts.values()), "of": plans, "programs": counts, "steps": steps, "waits": waits,
        "copies": copies, "events": events,
    }  # fmt: skip


def judged_mutants(programs: int, seed: int = 0) -> dict[str, int]:
    """Mutants of random programs of six nodes: all, those that depend on luck by every interleaving, those of them that
    the checker refuses, and those that it refuses although they do not.

    Raises:
        AssertionError: a lowered program depends on luck, or its peak is not that of every interleaving.
    """
    from tests.lowering.interleavings import explore, mutants, random_work
    from tests.lowering.test_stream_program import is_caught

    every = wrong = caught = refused = 0
    for number in range(programs):
        memories, lanes = SHAPES[number % len(SHAPES)]
        program = random_work(np.random.default_rng([seed, number]), 6, memories, lanes)
        outcome = explore(program)
        assert not outcome.luck, f"program {number} depends on luck"
        peak = list(check(program).peak_bytes.values())
        assert peak == [outcome.peak[memory] for memory in range(memories)], f"peak of program {number}"
        for mutant in mutants(program).values():
            luck, refusal = explore(mutant).luck, is_caught(mutant)
            every, wrong = every + 1, wrong + luck
            caught, refused = caught + (luck and refusal), refused + (refusal and not luck)
    print(f"{caught} of {wrong} wrong mutants caught, {refused} of {every - wrong} others refused", flush=True)
    return {"programs": programs, "mutants": every, "wrong": wrong, "caught": caught, "refused_in_vain": refused}


def speed(operations: int, repetitions: int = 3) -> dict[str, Any]:
    """Median seconds of lowering, and of checking, a layered program of so many operations on 8 memories of 4 lanes."""
    from tests.lowering.test_stream_program import layered

    lower_s, check_s, work = [], [], layered(operations, 8, 4)
    check(lowered(*layered(1_000, 8, 4)))  # compiled
    for _ in range(repetitions):
        began = time.perf_counter()
        streams = lowered(*work)
        between = time.perf_counter()
        check(streams)
        lower_s.append(between - began)
        check_s.append(time.perf_counter() - between)
    print(f"lowered in {np.median(lower_s):.2f} s, checked in {np.median(check_s):.2f} s", flush=True)
    return {
        "operations": operations, "steps": streams.num_steps, "events": streams.num_events,
        "lower_s": round(float(np.median(lower_s)), 3), "check_s": round(float(np.median(check_s)), 3),
    }  # fmt: skip
