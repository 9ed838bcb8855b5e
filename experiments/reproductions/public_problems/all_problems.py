"""Every placement problem of `shared/data`: our plan beside each baseline and the lower bound, one table.

    python -m experiments.reproductions.public_problems all_problems --json experiments/results/public_graphs_all.json

Simulated, one core, `--seconds` of annealing for each problem from its best baseline on, by which the search is as long
for a small problem as for a large one; those of at most 120 operations that do not meet the bound have `--proof`
seconds for a better bound. Plans that the solvers of proofs come upon (`highs`, `cp-sat`) do not count as ours. The
machine is that of `MACHINES`.
A problem whose row is in the file already is left as it is. `--summary` prints the table of families alone.
"""

from __future__ import annotations

import argparse
import json
import lzma
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.figures.documents import table
from experiments.reproductions.public_problems.formats import read_public_graph
from experiments.reproductions.public_problems.placing import place_public
from experiments.reproductions.public_problems.problem import public_problem
from experiments.reproductions.public_problems.proofs import SOLVERS
from gst.machine.devices import machine_record
from gst.util.progress import bar
from gst.util.untrusted import shown

DATA = Path("../shared/data")
MOST_BYTES = 2**28  # of a file of the archive
MACHINES = {"wfinstances": "cores:4", "8gpu_": "gpus:8", "example-1": "gpus:3"}
"""Machine of the problems whose path has a part like this; of the others `gpus:4`."""


def problems(data: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the family and file of each problem. Members of the archive are written to a folder one at a time, under
    generated names, so that no path of the archive is followed."""
    for path in sorted((data / "placement").glob("*_graphs/*.json")):
        yield f"msr {path.parent.name.partition('_')[0]}", path
    with tarfile.open(data / "placement.tar.xz", "r|xz") as archive:
        for member in archive:
            path, file = Path(member.name), archive.extractfile(member) if member.isfile() else None
            if file is None or path.suffix not in (".txt", ".xls", ".json"):
                continue
            if member.size > MOST_BYTES:
                raise OSError(f"{shown(member.name)} has {member.size} bytes, want at most {MOST_BYTES}")
            target = folder / path.name
            target.write_bytes(file.read())
            parts = [part for part in path.parts[:-1] if part != "."]
            yield " ".join(parts[-2:] if "pegasus" in parts or "makeflow" in parts else parts[-1:]), target


def machine_of(family: str, name: str) -> str:
    """Machine of a problem, see `MACHINES`."""
    if family.split()[0] in ("pegasus", "makeflow", "nextflow"):
        return MACHINES["wfinstances"]
    return next((machine for part, machine in MACHINES.items() if name.startswith(part)), "gpus:4")


def row(family: str, path: Path, seconds: float, proof_s: float) -> dict[str, Any]:
    """Record of a problem: makespans by plan, the bound, and the gap of the best plan to it."""
    problem = public_problem(read_public_graph(path), machine_of(family, path.stem))
    result, _ = place_public(problem, seconds, proof_s=proof_s)
    plans = {name: plan["makespan"] for name, plan in result["plans"].items()}
    baseline = {n: t for n, t in plans.items() if n not in ("annealing", *SOLVERS.values()) and t is not None}
    ours = min(value for name, value in plans.items() if value is not None and name not in SOLVERS.values())
    return {
        "family": family, "format": result["format"], "machine": result["machine"], "nodes": result["num_nodes"],
        "edges": result["num_edges"], "unit": result["unit"], "plans": plans, "ours": ours,
        "best_baseline": min(baseline, key=lambda name: baseline[name]), "lower_bound": result["lower_bound"],
        "bound_by": result["bound_by"], "steps": result["steps"], "baselines_s": round(result["baselines_s"], 3),
    }  # fmt: skip


def summary(rows: dict[str, dict[str, Any]]) -> str:
    """A line for each family: geometric means of times over ours, of ours over the bound, and how many are proved."""
    lines = []
    for family in [*sorted({each["family"] for each in rows.values()}), ""]:
        mine = [each for each in rows.values() if family in ("", each["family"])]
        ratios = {
            name: [_ratio(each["plans"].get(name), each["ours"]) for each in mine]
            for name in ("heft", "cpop", "peft", "critical_path", "metis", "round_robin")
        }
        single = [
            _ratio(
                min((t for n, t in each["plans"].items() if n.startswith("single") and t), default=None), each["ours"]
            )
            for each in mine
        ]
        best = [_ratio(each["plans"][each["best_baseline"]], each["ours"]) for each in mine]
        gaps = [_ratio(each["ours"], each["lower_bound"]) for each in mine]
        lines.append([
            family or "all", str(len(mine)), f"{min(e['nodes'] for e in mine)}..{max(e['nodes'] for e in mine)}",
            *(_mean(each) for each in (single, *ratios.values(), best)), f"{100 * (_geometric(gaps) - 1):.1f} %",
            str(sum(gap <= 1 + 1e-6 for gap in gaps)),
        ])  # fmt: skip
    head = ["family", "problems", "operations", "one device", "HEFT", "CPOP", "PEFT", "critical path", "METIS",
            "round robin", "best baseline", "ours over the bound", "optimal, proved"]  # fmt: skip
    return table(head, lines)


def _ratio(value: float | None, other: float) -> float:
    return float("nan") if value is None else value / other if other > 0 else 1.0


def _geometric(values: Sequence[float]) -> float:
    finite = [value for value in values if np.isfinite(value) and value > 0]
    return float(np.exp(np.mean(np.log(finite)))) if finite else float("nan")


def _mean(values: Sequence[float]) -> str:
    return f"{_geometric(values):.3f}" if np.isfinite(values).any() else "none fits"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with placement and placement.tar.xz")
    parser.add_argument("--seconds", type=float, default=2.0, help="of annealing for each problem")
    parser.add_argument("--proof", type=float, default=2.0, help="seconds of CP-SAT for each small problem")
    parser.add_argument("--only", default="", help="problems whose family or name has this")
    parser.add_argument("--summary", action="store_true", help="print the table of what is there")
    parser.add_argument("--json", type=Path, default=Path("experiments/results/public_graphs_all.json"))
    options = parser.parse_args(arguments)
    result: dict[str, Any] = json.loads(options.json.read_text()) if options.json.exists() else {"rows": {}}
    settings = {"seconds": options.seconds, "proof_s": options.proof}
    if not options.summary:
        if result.get("settings", settings) != settings:
            raise SystemExit(f"{options.json} has other settings, {result['settings']}; give another --json")
        try:
            with tempfile.TemporaryDirectory() as folder:
                for family, path in bar(problems(options.data, Path(folder)), desc="problems", total=169):
                    key = f"{family}/{path.stem}"
                    if key in result["rows"] or options.only not in key:
                        continue
                    result["rows"][key] = row(family, path, options.seconds, options.proof)
                    result |= {
                        "settings": settings, "machine": machine_record(),
                        "command": "python -m experiments.reproductions.public_problems all_problems "
                        f"--seconds {options.seconds:g} --proof {options.proof:g}",
                    }  # fmt: skip
                    options.json.write_text(json.dumps(result, indent=1) + "\n")
        except (OSError, tarfile.TarError, lzma.LZMAError) as error:
            raise SystemExit(f"{options.data}: {error}; give the folder with placement.tar.xz by --data") from None
    print(summary(result["rows"]))


if __name__ == "__main__":
    main()
