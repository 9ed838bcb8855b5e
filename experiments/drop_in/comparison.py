"""Every program of this folder on whole graphs and under GST: lines that differ, score, score on shuffled labels.

python -m experiments.drop_in.comparison --json experiments/results/drop_in.json
"""

from __future__ import annotations

import argparse
import difflib
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from experiments.drop_in.graphs import Example, as_message_graphs, as_pyg, families, homophily, shuffled

NUM_TRAINING = 150
FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Program:
    """A model of somebody's, in two files: `name.py` on whole graphs, `name_gst.py` under GST.

    Args:
        model: what it is.
        examples: what it learns from.
        given: how its author holds graphs.
        measure: what its `score` is.
    """

    name: str
    model: str
    examples: Callable[..., list[Example]]
    given: Callable[[list[Example]], list[Any]]
    measure: str

    def load(self, suffix: str = "") -> ModuleType:
        return import_module(f"experiments.drop_in.{self.name}{suffix}")

    def changed_lines(self) -> int:
        before, after = ((FOLDER / f"{self.name}{suffix}.py").read_text() for suffix in ("", "_gst"))
        return changed_lines(before, after)


PROGRAMS = (
    Program("pyg_gcn", "PyG GCN", families, as_pyg, "accuracy"),
    Program("pyg_gps", "PyG GPS", families, as_pyg, "accuracy"),
    Program("pyg_sage", "PyG GraphSAGE", homophily, as_pyg, "R2"),
    Program("dgl_style", "DGL style", families, as_message_graphs, "accuracy"),
    Program("plain_torch", "plain torch", homophily, list, "R2"),
)


def changed_lines(before: str, after: str) -> int:
    """Lines that were changed, added or removed; where some lines stand for some others, the longer side counts."""
    matcher = difflib.SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False)
    blocks = [block for block in matcher.get_opcodes() if block[0] != "equal"]
    return sum(max(i2 - i1, j2 - j1) for _, i1, i2, j1, j2 in blocks)


def learn(program: Program, suffix: str, shuffle: bool = False, seed: int = 0) -> float:
    """Score on 50 graphs of a model that learned from 150 others."""
    examples = program.examples(seed=seed)
    graphs = program.given(shuffled(examples, seed) if shuffle else examples)
    module = program.load(suffix)
    torch.manual_seed(seed)
    return module.score(module.fit(graphs[:NUM_TRAINING]), graphs[NUM_TRAINING:])


def compare(program: Program, seeds: int) -> dict[str, Any]:
    row: dict[str, Any] = {"model": program.model, "changed_lines": program.changed_lines(), "measure": program.measure}
    for key, suffix in (("full", ""), ("gst", "_gst")):
        scores = [learn(program, suffix, seed=seed) for seed in range(seeds)]
        row[key] = {"mean": statistics.mean(scores), "least": min(scores), "greatest": max(scores)}
        row[f"{key}_shuffled"] = max(learn(program, suffix, shuffle=True, seed=seed) for seed in range(seeds))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="of data and training")
    parser.add_argument("--json", type=Path, help="write the rows here too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    print("| model | changed lines | measure | whole graphs | GST | shuffled labels: whole graphs, GST |")
    print("|---|---|---|---|---|---|")
    for program in PROGRAMS:
        row = compare(program, arguments.seeds)
        rows.append(row)
        scores = " | ".join("{mean:.2f} ({least:.2f}..{greatest:.2f})".format(**row[key]) for key in ("full", "gst"))
        print(
            f"| {row['model']} | {row['changed_lines']} | {row['measure']} | {scores} | "
            f"{row['full_shuffled']:.2f}, {row['gst_shuffled']:.2f} |",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({"seeds": arguments.seeds, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
