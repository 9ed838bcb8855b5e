"""The constructive policy on the open problems of `shared/data`, beside four controls at equal time, one table.

    python -m experiments.reproductions.public_problems policy --json experiments/results/public_policy.json

A problem is open if its bound is more than 1.5 % below its best baseline (`public_graphs_all.json` has both). The
policy is trained on generated problems alone, so that every family here is one that it never saw. Simulated, one core.
Each row has, for each seed in turns, the makespan of annealing for `--seconds` from the best baseline, and of the same
decoder with the shipped weights, with the weights before training, with weights that are a list schedule by upward
rank, and with decisions drawn at random: greedy, the best of so many as 30 % of the seconds allow, and annealing for
the rest of the seconds from the best of that and of the baselines. Baselines are computed once and not counted.
`--giant` does the same on generated graphs of 2,000 operations and more on 8 devices, for `--seconds` each.
`--summary` prints the table alone.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.figures.documents import table
from experiments.reproductions.public_problems.all_problems import DATA, machine_of, problems
from experiments.reproductions.public_problems.annealing import anneal
from experiments.reproductions.public_problems.baselines import baselines
from experiments.reproductions.public_problems.bounds import lower_bound
from experiments.reproductions.public_problems.formats import read_public_graph
from experiments.reproductions.public_problems.generated import generated_problem
from experiments.reproductions.public_problems.placing import SHARE
from experiments.reproductions.public_problems.problem import Problem, public_problem
from experiments.reproductions.public_problems.proposing import propose
from experiments.reproductions.public_problems.schedules import Schedule
from experiments.reproductions.public_problems.weights import initial_weights, load_weights, rule_weights
from gst.machine.devices import machine_record
from gst.placement.policies.constructive.network import Weights
from gst.util.progress import bar

OPEN = 1.015  # best baseline over the bound
GIANT = tuple((shape, nodes) for nodes in (2_000, 10_000) for shape in ("layers", "chains", "inception", "transformer"))
FIRST_SEED = 2 * 10**9  # of giant graphs: training draws from those below 10^9, validation from those above


class Policy(NamedTuple):
    """A policy of the table: its weights, how many ready operations it looks at, and whether it draws at random."""

    weights: Weights
    window: int | None
    is_uniform: bool


def policies(path: Path | None) -> dict[str, Policy]:
    """The policy and its three controls by name."""
    return {
        "trained": Policy(load_weights(path), None, False),
        "untrained": Policy(initial_weights(0), None, False),
        "rule": Policy(rule_weights(), 1, False),
        "uniform": Policy(rule_weights(), None, True),
    }


def runs(
    problem: Problem, start: Schedule, chosen: dict[str, Policy], seconds: float, seeds: Sequence[int]
) -> dict[str, list[float | None]]:
    """Makespans by method, one for each seed; None where the memories hold no schedule of the policy."""
    anneal(problem, start, steps=1)  # compiled before the clock starts
    results: dict[str, list[float | None]] = {}
    for seed in seeds:
        results.setdefault("annealing", []).append(anneal(problem, start, seconds, seed=seed)[0].makespan)
        for name, policy in chosen.items():
            options = {"seed": seed, "window": policy.window, "is_uniform": policy.is_uniform}
            propose(problem, policy.weights, samples=1, **options)
            begun = time.perf_counter()
            proposal = propose(problem, policy.weights, SHARE * seconds, **options)
            best = start
            if proposal.best is not None and proposal.best.makespan < start.makespan:
                best = proposal.best
            left = seconds - (time.perf_counter() - begun)
            after = anneal(problem, best, left, seed=seed)[0] if left > 0 else best
            for suffix, plan in (("greedy", proposal.greedy), ("best", proposal.best), ("annealed", after)):
                results.setdefault(f"{name} {suffix}", []).append(None if plan is None else plan.makespan)
            results.setdefault(f"{name} samples", []).append(proposal.samples)
    return results


def open_problems(data: Path, folder: Path, rows: dict[str, Any], only: str) -> Iterator[tuple[str, str, Path]]:
    """Name, family and file of each problem whose bound leaves room below its best baseline."""
    for family, path in problems(data, folder):
        name = f"{family}/{path.stem}"
        row = rows.get(name)
        if row is None or only not in name:
            continue
        if row["plans"][row["best_baseline"]] > OPEN * row["lower_bound"]:
            yield name, family, path


def summary(rows: dict[str, dict[str, Any]]) -> str:
    """A line for each family: geometric means of makespans over annealing's of the same seed, with intervals for all.

    The interval is that of a bootstrap over families, problems of one together, 95 %.
    """
    head = ["family", "problems", "operations", "baseline", "bound"]
    columns = ["untrained greedy", "trained greedy", "untrained best", "trained best", "uniform best", "rule annealed",
               "uniform annealed", "untrained annealed", "trained annealed"]  # fmt: skip
    lines, families = [], sorted({row["family"] for row in rows.values()})
    for family in [*families, ""]:
        mine = {name: row for name, row in rows.items() if family in ("", row["family"])}
        sizes = [row["nodes"] for row in mine.values()]
        cells = [f"{_mean(_ratios(mine, key)):.3f}" for key in ("baseline", "lower_bound")]
        for column in columns:
            ratios = _ratios(mine, column)
            words = f"{_mean(ratios):.3f}"
            if not family:
                low, high = _interval([_ratios({n: r for n, r in mine.items() if r["family"] == each}, column)
                                       for each in families])  # fmt: skip
                words += f" [{low:.3f}, {high:.3f}]"
            cells.append(words)
        lines.append([family or "all", str(len(mine)), f"{min(sizes)}..{max(sizes)}", *cells])
    return table([*head, *columns], lines)


def controls(rows: dict[str, dict[str, Any]]) -> str:
    """Gain of training: makespans of the trained policy over those of each control, with intervals."""
    pairs = [(f"trained {what}", f"{control} {what}") for what in ("greedy", "best", "annealed")
             for control in ("untrained", "rule", "uniform")]  # fmt: skip
    lines, families = [], sorted({row["family"] for row in rows.values()})
    for ours, other in [*pairs, ("trained annealed", "annealing")]:
        groups = []
        for family in families:
            mine = {name: row for name, row in rows.items() if row["family"] == family}
            both = zip(_ratios(mine, ours), _ratios(mine, other), strict=True)
            groups.append([one / two for one, two in both])
        low, high = _interval(groups)
        lines.append(
            [ours, other, f"{_mean([value for group in groups for value in group]):.3f} [{low:.3f}, {high:.3f}]"]
        )
    return table(["makespan of", "over that of", "ratio"], lines)


def _ratios(rows: dict[str, dict[str, Any]], column: str) -> list[float]:
    """Of each problem the geometric mean over seeds of a makespan over annealing's; where the memories held no
    schedule of the policy, the best baseline stands for it."""
    ratios = []
    for row in rows.values():
        reference = row["makespans"]["annealing"]
        values = [row[column]] * len(reference) if column in row else row["makespans"][column]
        values = [row["baseline"] if value is None else value for value in values]
        ratios.append(_mean([value / other for value, other in zip(values, reference, strict=True)]))
    return ratios


def _mean(ratios: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(ratios))))


def _interval(families: list[list[float]]) -> tuple[float, float]:
    generator = np.random.default_rng(0)
    draws = [
        _mean(np.concatenate([families[n] for n in generator.integers(0, len(families), len(families))]).tolist())
        for _ in range(2000)
    ]
    return float(np.quantile(draws, 0.025)), float(np.quantile(draws, 0.975))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with placement and placement.tar.xz")
    parser.add_argument("--problems", type=Path, default=Path("experiments/results/public_graphs_all.json"))
    parser.add_argument("--weights", type=Path, help="of train-policy, in place of those shipped")
    parser.add_argument("--seconds", type=float, default=1.0, help="of search for each method")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="", help="problems whose family or name has this")
    parser.add_argument("--giant", action="store_true", help="generated graphs of 2,000 operations and more")
    parser.add_argument("--summary", action="store_true", help="print the table of what is there")
    parser.add_argument("--json", type=Path, default=Path("experiments/results/public_policy.json"))
    options = parser.parse_args(arguments)
    result: dict[str, Any] = json.loads(options.json.read_text()) if options.json.exists() else {"rows": {}}
    settings = {"seconds": options.seconds, "seeds": options.seeds}
    if not options.summary:
        if result.get("settings", settings) != settings:
            raise SystemExit(f"{options.json} has other settings, {result['settings']}; give another --json")
        result |= {"settings": settings, "machine": machine_record(), "command": _command(options)}
        with tempfile.TemporaryDirectory() as folder:
            for name, family, problem, bound in bar(_problems(options, Path(folder)), desc="problems"):
                if name not in result["rows"]:
                    result["rows"][name] = _row(family, problem, bound, options)
                    options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(summary(result["rows"]), controls(result["rows"]), sep="\n\n")


def _problems(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, str, Problem, float]]:
    if options.giant:
        for number, (shape, nodes) in enumerate(GIANT):
            problem = generated_problem(FIRST_SEED + number, nodes, 8, shape)
            if options.only in f"{shape}/{nodes}":
                yield f"{shape}/{nodes}", f"{shape} {nodes}", problem, lower_bound(problem)
        return
    rows = json.loads(options.problems.read_text())["rows"]
    for name, family, path in open_problems(options.data, folder, rows, options.only):
        problem = public_problem(read_public_graph(path), machine_of(family, path.stem))
        yield name, family.split()[0], problem, rows[name]["lower_bound"]


def _row(family: str, problem: Problem, bound: float, options: argparse.Namespace) -> dict[str, Any]:
    admitted = [plan for plan in baselines(problem).values() if not plan.reason]
    start = min(admitted, key=lambda plan: plan.makespan)
    makespans = runs(problem, start, policies(options.weights), options.seconds, range(options.seeds))
    return {
        "family": family, "machine": problem.machine, "nodes": problem.num_nodes, "devices": len(problem.devices),
        "baseline": start.makespan, "lower_bound": min(bound, start.makespan), "makespans": makespans,
    }  # fmt: skip


def _command(options: argparse.Namespace) -> str:
    giant = f" --giant --json {options.json}" if options.giant else ""
    numbers = f"--seconds {options.seconds:g} --seeds {options.seeds}"
    return f"python -m experiments.reproductions.public_problems policy {numbers}{giant}"


if __name__ == "__main__":
    main()
