"""Peak memory of preparing, training and evaluating graphs of several sizes, each in a process of its own.

Peaks are of anonymous memory; pages of mapped files, which the system takes back whenever it likes, are reported apart.

    python -m experiments.bench memory --nodes 10000,1000000
"""

from __future__ import annotations

import json
import selectors
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embedding_cache import EmbeddingTable
from experiments.bench.child import child_environment, command_of, say
from gst.cost.losses import pairwise_hinge
from gst.data.synthetic import SyntheticPrograms, synthetic_program
from gst.graphs.segments import SegmentedGraph, segment
from gst.graphs.store import open_store, prepare
from gst.machine.devices import machine_record
from gst.method.draws import Catalogue
from gst.method.estimator import GraphSegmentTraining
from gst.nn import SAGE, Head
from gst.util.progress import Progress, no_progress

CHANNELS, LAYERS, NUM_FRESH, CONFIGS = 32, 2, 4, 8
MAX_NODES = 1000  # of a segment
MAX_ROWS = 1 << 16  # encoded at once in evaluation: the smallest graph fills it too
STEPS = 24
INTERVAL = 0.002  # seconds between samples of memory


HELP = {"nodes": "sizes of the programs", "out": "folder of the stores", "evaluated": "segments to encode at least"}


def run(
    nodes: tuple[int, ...] = (10_000, 100_000, 1_000_000, 10_000_000),
    out: Path = Path("runs"),
    evaluated: int = 4000,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Train GST+ED (4 fresh segments, the table on disk and full) and evaluate exactly, on synthetic programs.

    Args:
        nodes: sizes of the programs.
        out: where stores are made; they are removed afterwards. 10^7 nodes take 1.5 GB on the way.
        evaluated: segments that an evaluation encodes at least, by repetition: holes between what the allocator gave
            out and took back come with time, not with size.

    Returns:
        One entry for each size: `segments`; `train_peak_mib`, `eval_peak_mib` and `prepare_peak_mib` (of the whole
        process; `..._above_start_mib`: less what it held after a small step; `..._mapped_mib`: most pages of mapped
        files); `prepare_workers_mib` (of all processes that partition); `prepare_seconds`, `step_ms` (median),
        `eval_seconds`, `store_mib`. And `train_ratio`, `eval_ratio`: the largest peak over the smallest.
    """
    columns: dict[str, list[Any]] = {}
    tasks = ("prepare", "train", "eval")
    for i, num_nodes in enumerate(nodes):
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="memory-", dir=out) as place:
            for j, task in enumerate(tasks):
                progress(f"{task} {num_nodes}", i * len(tasks) + j, len(nodes) * len(tasks))
                for key, value in _measure(task, num_nodes, Path(place), evaluated).items():
                    columns.setdefault(key, []).append(value)
    progress("done", len(nodes) * len(tasks), len(nodes) * len(tasks))
    ratios = {f"{task}_ratio": _ratio(columns[f"{task}_peak_mib"]) for task in ("train", "eval")}
    return {"nodes": list(nodes), **columns, **ratios, "machine": machine_record()}


def _ratio(peaks: Sequence[float]) -> float:
    return max(peaks) / min(peaks)


def _measure(task: str, num_nodes: int, place: Path, evaluated: int) -> dict[str, Any]:
    arguments = {"num_nodes": num_nodes} if task == "prepare" else {"evaluated": evaluated} if task == "eval" else {}
    figures, memory = watch(command_of(f"memory:{task}_in_child", place=str(place), **arguments))
    peaks = {"peak": memory.anonymous, "above_start": memory.anonymous - memory.start, "mapped": memory.mapped}
    if task == "prepare":
        peaks["workers"] = memory.workers
    return figures | {f"{task}_{key}_mib": round(value, 1) for key, value in peaks.items()}


# In the other process ----------------------------------------------------------------------------------------------


def prepare_in_child(num_nodes: int, place: str) -> dict[str, Any]:
    say()
    started = time.perf_counter()
    programs = SyntheticPrograms(num_nodes=num_nodes, num_configs=128, num_regions=20, configurable=0.1, scratch=place)
    store = prepare(programs, Path(place), MAX_NODES)
    seconds = time.perf_counter() - started
    (graph,) = open_store(store)
    store_bytes = sum(file.stat().st_size for file in store.iterdir())
    mib = store_bytes / 2**20
    return {"segments": graph.num_segments, "prepare_seconds": round(seconds, 2), "store_mib": round(mib, 1)}


def train_in_child(place: str) -> dict[str, Any]:
    configs = torch.arange(CONFIGS)[None]
    _steps(_small(), configs, Path(place), 1)
    graph = _stored(Path(place))
    say()
    return {"step_ms": round(1000 * _steps(graph, configs, Path(place), STEPS), 2)}


def eval_in_child(place: str, evaluated: int) -> dict[str, Any]:
    configs = torch.arange(CONFIGS)[None]
    _model().exact([_small()], configs)
    graph = _stored(Path(place))
    model, passes = _model(), -(-evaluated // graph.num_segments)
    say()
    started = time.perf_counter()
    for _ in range(passes):
        model.exact([graph], configs)
    return {"eval_seconds": round((time.perf_counter() - started) / passes, 2)}


def _small() -> SegmentedGraph:
    return segment(synthetic_program(2 * MAX_NODES, CONFIGS, configurable=0.1), MAX_NODES)


def _stored(place: Path) -> SegmentedGraph:
    (meta,) = place.glob("*/meta.json")
    return open_store(meta.parent)[0]


def _model(**settings: Any) -> GraphSegmentTraining:
    torch.manual_seed(0)
    encoder = SAGE(CHANNELS, LAYERS, num_opcodes=8, config_symbols=7)
    return GraphSegmentTraining(encoder, Head(CHANNELS), "mean", max_rows=MAX_ROWS, **settings)


def _steps(graph: SegmentedGraph, configs: torch.Tensor, place: Path, steps: int) -> float:
    """Train with a table in which every row of `configs` is known, as after the first epochs; median seconds."""
    table = EmbeddingTable(1, CHANNELS, tier="disk", path=place)
    model = _model(num_fresh=NUM_FRESH, keep_probability=0.5, table=table)
    assert model.keys is not None
    keys = model.keys.of(Catalogue.of([graph]), configs).unique()
    for part in keys.split(1 << 12):
        table.push(part, torch.randn(len(part), CHANNELS), 0)
    targets = torch.from_numpy(graph.targets[configs[0].numpy()])[None]
    optimizer = None
    seconds = []
    for _ in range(steps):
        started = time.perf_counter()
        loss = pairwise_hinge(model([graph], configs), targets)
        optimizer = optimizer or torch.optim.AdamW(model.parameters())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - started)
    return float(np.median(seconds))


# The memory of another process --------------------------------------------------------------------------------------


@dataclass
class Memory:
    """The most a process held, in MiB.

    Args:
        anonymous: its own memory, which it cannot give back while it is used.
        mapped: pages of files, its program's among them, which the system takes back whenever it likes.
        workers: own memory of all processes it started, together.
        start: its own memory when watching began.
    """

    anonymous: float = 0.0
    mapped: float = 0.0
    workers: float = 0.0
    start: float = 0.0

    def sample(self, pid: int) -> None:
        self.anonymous = max(self.anonymous, resident(pid, "RssAnon"))
        self.mapped = max(self.mapped, resident(pid, "RssFile"))
        self.workers = max(self.workers, sum(resident(child, "RssAnon") for child in _children(pid)))


def watch(command: Sequence[str]) -> tuple[dict[str, Any], Memory]:
    """Run a command that prints JSON objects, one a line: the first when it is ready, the last when it is done.

    Returns:
        The last one, and the memory from the first on, sampled every two milliseconds.

    Raises:
        ChildProcessError: it ended with another status than 0, or without the two.
    """
    memory = Memory()
    said: list[dict[str, Any]] = []
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, env=child_environment()) as child,
        selectors.DefaultSelector() as selector,
    ):
        assert child.stdout is not None
        selector.register(child.stdout, selectors.EVENT_READ)
        while True:
            memory.sample(child.pid)
            if selector.select(INTERVAL):
                line = child.stdout.readline()
                if not line:
                    break
                if not said:
                    memory = Memory(start=resident(child.pid, "RssAnon"))
                said.append(json.loads(line))
    if child.returncode or len(said) < 2:
        raise ChildProcessError(f"{' '.join(command)} ended with status {child.returncode}; see its words above")
    return said[-1], memory


def resident(pid: int, entry: str) -> float:
    """`RssAnon` or `RssFile` of a process in MiB; 0 if it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return int(status.split(f"{entry}:")[1].split()[0]) / 1024 if f"{entry}:" in status else 0.0


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, path.read_text().split())
        except OSError:
            continue
    return found
