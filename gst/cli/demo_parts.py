"""The three parts of `gst demo`: training on a growing graph, a cost model of a real program, the placement loop."""

from __future__ import annotations

import json
import math
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from scipy.stats import rankdata

from embedding_cache import EmbeddingTable
from gst.cost.controls import ridge
from gst.cost.losses import pairwise_hinge
from gst.cost.metrics import kendall_tau
from gst.data.loader import Selection, StepLoader, split
from gst.data.synthetic import SyntheticPrograms
from gst.data.tpugraphs import read
from gst.graphs.graph import Graph
from gst.graphs.segments import segment
from gst.graphs.store import open_store, prepare
from gst.machine.devices import usable_devices
from gst.machine.load import LoadMeter
from gst.method.estimator import GraphSegmentTraining
from gst.nn import SAGE, Head
from gst.programs import kind_for
from gst.programs.traces import pinned, traced
from gst.util.progress import Progress

SAMPLE = Path(__file__).parent.parent / "data" / "samples" / "alexnet.npz"
SEGMENT = 1000  # nodes
ROWS = 1 << 14  # (node, configuration) pairs encoded at once without gradient: the smallest graph has as many
CONFIGS = 8  # configurations of a training step, and of a growing graph
COMPARED_CONFIGS = 16  # of a training step on the graph on which errors are compared
GROWING_STEPS = 16  # on each graph; a whole one takes a quarter of them
MORE_STEPS = 4  # on segments, which take less time than one on the whole graph
COMPARED, HELD_OUT = 256, 32  # configurations of the graph on which errors are compared, and those held out of them
LAYOUTS = 300  # held out of the measured layouts of AlexNet
Record = dict[str, Any]
Values = Float64[np.ndarray, " configs"]
Features = Float64[np.ndarray, "configs features"]


@dataclass(frozen=True)
class Sizes:
    """Sizes of the three parts.

    Args:
        nodes: of the graphs that GST trains on; the first two are trained on whole too.
        compared: nodes of the graph on which errors are compared.
        compared_steps: training steps on that graph as a whole; segments take `MORE_STEPS` times as many.
        ranking_steps: training steps of the cost model.
        program: that is placed, see `gst.programs.traced`.
        budget: plans that the search measures.
        compile_s: seconds for `torch.compile`.
        seconds: limit of all parts; of one part where `gst.cli.demo.run_demo` divides them. Trainings end before.
    """

    nodes: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    compared: int = 20_000
    compared_steps: int = 60
    ranking_steps: int = 450
    program: str = "inception:modules=2"
    budget: int = 10
    compile_s: float = 40.0
    seconds: float = 150.0


QUICK = Sizes((2_000, 20_000, 200_000), 10_000, 50, 250, "inception:modules=1", 6, 15.0)


# 1. Training on a graph that grows -----------------------------------------------------------------------------------


def growth(sizes: Sizes, out: Path, seed: int, resume: bool, progress: Progress) -> Record:
    """Train on synthetic programs of growing size, each time in a process of its own, and compare with whole graphs.

    Returns:
        `segments` and `whole`: an entry of `measure_training` for each size. `compared`: one entry of each on one
        graph, with `wrong_pairs`, the share of held-out pairs of configurations in the wrong order.
    """
    largest = sizes.compared // 20  # nodes of a segment
    tasks = [("segments", nodes, SEGMENT, GROWING_STEPS, 0) for nodes in sizes.nodes]
    tasks += [("whole", nodes, nodes, GROWING_STEPS // 4, 0) for nodes in sizes.nodes[:2]]
    tasks.append(("segments", sizes.compared, largest, MORE_STEPS * sizes.compared_steps, HELD_OUT))
    tasks.append(("whole", sizes.compared, sizes.compared, sizes.compared_steps, HELD_OUT))
    entries: list[Record] = []
    meter, left_s = LoadMeter(), sizes.seconds
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="graphs-", dir=out) as scratch:
        for number, (mode, nodes, most_nodes, steps, held_out) in enumerate(tasks):
            progress(f"training on {nodes:,} nodes ({mode})", number, len(tasks))
            programs = SyntheticPrograms(num_nodes=nodes, num_configs=COMPARED if held_out else CONFIGS, seed=seed)
            started = time.perf_counter()
            store = prepare(programs, scratch, most_nodes)
            prepare_s = time.perf_counter() - started
            if number < len(tasks) - 1:  # the last two are compared, so they have equal time
                left_s = max(sizes.seconds - meter.spent(), 0.0) / (2 if number < len(tasks) - 2 else 3)
            arguments = [str(store), mode, *map(str, (steps, held_out, seed, left_s))]
            command = [sys.executable, "-m", "gst.cli.demo_parts", *arguments]
            child = subprocess.run(command, check=True, stdout=subprocess.PIPE)
            entries.append({"prepare_s": prepare_s, **json.loads(child.stdout)})
    progress("training on segments and whole graphs", len(tasks), len(tasks))
    growing, (segments, whole), count = entries[:-2], entries[-2:], len(sizes.nodes)
    compared = {"segments": segments, "whole": whole}
    return {"segments": growing[:count], "whole": growing[count:], "compared": compared}


def measure_training(store: Path, mode: str, steps: int, held_out: int, seed: int, seconds: float) -> Record:
    """Train on the graph of a store in this process, which should do nothing else.

    Args:
        mode: `segments`, with a table and 4 fresh segments, or `whole`.
        held_out: configurations to hold out.
        steps, seconds: limits of the training.

    Returns:
        `nodes`, `segments` (count), `steps`, `step_ms`, `train_s`, `peak_mib`, the most memory of this process, and
        `wrong_pairs` if configurations are held out.
    """
    graph = open_store(store)[0]
    training, unseen, _ = split([graph], "configs", held_out, 0, seed)
    torch.manual_seed(seed)
    table: Record = {"table": EmbeddingTable(1, 32), "num_fresh": 4}
    encoder, head = SAGE(32, 2, num_opcodes=8, config_symbols=7), Head(32)
    model = GraphSegmentTraining(
        encoder, head, "mean", max_rows=ROWS, seed=seed, **(table if mode == "segments" else {})
    )
    loader = StepLoader(training, 1, COMPARED_CONFIGS if held_out else CONFIGS, seed=seed)
    times = list(train(model, loader, steps, 5e-3, seconds))
    entry: Record = {"nodes": graph.num_nodes, "segments": graph.num_segments, "steps": len(times)}
    entry |= {"step_ms": 1e3 * times[-1] / len(times), "train_s": times[-1], "peak_mib": own_peak_mib()}
    if held_out:
        entry["wrong_pairs"] = (1 - kendall_tau(*scores_of(model, unseen[0]))) / 2
    return entry


def own_peak_mib() -> float:
    """Return the most memory that this process held so far, in MiB, pages of mapped files included."""
    try:  # `getrusage` counts what the parent held when it started this process
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 2**10
    except (OSError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def train(model: GraphSegmentTraining, loader: Any, steps: int, rate: float, seconds: float) -> Iterator[float]:
    """Train by the pairwise hinge loss, the learning rate falling along a cosine; yield the seconds after each step.

    The training ends after so many steps, or as many seconds (`LoadMeter.spent`), whichever is reached first.
    """
    meter, step_number, optimizer, done = LoadMeter(), 0, None, 0.0
    while True:
        for step in loader:
            loss = pairwise_hinge(model.train()(step.graphs, step.configs), step.targets)
            optimizer = optimizer or torch.optim.AdamW(model.parameters(), rate)  # lazy layers have their widths now
            optimizer.param_groups[0]["lr"] = rate * (1 + math.cos(math.pi * done)) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step_number += 1
            yield meter.elapsed()
            done = max(step_number / steps, meter.spent() / max(seconds, 1e-9))
            if done >= 1:
                return


def scores_of(model: GraphSegmentTraining, selection: Selection) -> tuple[Values, Values]:
    """Return predicted scores and measured runtimes of the configurations of a selection."""
    graph, configs = selection
    return model.eval().scores(graph, configs, CONFIGS).double().numpy(), graph.targets[configs.numpy()]


# 2. A cost model of a real program -----------------------------------------------------------------------------------


def ranking(sizes: Sizes, out: Path, seed: int, resume: bool, progress: Progress) -> Record:
    """Train a cost model on measured layouts of AlexNet (TpuGraphs, on a TPU v3) and rank layouts that it never saw.

    Returns:
        `tau` of `GST` and of two linear regressions on the same configurations, the numbers of configurations, and
        `held_out`, the scores and runtimes of those held out, as in the record of a training.
    """
    progress("ranking layouts of AlexNet", 0, sizes.ranking_steps)
    graph = read(SAMPLE)
    training, (held_out,), _ = split([segment(graph, 128)], "configs", LAYOUTS, 0, seed)
    torch.manual_seed(seed)
    encoder, head = SAGE(channels=64, num_layers=3, config_symbols=7), Head(64)
    model = GraphSegmentTraining(encoder, head, "sum", num_fresh=3, seed=seed)
    loader = StepLoader(training, 1, 64, seed=seed)
    for done, _ in enumerate(train(model, loader, sizes.ranking_steps, 1e-3, sizes.seconds), 1):
        progress("ranking layouts of AlexNet", done, sizes.ranking_steps)
    scores, runtimes = scores_of(model, held_out)
    known, unseen = training[0][1].numpy(), held_out[1].numpy()
    taus = {"GST": kendall_tau(scores, runtimes)}
    for name, features in linear_features(graph).items():
        predict = ridge(features[known], rankdata(graph.targets[known])[:, None])
        taus[name] = kendall_tau(predict(features[unseen])[:, 0], runtimes)
    layouts = {"graph": "AlexNet in training, TPU v3", "tau": taus["GST"]}
    layouts |= {"predicted": scores.tolist(), "measured": runtimes.tolist()}
    return {
        "tau": taus, "num_train": len(known), "num_held_out": len(unseen), "nodes": graph.num_nodes,
        "held_out": {"kind": "order", "unit": "ns", "graphs": [layouts]},
    }  # fmt: skip


def linear_features(graph: Graph) -> dict[str, Features]:
    """Return features of each configuration for linear regression, (configs, features) each.

    The sums count the values of each feature over all nodes. The features of each node are those of this program alone.
    """
    values = graph.config_features.astype(int) - int(graph.config_features.min())
    one_hot = np.eye(values.max() + 1)[values]  # (configs, nodes, features, values)
    return {
        "linear regression on sums": one_hot.sum(1).reshape(len(values), -1),
        "linear regression on each node": one_hot.reshape(len(values), -1),
    }


# 3. The placement loop on this machine -------------------------------------------------------------------------------


def placement(sizes: Sizes, out: Path, seed: int, resume: bool, progress: Progress) -> Record:
    """Place a bundled program on the devices of this machine, the search guided by the GST cost model.

    Returns:
        The result of `gst.placement.measured.place_measured`, with the trials of the search.
    """
    from gst.placement.measured import TO_COMPILE, place_measured
    from gst.placement.planning import Settings

    if not resume:
        shutil.rmtree(out / "place", ignore_errors=True)
    progress(f"capturing {sizes.program}", 0, 1)
    devices = usable_devices(None)
    program = traced(sizes.program, kind=kind_for(each.kind for each in devices))
    settings = Settings(
        budget=sizes.budget, evaluations=300, repetitions=10, seed=seed, patience_s=0.0, cost_model="gst",
        compile_step=sizes.compile_s > 0,
    )  # fmt: skip
    seconds = min(sizes.seconds, sizes.compile_s / TO_COMPILE or math.inf)
    source = pinned(sizes.program, program)
    placed = place_measured(program, source, devices, out / "place", settings, progress, seconds=seconds)
    return {**placed.result, "name": sizes.program, "measurements": placed.drawing.get("measurements", [])}


def main() -> None:
    """Measure one training; the arguments are those of `measure_training`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    store, mode, steps, held_out, seed, seconds = sys.argv[1:]
    print(json.dumps(measure_training(Path(store), mode, int(steps), int(held_out), int(seed), float(seconds))))


if __name__ == "__main__":
    main()
