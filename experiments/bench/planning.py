"""Host time that one of many processes spends on planning and sorting rows in a step. It is measured in a single
process, over torch's fake process group, in which every message arrives at once."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from embedding_cache import EmbeddingTable
from embedding_cache.sharded import ShardedTable
from gst.data.loader import StepLoader
from gst.data.synthetic import synthetic_program
from gst.graphs.segments import SegmentedGraph, segment
from gst.method.estimator import GraphSegmentTraining
from gst.nn import SAGE, Head

GRAPHS, REPETITIONS = 8, 15


def planning_ms(
    processes: int, graphs: Sequence[SegmentedGraph], graphs_per_step: int, configs_per_step: int, num_fresh: int,
    channels: int,
) -> float:  # fmt: skip
    """Return the median milliseconds of host work of process 0: drawing a step, routing its rows, packing, unpacking
    and writing them. Their values are whatever lay in memory."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=processes)
    try:
        model = GraphSegmentTraining(
            SAGE(channels, 1, num_opcodes=8, config_symbols=7), Head(channels), "mean", num_fresh, 0.5,
            ShardedTable(EmbeddingTable(1, channels)),
        )  # fmt: skip
        model.register(graphs)
        every = [(graph, torch.arange(graph.num_configs)) for graph in graphs]
        every *= -(-processes * graphs_per_step // len(every))
        loader = StepLoader(every, graphs_per_step, configs_per_step, rank=0, world_size=processes)
        return statistics.median(_once(model, loader, channels) for _ in range(REPETITIONS))
    finally:
        dist.destroy_process_group()


def _once(model: GraphSegmentTraining, loader: StepLoader, channels: int) -> float:
    table = model.table
    assert isinstance(table, ShardedTable)
    step = next(iter(loader))
    began = time.perf_counter()
    draw = model.draw(step.graphs, step.configs, peers=step.peers)
    assert draw is not None
    rows = model.rows_of(draw)
    assert rows is not None
    rows.begin()
    rows.ages()
    fresh = draw.fresh.nonzero().squeeze(1)
    rows.push(torch.zeros(len(fresh), draw.configs.shape[1], channels), fresh)
    table.wait()
    return 1e3 * (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--settings", required=True)
    settings = json.loads(parser.parse_args().settings)
    nodes, max_nodes, counts = (settings.pop(name) for name in ("nodes", "max_nodes", "processes"))
    configs = settings["configs_per_step"]
    graphs = [segment(synthetic_program(nodes, 4 * configs, seed=seed), max_nodes) for seed in range(GRAPHS)]
    print(json.dumps({str(count): planning_ms(count, graphs, **settings) for count in counts}))


if __name__ == "__main__":
    main()
