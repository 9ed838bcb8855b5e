"""Training with several processes compared with one: graphs a second, and the share of steps that goes to the table.

    python -m experiments.bench distributed --processes 4 --steps 20

Every process has one thread. One process and several train alternately, on the same graphs and with as many graphs per
process and step, so that both do the same work per process. Planning a step of many processes is host work, measured in
a single process over torch's fake process group, in which every message arrives at once.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from embedding_cache import EmbeddingTable
from embedding_cache.sharded import ShardedTable
from experiments.bench.child import child_environment, command_of
from gst.cost.losses import pairwise_hinge
from gst.data.loader import Step, StepLoader
from gst.data.synthetic import synthetic_program
from gst.graphs.segments import SegmentedGraph, segment
from gst.machine.devices import machine_record
from gst.method.estimator import GraphSegmentTraining
from gst.nn import SAGE, Head
from gst.util.progress import Progress, no_progress

GRAPHS, NODES, CONFIGS, MAX_NODES = 8, 16_000, 64, 1_000
GRAPHS_PER_STEP, CONFIGS_PER_STEP, NUM_FRESH = 2, 16, 2
CHANNELS, LAYERS = 128, 3
WARMUP = 2
ALONE = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "NUMBA_NUM_THREADS": "1"}
PLANNED_FOR = (2, 4, 8, 16, 32, 64, 128, 256)


REPETITIONS = 15  # of planning
HELP = {
    "processes": "of one thread each", "steps": "to time in each turn", "rounds": "turns of one process and of several",
    "nodes": "of each graph",
}  # fmt: skip


def run(
    processes: int = 2, steps: int = 12, rounds: int = 3, nodes: int = NODES, progress: Progress = no_progress
) -> dict[str, Any]:
    """Train with one process and with several, alternately.

    Returns:
        `speedup`: graphs a second of several processes over those of one, the median of rounds; `efficiency`: over the
        number of processes. `apart`: the speedup of as many processes that train for themselves and never wait for each
        other, which is what the machine allows. `graphs_per_second`: medians, by the number of processes.
        `table_share`: of a step's time, waiting for and handling rows of the table and planning for all processes, the
        median of the slowest process. `step_ms`, `table_ms`, `plan_ms`: medians with several processes. `pull_bytes`,
        `push_bytes`, `gradient_bytes`: that a process sends in a step. `planning_ms`: by the number of processes, host
        work of one of them in a step.
    """
    turns: dict[str, list[dict[str, float]]] = {"1": [], str(processes): [], "apart": []}
    for turn in range(rounds):
        for number, (kind, seen) in enumerate(turns.items()):
            progress(f"processes: {kind}", len(turns) * turn + number, len(turns) * rounds)
            seen.append(_train_in(1 if kind == "1" else processes, steps, nodes, together=kind != "apart"))
    progress("done", len(turns) * rounds, len(turns) * rounds)
    rates = {kind: [each["graphs_per_second"] for each in seen] for kind, seen in turns.items()}
    ratios, apart = (
        [many / one for one, many in zip(rates["1"], rates[kind], strict=True)] for kind in (str(processes), "apart")
    )
    middle = {key: statistics.median(each[key] for each in turns[str(processes)]) for key in turns[str(processes)][0]}
    return {
        "speedup": statistics.median(ratios),
        "efficiency": statistics.median(ratios) / processes,
        "apart": statistics.median(apart),
        **{key: value for key, value in middle.items() if key != "graphs_per_second"},
        "planning_ms": _planning(nodes),
        "graphs_per_second": {kind: statistics.median(each) for kind, each in rates.items()},
        "rounds": {"speedup": ratios, **rates},
        "setting": {
            "processes": processes, "steps": steps, "graphs": GRAPHS, "nodes": nodes, "configs": CONFIGS_PER_STEP,
            "graphs_per_step": GRAPHS_PER_STEP, "max_nodes": MAX_NODES, "num_fresh": NUM_FRESH, "channels": CHANNELS,
            "layers": LAYERS,
        },
        "machine": machine_record(),
    }  # fmt: skip


def _planning(nodes: int) -> dict[str, float]:
    command = command_of("distributed:planning", nodes=nodes, processes=PLANNED_FOR)
    answer = subprocess.run(command, stdout=subprocess.PIPE, env=child_environment() | ALONE, check=True).stdout
    result: dict[str, float] = json.loads(answer)
    return result


def _train_in(processes: int, steps: int, nodes: int, together: bool = True) -> dict[str, float]:
    """The slowest process's figures, and the graphs of all; each for itself if not `together`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = command_of("distributed:train", steps=steps, nodes=nodes)
    ranks = range(processes) if together else [0] * processes
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes if together else 1)}
    environment = child_environment() | common | ALONE
    children = [
        subprocess.Popen(command, stdout=subprocess.PIPE, env=environment | {"RANK": str(rank)}) for rank in ranks
    ]
    answers = [child.communicate()[0] for child in children]
    if any(child.returncode for child in children):
        raise ChildProcessError(f"{' '.join(command)} failed; see its words above")
    seen = [json.loads(answer) for answer in answers]
    rate = sum(GRAPHS_PER_STEP * steps / each.pop("seconds") for each in seen)
    return {key: max(each[key] for each in seen) for key in seen[0]} | {"graphs_per_second": rate}


class Clock:
    """Seconds spent in what `timed` surrounds."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def timed(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def within(*arguments: Any, **options: Any) -> Any:
            with self.timed():
                return function(*arguments, **options)

        return within


def train(steps: int, nodes: int) -> dict[str, float]:
    """Run the training of one process, alone or one of several. Times begin and end together."""
    torch.set_num_threads(1)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world_size > 1:
        dist.init_process_group("gloo")
    graphs = _graphs(nodes)
    loader = _loader(graphs, rank, world_size)
    torch.manual_seed(0)
    model = _model(LAYERS, is_sharded=world_size > 1)
    model.embed(graphs[:1], torch.zeros(1, 1, dtype=torch.int64))
    model.register(graphs)
    parallel = model if world_size == 1 else nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    table, plan = _clocks(model)
    sent = model.table.sent_bytes if isinstance(model.table, ShardedTable) else {"pull": 0, "push": 0}
    stream, before, began = _steps(loader), dict(sent), 0.0
    for number in range(WARMUP + steps):
        if number == WARMUP:
            table.seconds = plan.seconds = 0.0
            before = dict(sent)
            _meet(world_size)
            began = time.perf_counter()
        step = next(stream)
        draw = model.draw(step.graphs, step.configs, peers=step.peers)
        assert draw is not None
        loss = pairwise_hinge(parallel(prefetched=model.load(draw)), step.targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    _meet(world_size)
    seconds = time.perf_counter() - began
    spent = table.seconds + plan.seconds
    gradient = sum(parameter.nbytes for parameter in model.parameters())
    per_step = {"step_ms": seconds, "table_ms": spent, "plan_ms": plan.seconds}
    if world_size > 1:
        dist.destroy_process_group()
    return {
        "seconds": seconds,
        **{key: 1e3 * value / steps for key, value in per_step.items()},
        "table_share": spent / seconds,
        **{f"{name}_bytes": (sent[name] - before[name]) / steps for name in ("pull", "push")},
        "gradient_bytes": gradient,
    }


def _graphs(nodes: int) -> list[SegmentedGraph]:
    return [segment(synthetic_program(nodes, CONFIGS, seed=seed), MAX_NODES) for seed in range(GRAPHS)]


def _loader(graphs: Sequence[SegmentedGraph], rank: int, world_size: int) -> StepLoader:
    every = [(graph, torch.arange(graph.num_configs)) for graph in graphs]
    every *= -(-world_size * GRAPHS_PER_STEP // len(every))
    return StepLoader(every, GRAPHS_PER_STEP, CONFIGS_PER_STEP, rank=rank, world_size=world_size)


def _model(layers: int, is_sharded: bool) -> GraphSegmentTraining:
    table, encoder = EmbeddingTable(1, CHANNELS), SAGE(CHANNELS, layers, num_opcodes=8, config_symbols=7)
    stored = ShardedTable(table) if is_sharded else table
    return GraphSegmentTraining(encoder, Head(CHANNELS), "mean", NUM_FRESH, 0.5, stored)


def _steps(loader: StepLoader) -> Iterator[Step]:
    while True:
        yield from loader


def _meet(world_size: int) -> None:
    if world_size > 1:
        dist.barrier()


def _clocks(model: GraphSegmentTraining) -> tuple[Clock, Clock]:
    """Around all that a table of several processes does in a step, and around drawing and planning it."""
    waiting, planning = Clock(), Clock()
    if not isinstance(model.table, ShardedTable):
        return waiting, planning
    request = model.table.request

    def requested(*arguments: Any) -> Any:
        pulled = request(*arguments)
        pulled.wait = waiting.around(pulled.wait)  # type: ignore[method-assign]
        return pulled

    object.__setattr__(model.table, "request", waiting.around(requested))
    object.__setattr__(model.table, "submit", waiting.around(model.table.submit))
    for name in ("draw", "rows_of"):  # of all processes: grows with their number
        object.__setattr__(model, name, planning.around(getattr(model, name)))
    return waiting, planning


def planning(nodes: int, processes: Sequence[int]) -> dict[str, float]:
    """Return the median milliseconds of host work of process 0 in a step, by the number of processes: drawing it,
    routing its rows, packing, unpacking and writing them. Their values are whatever lay in memory."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.set_num_threads(1)
    graphs, result = _graphs(nodes), dict[str, float]()
    for count in processes:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)
        model, loader = _model(1, is_sharded=True), _loader(graphs, 0, count)
        model.register(graphs)
        result[str(count)] = statistics.median(_planned_ms(model, loader) for _ in range(REPETITIONS))
        dist.destroy_process_group()
    return result


def _planned_ms(model: GraphSegmentTraining, loader: StepLoader) -> float:
    table = model.table
    assert isinstance(table, ShardedTable)
    step = next(iter(loader))
    began = time.perf_counter()
    draw = model.draw(step.graphs, step.configs, peers=step.peers)
    assert draw is not None
    rows = model.rows_of(draw)
    assert rows is not None
    rows.begin()
    fresh = draw.fresh.nonzero().squeeze(1)
    rows.push(torch.zeros(len(fresh), draw.configs.shape[1], CHANNELS), fresh, rows.ages()[fresh] >= 0)
    table.wait()
    return 1e3 * (time.perf_counter() - began)
