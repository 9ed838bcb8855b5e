"""Measured runtimes of plans that a model never saw: of programs it knows, and of programs it never saw.

    gst measure rnnlm --devices cpu:0,cpu:1,cpu:0-1 --random 500 --out runs/measured/rnnlm     # and others
    python -m experiments.reproductions.measured_plans --measured runs/measured/* \\
        --json experiments/results/measured_plans.json

`seen`: a fifth of the plans of each program is held out, and a model learns from the rest of that program. `unseen`:
each program is left out once, and a model learns from four fifths of the plans of each other one. `tau` is of
`gst.cost.CostModel`; `linear_tau` of ridge regression on summed costs (of each device the profiled time placed on it,
of each core the time that it is taken, edges and bytes that cross threads), with the penalty chosen on a fifth of what
it learns from. Both learn the runtime relative to the profiled time on the best single device, and are scored by
Kendall's tau within the program. `repeats_tau`: between the medians of every other run of the same plans, so what
noise leaves.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from tqdm import tqdm

from gst.cost import CostModel
from gst.cost.metrics import kendall_tau
from gst.graphs.graph import Graph
from gst.lowering.plan import Plan
from gst.machine.devices import core_use, machine_record
from gst.placement.measured_plans import MeasuredSet, read_measured
from gst.programs import NUM_OPCODES

PENALTIES = (1e-4, 1e-2, 1.0, 100.0)
Part = tuple["Measured", np.ndarray]
"""A program and numbers of some of its plans."""


@dataclass(frozen=True, eq=False)
class Measured:
    """A program and its plans that ran."""

    source: MeasuredSet

    @property
    def name(self) -> str:
        return str(self.source.header["name"])

    @cached_property
    def graph(self) -> Graph:
        """Targets: runtime relative to the profiled time on the best single device."""
        graph = self.source.graph()
        return replace(graph, targets=graph.targets / 1e3 / self._best_single_us)

    @cached_property
    def sums(self) -> np.ndarray:
        """(plans, summed costs), times relative to the best single device, crossings to all edges."""
        ran = zip(self.source.plans, self.source.measurements, strict=True)
        return np.stack([self._summed(plan) for plan, seen in ran if seen.outcome == "ok"])

    @cached_property
    def repeats_tau(self) -> float:
        ran = [each.samples_ms for each in self.source.measurements if each.outcome == "ok"]
        return kendall_tau(*(np.array([np.median(samples[first::2]) for samples in ran]) for first in (0, 1)))

    @property
    def _best_single_us(self) -> float:
        return float(self.source.profiled.times_us.sum(1).min())

    def _summed(self, plan: Plan) -> np.ndarray:
        profiled, placement = self.source.profiled, plan.placement
        use = core_use(profiled.devices)
        time = profiled.times_us[placement, np.arange(len(placement))] / self._best_single_us
        by_device = np.bincount(placement, time, len(use))
        producers, consumers = profiled.graph.edges
        thread = use.argmax(1)
        crossing = thread[placement[producers]] != thread[placement[consumers]]
        size = profiled.output_bytes[producers]
        return np.r_[by_device, by_device @ use, crossing.mean(), (crossing * size).sum() / max(size.sum(), 1)]


def gst_model(train: Sequence[Part], test: Part, seed: int, epochs: int) -> np.ndarray:
    model = CostModel(num_opcodes=NUM_OPCODES, log_config=False, seed=seed)
    model.fit([_some(program.graph, plans) for program, plans in train], epochs)
    return model.predict(_some(test[0].graph, test[1]))


def linear(train: Sequence[Part], test: Part, seed: int, epochs: int) -> np.ndarray:
    x = np.concatenate([program.sums[plans] for program, plans in train])
    y = np.concatenate([program.graph.targets[plans] for program, plans in train])
    order = np.random.default_rng(seed).permutation(len(y))
    held, rest = order[: len(y) // 5], order[len(y) // 5 :]
    errors = [np.square(_ridge(x[rest], y[rest], x[held], penalty) - y[held]).mean() for penalty in PENALTIES]
    return _ridge(x, y, test[0].sums[test[1]], PENALTIES[int(np.argmin(errors))])


def _ridge(x: np.ndarray, y: np.ndarray, asked: np.ndarray, penalty: float) -> np.ndarray:
    mean, deviation = x.mean(0), np.maximum(x.std(0), 1e-9)
    scaled = (x - mean) / deviation
    weights = np.linalg.solve(scaled.T @ scaled + penalty * np.eye(x.shape[1]), scaled.T @ (y - y.mean()))
    return (asked - mean) / deviation @ weights + y.mean()


METHODS: dict[str, Callable[[Sequence[Part], Part, int, int], np.ndarray]] = {"tau": gst_model, "linear_tau": linear}


def run(programs: Sequence[Measured], seeds: int, epochs: int) -> dict[str, object]:
    """Figures of each program, `seen` and (with two programs or more) `unseen`, and their means."""
    tasks = ["seen", *(["unseen"] if len(programs) > 1 else [])]
    found = {task: {p.name: {name: [] for name in METHODS} for p in programs} for task in tasks}  # type: ignore[var-annotated]
    with tqdm(total=len(tasks) * seeds * len(programs), dynamic_ncols=True) as bar:
        for seed in range(seeds):
            held = {program.name: _split(program, seed) for program in programs}
            for program in programs:
                others = [(other, held[other.name][1]) for other in programs if other is not program]
                test, rest = held[program.name]
                everything = np.sort(np.r_[test, rest])
                splits = {"seen": ([(program, rest)], (program, test)), "unseen": (others, (program, everything))}
                for task in tasks:
                    bar.set_description(f"seed {seed}, {program.name}, {task}")
                    train, asked = splits[task]
                    for name, method in METHODS.items():
                        tau = kendall_tau(method(train, asked, seed, epochs), program.graph.targets[asked[1]])
                        found[task][program.name][name].append(tau)
                    bar.update()
    return {task: _with_means(taus) for task, taus in found.items()}


def _split(program: Measured, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the fifth of the plans that is held out, and of the others."""
    order = np.random.default_rng(seed).permutation(program.graph.num_configs)
    return np.sort(order[: len(order) // 5]), np.sort(order[len(order) // 5 :])


def _with_means(taus: dict[str, dict[str, list[float]]]) -> dict[str, object]:
    means = {name: statistics.mean(statistics.mean(each[name]) for each in taus.values()) for name in METHODS}
    return {"mean": means, "programs": taus}


def _some(graph: Graph, plans: np.ndarray) -> Graph:
    return replace(
        graph, config_features=graph.config_features[plans], targets=graph.targets[plans], counts=graph.counts[plans],
        spreads=graph.spreads[plans],
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, nargs="+", required=True, metavar="DIR", help="of gst measure --out")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--json", type=Path, default=Path("experiments/results/measured_plans.json"))
    options = parser.parse_args()
    programs = [Measured(read_measured(directory)) for directory in options.measured]
    directories = " ".join(map(str, options.measured))
    result = {
        **run(programs, options.seeds, options.epochs),
        "measured": {
            program.name: {
                "plans": program.graph.num_configs, "nodes": program.graph.num_nodes,
                "repeats_tau": program.repeats_tau, "machine": program.source.header["machine"],
                "devices": [device.name for device in program.source.profiled.devices],
            }
            for program in programs
        },
        "seeds": options.seeds, "epochs": options.epochs, "machine": machine_record(),
        "command": f"python -m experiments.reproductions.measured_plans --measured {directories} "
        f"--seeds {options.seeds} --epochs {options.epochs}",
    }  # fmt: skip
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    for task in ("seen", "unseen"):
        if task in result:
            print(task, result[task]["mean"])  # type: ignore[index]


if __name__ == "__main__":
    main()
