"""Time to score a plan of a giant program that differs in one operation from a plan with a known score.

The program is made, the cost model has learned next to nothing: how long it takes does not depend on what it says.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from gst.cost import CostModel
from gst.cost.rescoring import Rescorer
from gst.graphs.graph import Graph
from gst.lowering.plan import Plan
from gst.machine.devices import Device, machine_record
from gst.placement.cost_models import PlanChanges
from gst.placement.measured_plans import Profiled, plans_graph
from gst.util.progress import Progress, no_progress

SMALL = 1_000  # nodes of the program that the model learns from
MEMBERS = 3
NUM_OPCODES = 64
NAMES = ("cpu:0", "cpu:1", "cpu:0-1")
CORES = ((0,), (1,), (0, 1))


def run(
    num_nodes: int = 80_000, num_moves: int = 30, seed: int = 0,
    progress: Progress = no_progress,
) -> dict[str, Any]:  # fmt: skip
    """Score plans that move one operation of a random plan each, one after the other as a local search does, and some
    of them with everything encoded.

    Returns:
        `predict_seconds` of `CostModel.predict` of one plan, its features and the cutting of the program included;
        `fresh_seconds` of a plan that has nothing in common with another, of a program that is cut already;
        `move_seconds` of one that is scored again (median; `move_low` and `move_high`: a tenth of the moves is below,
        above), of which `features_seconds` are its features; `times_faster`: fresh / move; `begin_seconds` of the
        first plan; `segments`; `encoded`: segments for each move; `difference`: the largest relative one of a runtime.

    Raises:
        ValueError: there are too few nodes or moves.
    """
    if num_nodes < 100 or num_moves < 1:
        raise ValueError(f"{num_nodes} nodes and {num_moves} moves; take 100 and 1 at least")
    generator = np.random.default_rng(seed)
    model = _learned(generator)
    profiled = _program(num_nodes, generator)
    base = _plan(num_nodes, generator)
    moves = [_moved(base, generator) for _ in range(num_moves)]
    wholes = []
    for done, plan in enumerate([base, *moves[:3]]):
        progress("scoring plans whole", done, 4)
        started = time.perf_counter()
        runtime = model.predict(plans_graph(profiled, [plan]))[0]
        wholes.append((time.perf_counter() - started, runtime))
    started = time.perf_counter()
    features, rescorer = PlanChanges(profiled), Rescorer(model, plans_graph(profiled, [base]))
    begin_seconds, encoded = time.perf_counter() - started, rescorer.num_encoded
    times = np.empty((num_moves, 2))
    said = np.empty(num_moves)
    for number, plan in enumerate(moves):
        started = time.perf_counter()
        change = features.change(base, plan)
        times[number, 0] = time.perf_counter() - started
        said[number] = rescorer.predict([change])[0]
        times[number, 1] = time.perf_counter() - started
    progress("scored moves", 1, 1)
    started = time.perf_counter()
    encoded_by_moves = rescorer.num_encoded
    rescorer.predict([features.change(base, _plan(num_nodes, generator))])
    fresh = time.perf_counter() - started
    seconds, truth = (np.array(each) for each in zip(*wholes[1:], strict=True))
    low, middle, high = np.quantile(times[:, 1], [0.1, 0.5, 0.9])
    return {
        "predict_seconds": float(np.median(seconds)), "fresh_seconds": fresh, "move_seconds": float(middle),
        "move_low": float(low), "move_high": float(high), "features_seconds": float(np.median(times[:, 0])),
        "times_faster": fresh / float(middle), "begin_seconds": begin_seconds,
        "segments": rescorer.num_segments, "encoded": (encoded_by_moves - encoded) / num_moves,
        "difference": float(np.abs(said[: len(truth)] / truth - 1).max()), "nodes": num_nodes, "moves": num_moves,
        "members": MEMBERS, "seed": seed, "machine": machine_record(),
    }  # fmt: skip


def _learned(generator: np.random.Generator) -> CostModel:
    """A model whose layers have their widths."""
    plans = [_plan(SMALL, generator) for _ in range(16)]
    graph = plans_graph(_program(SMALL, generator), plans, generator.uniform(1.0, 2.0, len(plans)))
    model = CostModel(num_opcodes=NUM_OPCODES, log_config=False, members=MEMBERS)
    model.fit([graph], epochs=1)
    return model


def _program(num_nodes: int, generator: np.random.Generator) -> Profiled:
    """Every node but the first reads values of two of the twenty nodes before it."""
    consumers = np.repeat(np.arange(1, num_nodes), 2)
    producers = np.maximum(consumers - generator.integers(1, 21, len(consumers)), 0)
    graph = Graph(
        generator.normal(size=(num_nodes, 4)).astype(np.float32), np.stack([producers, consumers]),
        generator.integers(NUM_OPCODES, size=num_nodes), name=f"made-{num_nodes}",
    )  # fmt: skip
    alone = generator.lognormal(3.0, 1.0, num_nodes)
    devices = tuple(
        Device(name, "cpu", cores, len(cores), "host", "made") for name, cores in zip(NAMES, CORES, strict=True)
    )
    sizes = generator.integers(1, 1 << 20, num_nodes)
    return Profiled(graph, sizes, devices, np.stack([alone, alone, alone / 1.6]))


def _plan(num_nodes: int, generator: np.random.Generator) -> Plan:
    """Stretches of the program on devices drawn for them, and an order of its own."""
    device = generator.integers(len(NAMES), size=num_nodes // 50 + 1)
    return Plan(NAMES, np.repeat(device, 50)[:num_nodes], generator.permutation(num_nodes))


def _moved(plan: Plan, generator: np.random.Generator) -> Plan:
    """The same plan with one operation on another device."""
    placement = plan.placement.copy()
    node = int(generator.integers(len(placement)))
    placement[node] = (placement[node] + generator.integers(1, len(NAMES))) % len(NAMES)
    return replace(plan, placement=placement)
