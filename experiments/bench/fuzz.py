"""Damaged files against every reader (`tests/fuzz/readers.py`), and how much of the readers that and their tests reach.

    python -m experiments.bench fuzz --cases 10000 --json experiments/results/fuzz.json

Goes on where it was stopped, if the file is there and of the same seed. A reader crashes if it raises anything but a
`ValueError` of one line that names the file, or executes what is in it; it is unbounded if it takes more than two
seconds of processor time or 500 MiB more memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from gst.util.writing import write_json

ROOT = Path(__file__).parents[2]
KEPT = 5  # findings of a reader that are written out
SAVED_EVERY_S = 10.0
MODULES = (
    "gst/util/untrusted.py", "gst/graphs/store.py", "gst/util/arrays.py",
    "gst/data/hlo/*.py", "gst/data/tpugraphs.py", "gst/data/collections.py", "gst/data/malnet.py",
    "experiments/reproductions/public_problems/cost_graphs.py", "gst/placement/measured_plans.py",
    "gst/lowering/plan.py",
    "gst/execution/measure.py", "gst/placement/task.py", "experiments/reproductions/elf/*.py",
    "gst/programs/program.py", "gst/programs/operation.py", "partitioners/methods.py", "gst/cost/model.py",
    "gst/training/rank.py", "experiments/reproductions/dataset_files.py",
)  # fmt: skip
TESTS = (
    "tests/fuzz", "tests/graphs/test_store.py", "tests/data/test_hlo.py",
    "tests/data/test_hlo_damage.py", "tests/reproductions/elf/test_elf.py",
    "tests/reproductions/elf/test_elf_source.py",
    "tests/data/test_tpugraphs.py", "tests/data/test_collections.py", "tests/data/test_malnet.py",
    "tests/reproductions/public_problems/test_cost_graphs.py", "tests/placement/test_measured_plans.py",
    "tests/execution/test_log.py",
    "tests/programs/test_saving.py", "tests/cost/test_model.py", "tests/cli/test_measure_command.py",
)  # fmt: skip
INTERPRETED = ("tests/reproductions/elf/test_elf.py", "-k", "small_stripped or damaged or by_hand or decoder")
"""Tests that are run once more with the compiled loops as plain Python, whose lines can be seen then."""


HELP = {
    "cases": "for each reader", "readers": "only these (default: all)",
    "coverage": "also run the readers' tests and count their lines",
}  # fmt: skip


def run(
    cases: int = 10_000,
    seed: int = 0,
    readers: tuple[str, ...] = (),
    coverage: bool = False,
    json: Path = Path("experiments/results/fuzz.json"),
) -> dict[str, Any]:
    """Fuzz the readers, and with `coverage` count their lines that tests reach."""
    warnings.simplefilter("ignore")  # of the readers of damaged tensors
    result = fuzz(cases, seed, json, readers)
    if coverage:
        result |= {"lines": lines_reached()}
        write_json(json, result)
        print(f"lines of the readers that their tests reach: {result['lines']['coverage']:.1%}")
    return result


def fuzz(cases: int, seed: int, path: Path, names: Sequence[str] = ()) -> dict[str, Any]:
    """Give every reader its share of `cases` damaged files; what is in `path` already is not done again.

    Args:
        cases: for each reader, but for those that are slow (`Reader.share`).
        seed: of the damage; case `n` is the same file in every run of that seed.
        path: receives the results, again and again.
        names: readers, all if none are given.
    """
    sys.path.append(str(ROOT))
    from tests.fuzz.limits import findings
    from tests.fuzz.readers import READERS

    known = json.loads(path.read_text()) if path.exists() else {}
    rows = known.get("readers", {}) if known.get("seed") == seed else {}
    result = {**known, "command": f"python -m experiments.bench fuzz --cases {cases}", "seed": seed}
    wanted = {name: max(1, round(cases * READERS[name].share)) for name in names or READERS}
    empty = {"cases": 0, "seconds": 0.0, "crashes": 0, "unbounded": 0, "findings": []}
    done = sum(min(rows.get(name, empty)["cases"], count) for name, count in wanted.items())
    with tqdm(total=sum(wanted.values()), initial=done, unit=" cases", smoothing=0.05) as bar:
        for name, count in wanted.items():
            bar.set_description(name)
            row = rows.setdefault(name, dict(empty, findings=[]))
            saved, before = time.monotonic(), row["seconds"]
            started = saved
            for found in findings(READERS[name], range(row["cases"], count), seed):
                row["cases"] += 1
                row["seconds"] = round(before + time.monotonic() - started, 2)
                if found:
                    row["crashes" if found.kind == "crash" else "unbounded"] += 1
                    row["findings"] = [*row["findings"], f"case {found.case}: {found.what}"][:KEPT]
                bar.update()
                if time.monotonic() - saved > SAVED_EVERY_S:
                    write_json(path, _summed(result, rows))
                    saved = time.monotonic()
            write_json(path, _summed(result, rows))
    return _summed(result, rows)


def _summed(result: dict[str, Any], rows: dict[str, Any]) -> dict[str, Any]:
    totals = {key: sum(row[key] for row in rows.values()) for key in ("crashes", "unbounded", "cases")}
    seconds = sum(row["seconds"] for row in rows.values())
    return {**result, **totals, "cases_per_second": round(totals["cases"] / max(seconds, 1e-9), 1), "readers": rows}


def lines_reached() -> dict[str, Any]:
    """Run the readers' tests; the share of the lines of their modules that ran, in all and for each module."""
    from coverage import Coverage

    with tempfile.TemporaryDirectory() as place:
        data = Path(place) / "coverage"
        command = [
            sys.executable, "-m", "coverage", "run", f"--data-file={data}", "--append",
            f"--include={','.join(str(ROOT / module) for module in MODULES)}", "-m", "pytest", "-q",
        ]  # fmt: skip
        subprocess.run([*command, *TESTS], cwd=ROOT, check=True)
        subprocess.run([*command, *INTERPRETED], cwd=ROOT, check=True, env=os.environ | {"NUMBA_DISABLE_JIT": "1"})
        coverage = Coverage(data_file=data)
        coverage.load()
        share: dict[str, float] = {}
        missing: dict[str, str] = {}
        held = reached = 0
        for path in sorted(path for module in MODULES for path in ROOT.glob(module)):
            _, statements, _, without, readable = coverage.analysis2(str(path))
            held, reached = held + len(statements), reached + len(statements) - len(without)
            share[str(path.relative_to(ROOT))] = round(1 - len(without) / max(len(statements), 1), 4)
            if without:
                missing[str(path.relative_to(ROOT))] = readable
    return {"coverage": round(reached / held, 4), "lines": held, "modules": share, "lines_not_reached": missing}
