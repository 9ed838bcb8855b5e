"""DOPPLER's graphs (Yao et al., ICLR 2026) under the rules of its simulator: our plans in seconds beside its
critical-path heuristic, the best of 50 draws of its ties, and the lower bound.

    python -m experiments.reproductions.public_problems doppler --json experiments/results/doppler.json

Simulated, one core: `--seconds` for each plan, of which the shipped policy has a share and annealing the rest, with
`--seeds` different seeds. That policy never saw these graphs. The release holds each graph a second time for another
policy, as `gdp_...`; that counts once.

DOPPLER's own policy, trained on some of them by its release, stands beside them from `doppler_policy.json`, which says
how it was trained; nothing here makes that file.
"""

from __future__ import annotations

import argparse
import json
import lzma
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.figures.documents import result, table
from experiments.reproductions.public_problems.all_problems import DATA, machine_of, problems
from experiments.reproductions.public_problems.formats import read_public_graph
from experiments.reproductions.public_problems.placing import place_public
from experiments.reproductions.public_problems.problem import public_problem
from experiments.reproductions.public_problems.proposing import proposer_of
from experiments.reproductions.public_problems.weights import load_weights
from gst.machine.devices import machine_record
from gst.util.progress import bar

STAGES = ("imitation", "simulation")
"""DOPPLER's stages of training that need no machine of its own: of its heuristic, then by its simulator."""


def graphs(data: Path, folder: Path) -> Iterator[Path]:
    """DOPPLER's files, each graph once."""
    for family, path in problems(data, folder):
        if family == "doppler" and not path.stem.startswith("gdp_"):
            yield path


def row(path: Path, seconds: float, seeds: int) -> dict[str, Any]:
    """Record of a graph: makespans of one device, of the heuristic and of ours by seed, and the bound."""
    problem = public_problem(read_public_graph(path), machine_of("doppler", path.stem))
    proposer, ours, heuristics = proposer_of(load_weights(None)), [], []
    for seed in range(seeds):
        placed, _ = place_public(problem, seconds, seed, proposer=proposer)
        plans = {name: plan["makespan"] for name, plan in placed["plans"].items() if plan["makespan"] is not None}
        ours.append(placed["objective"])
        heuristics.append(plans["critical_path"])
    singles = [value for name, value in plans.items() if name.startswith("single:")]
    return {
        "machine": placed["machine"], "nodes": placed["num_nodes"], "unit": placed["unit"], "one_device": min(singles),
        "critical_path": heuristics, "ours": ours, "lower_bound": placed["lower_bound"],
    }  # fmt: skip


def summary(rows: Mapping[str, Mapping[str, Any]], trained: Mapping[str, Mapping[str, Any]]) -> str:
    """A table: medians over seeds, how many times as long the heuristic takes, with the least and most of the seeds,
    and how far ours is above the lower bound.

    Args:
        trained: what DOPPLER's policy reached on a graph, see `policy_summary`; graphs may be missing.
    """
    lines, ratios = [], []
    for name, each in rows.items():
        ours, heuristic = np.array(each["ours"]), np.array(each["critical_path"])
        ratio, gap = heuristic / ours, np.median(ours) / each["lower_bound"] - 1
        ratios.append(float(np.median(ratio)))
        lines.append([
            name, str(each["nodes"]), each["machine"], f"{each['one_device']:.4g}", f"{np.median(heuristic):.4g}",
            f"{best_of(trained[name]):.4g}" if name in trained else "",
            f"{np.median(ours):.4g}", f"{ratios[-1]:.3f} [{ratio.min():.3f}, {ratio.max():.3f}]",
            f"{each['lower_bound']:.4g}", f"{gap:.1%}",
        ])  # fmt: skip
    names = ["graph", "operations", "machine", "one device", "critical path", "DOPPLER's policy", "ours",
             "critical path / ours", "bound", "ours over bound"]  # fmt: skip
    mean = float(np.exp(np.mean(np.log(ratios)))) if ratios else float("nan")
    return table(names, lines) + f"\n\ncritical path / ours, geometric mean of the graphs: {mean:.3f}"


def best_of(stages: Mapping[str, Any]) -> float:
    """The shortest makespan that DOPPLER's policy reached on a graph: in training or greedily after it."""
    return min(stages[stage][plan] for stage in STAGES for plan in ("best", "greedy"))


def policy_summary(rows: Mapping[str, Mapping[str, Any]], trained: Mapping[str, Mapping[str, Any]]) -> str:
    """A table of DOPPLER's policy trained by its release: by stage the makespan of its greedy plan afterwards and the
    shortest seen in training, and how many times as long as ours the best of them takes.

    Args:
        rows: ours by graph.
        trained: by graph and stage (`imitation`, `simulation`) `episodes`, `cpu_s`, `best`, `greedy`.
    """
    lines = []
    for name, stages in trained.items():
        ours = float(np.median(rows[name]["ours"]))
        plans = [f"{stages[stage][plan]:.4g}" for stage in STAGES for plan in ("greedy", "best")]
        episodes = " + ".join(str(stages[stage]["episodes"]) for stage in STAGES)
        seconds = sum(stages[stage]["cpu_s"] for stage in STAGES)
        lines.append([name, episodes, f"{seconds:.0f}", *plans, f"{ours:.4g}", f"{best_of(stages) / ours:.3f}"])
    names = ["graph", "episodes", "CPU s", "imitation, greedy", "imitation, best seen", "simulation, greedy",
             "simulation, best seen", "ours in 2 s", "its best / ours"]  # fmt: skip
    return table(names, lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with placement and placement.tar.xz")
    parser.add_argument("--seconds", type=float, default=2.0, help="of search for each plan")
    parser.add_argument("--seeds", type=int, default=5, help="plans of each graph")
    parser.add_argument("--summary", action="store_true", help="print the table of what is there")
    parser.add_argument("--json", type=Path, default=Path("experiments/results/doppler.json"))
    options = parser.parse_args(arguments)
    if options.summary:
        print(summary(json.loads(options.json.read_text())["rows"], result("doppler_policy")["rows"]))
        return
    try:
        with tempfile.TemporaryDirectory() as folder:
            paths = bar(graphs(options.data, Path(folder)), desc="graphs")
            rows = {path.stem: row(path, options.seconds, options.seeds) for path in paths}
    except (OSError, tarfile.TarError, lzma.LZMAError) as error:
        raise SystemExit(f"{options.data}: {error}; give the folder with placement.tar.xz by --data") from None
    command = "python -m experiments.reproductions.public_problems doppler "
    command += f"--seconds {options.seconds:g} --seeds {options.seeds}"
    settings = {"seconds": options.seconds, "seeds": options.seeds}
    record = {"rows": rows, "settings": settings, "machine": machine_record(), "command": command}
    options.json.write_text(json.dumps(record, indent=1) + "\n")
    print(summary(rows, result("doppler_policy")["rows"]))


if __name__ == "__main__":
    main()
