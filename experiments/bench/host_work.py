"""Work of the host in a training step, besides launching its operators: as it was, and with padded steps.

    python -m experiments.bench.host_work --json experiments/results/host_work.json
    python -m experiments.bench.host_work --before ../older --json experiments/results/host_work.json

As it was, the thread that trains also draws and reads a step, and finds on the host which states are equal. With padded
steps another thread reads the next one, and the device finds equal states. The network's own operators, which are the
device's work on an accelerator, run on this CPU and are left out.

`--before` names a folder with older packages: whole steps on this CPU, of theirs and of these, take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from experiments.bench.step_calls import CONFIGS, GRAPHS, published, sage, segmented_programs
from gst.cost.losses import pairwise_hinge
from gst.graphs.segments import SegmentedGraph
from gst.machine.devices import machine_record
from gst.method.estimator import GraphSegmentTraining
from gst.method.fixed_batch import Sizes
from gst.method.fixed_step import FixedStep
from gst.nn.plans import FixedPlans, set_sharing
from gst.nn.sharing import Sharing
from gst.util.process import keep_freed_memory
from gst.util.progress import bar
from gst.util.writing import write_json

NETWORKS: dict[str, Callable[[], GraphSegmentTraining]] = {"published network": published, "GraphSAGE": sage}
FINDS = ("of", "inputs", "matrix", "row_of")  # of `Sharing`: what finds and writes down equal states
STEPS, TURNS = 40, 8


class Spans:
    """Milliseconds of each part of a step, without those of parts within it."""

    def __init__(self) -> None:
        self.ms = defaultdict[str, float](float)
        self._within = 0.0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        before, self._within, began = self._within, 0.0, time.thread_time()
        try:
            yield
        finally:
            took = 1e3 * (time.thread_time() - began)
            self.ms[name] += took - self._within
            self._within = before + took

    def timed(self, owner: Any, method: str, name: str) -> Any:
        """Return a patch of a method of a class that times it as a part."""
        was = getattr(owner, method)

        def call(*args: Any, **options: Any) -> Any:
            with self.part(name):
                return was(*args, **options)

        return patch.object(owner, method, staticmethod(call) if method == "of" else call)


def eager(model: GraphSegmentTraining, data: Sequence[SegmentedGraph], steps: int) -> list[dict[str, float]]:
    """Return the parts of each step in which one thread does all, and the host finds equal states."""
    set_sharing("host")
    optimizer, found = torch.optim.Adam(model.parameters(), foreach=True), list[dict[str, float]]()
    for configs, targets in batches(data, steps):
        spans = Spans()
        with ExitStack() as stack:
            for method in FINDS:
                stack.enter_context(spans.timed(Sharing, method, "equal states"))
            with spans.part("draw"):
                draw = model.draw(data, configs)
            with spans.part("read"):
                read = model.load(draw)
            pairwise_hinge(model(prefetched=read).squeeze(-1), targets, 0.1).backward()
            optimizer.step()
            optimizer.zero_grad()
        found.append(dict(spans.ms))
    return found


def padded(model: GraphSegmentTraining, data: Sequence[SegmentedGraph], steps: int) -> list[dict[str, float]]:
    """Return the parts of each padded step; `read` and `count rows` are those of the reading thread."""
    set_sharing("auto")
    optimizer, found = torch.optim.Adam(model.parameters(), foreach=True), list[dict[str, float]]()
    sizes = Sizes.of(data, GRAPHS, 1, CONFIGS, model.encoder, likely=True)
    step = FixedStep(model, lambda *both: pairwise_hinge(*both, 0.1), optimizer, sizes)
    for configs, targets in batches(data, steps):
        spans = Spans()
        with spans.part("draw"):
            draw = step.draw(data, configs)
        with spans.timed(FixedPlans, "check", "count rows"), spans.part("read"):
            read = step.load(draw)
        with spans.part("fill"):
            step.fill(read, targets)
        step.compute()
        with spans.part("finish"):
            step.finish()
        found.append(dict(spans.ms))
    return found


def whole_steps(trees: dict[str, Path]) -> dict[str, dict[str, list[float]]]:
    """Return the least milliseconds of a step and peak MiB of training the published network, by packages of each
    folder. Each number is of one process; the first folder of a turn is the last of the next."""
    found: dict[str, dict[str, list[float]]] = {name: {"step_ms_min": [], "peak_mib": []} for name in trees}
    command = [sys.executable, "-m", "experiments.bench.step", "shared fp32", '{"steps": 10}']
    names = [name for turn in range(TURNS) for name in list(trees)[:: -1 if turn % 2 else 1]]
    for name in bar(names):
        environment = os.environ | {"PYTHONPATH": str(trees[name])}
        ran = subprocess.run(command, cwd=trees[name], env=environment, check=True, capture_output=True, text=True)
        for key, values in found[name].items():
            values.append(json.loads(ran.stdout)[key])
    return found


def batches(data: Sequence[SegmentedGraph], steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield configurations and targets of each step."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        rows = [torch.randperm(graph.num_configs, generator=generator)[:CONFIGS] for graph in data]
        yield torch.stack(rows), torch.rand(len(data), CONFIGS, generator=generator)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS, help="of each kind (default: %(default)s)")
    parser.add_argument("--before", type=Path, help="folder of older packages")
    parser.add_argument("--json", type=Path, help="file of the result")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    data = segmented_programs()
    cases: dict[str, Any] = {}
    for name, steps in bar([(name, steps) for name in NETWORKS for steps in (eager, padded)]):
        torch.manual_seed(0)
        rows = steps(NETWORKS[name](), data, options.steps)[options.steps // 4 :]
        parts = {part: statistics.median(row.get(part, 0.0) for row in rows) for part in rows[0]}
        cases.setdefault(name, {})[steps.__name__] = parts
    command = "python -m experiments.bench.host_work" + (" --before FOLDER" if options.before else "")
    result = {"command": command, "cases": cases, "machine": machine_record()}
    if options.before:
        result["whole_steps"] = whole_steps({"now": Path(__file__).parents[2], "before": options.before.resolve()})
    print(cases)
    if options.json:
        write_json(options.json, result)


if __name__ == "__main__":
    main()
