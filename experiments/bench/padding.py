"""Rows of padded steps on real programs: how many a step needs and has, and would have so that no step is larger.

    python -m experiments.bench.padding --json experiments/results/padding.json

A step holds one segment of each of four copies of a program, under configurations drawn at random.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gst.data.tpugraphs import read
from gst.graphs.segments import SegmentedGraph, segment
from gst.machine.devices import machine_record
from gst.method.batch import assemble
from gst.method.fixed_batch import DoesNotFit, Sizes
from gst.nn.bounds import PlanOptions
from gst.nn.plans import FixedPlans, further
from gst.util.progress import bar
from gst.util.writing import write_json

GRAPHS, STEPS = 4, 200
OPTIONS = PlanOptions(3, ("forward", "backward"))
FILES = ("random/train/alexnet_train_batch_32.npz", "default/valid/unet_3d.npz")


def padding(graph: SegmentedGraph, num_configs: int, steps: int = STEPS) -> dict[str, Any]:
    """Return rows of steps: the mean that those need that fit, those of a padded one, the most that a step can need,
    and if each state had one; and how many steps are too large."""
    graphs, generator = [graph] * GRAPHS, np.random.default_rng(1)
    sizes = Sizes.of(graphs, GRAPHS, 1, num_configs, likely=True)
    plans = FixedPlans(OPTIONS, sizes, graphs, 1)
    needed, every, too_large = [], [], 0
    for _ in range(steps):
        picks = [(each, int(generator.integers(graph.num_segments))) for each in range(GRAPHS)]
        rows = [generator.permutation(graph.num_configs)[:num_configs] for _ in range(GRAPHS)]
        batch = assemble(graphs, picks, torch.from_numpy(np.stack(rows)))
        try:
            plans.check(batch)
        except DoesNotFit:
            too_large += 1
            continue
        levels = OPTIONS.num_layers + 1
        needed.append(levels * batch.num_nodes + int(further(batch, OPTIONS)[:levels].sum()))
        every.append(levels * batch.num_nodes * num_configs)
    surely = FixedPlans(OPTIONS, sizes._replace(likely=False), graphs, 1)
    return {
        "needed": float(np.mean(needed)), "padded": sum(plans.bounds.rows),
        "most": sum(surely.bounds.rows), "every_state": float(np.mean(every)),
        "steps": steps, "too_large": too_large,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/tpugraphs/layout/xla"), help="of TpuGraphs")
    parser.add_argument("--json", type=Path, help="file of the result")
    options = parser.parse_args()
    found: dict[str, Any] = {"command": "python -m experiments.bench.padding", "rows": []}
    for file, num_configs in bar([(file, configs) for file in FILES for configs in (8, 32)]):
        graph = segment(read(options.data / file), 1_000)
        row = {"program": graph.name, "nodes": graph.num_nodes, "configs": num_configs}
        found["rows"].append({**row, **padding(graph, num_configs)})
        print(found["rows"][-1])
    if options.json:
        write_json(options.json, found | {"machine": machine_record()})


if __name__ == "__main__":
    main()
