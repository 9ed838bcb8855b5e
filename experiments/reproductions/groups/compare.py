"""Kendall's tau of predicted times of compiled groups, on programs that are left out, an eighth at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from experiments.bench.strangers_program import module_of
from experiments.reproductions.graphnet.reader import read_sources
from experiments.reproductions.groups.collect import MACHINE
from experiments.reproductions.timm.step_time.captured import operators_by_node
from experiments.reproductions.timm.step_time.estimate import TORCH
from experiments.reproductions.timm.step_time.kernels import kernels_of
from experiments.reproductions.timm.step_time.machines import machine_of
from experiments.reproductions.timm.step_time.rows import Setting, kernel_times, row_of
from gst.cost.metrics import kendall_tau
from gst.cost.model import CostModel
from gst.graphs.graph import Graph
from gst.programs import Program, capture_module
from gst.util.progress import bar
from gst.util.writing import write_json

FEWEST = 4  # groups of a program for a tau of its own
Logs = Float64[np.ndarray, " rows"]


@dataclass(frozen=True, eq=False)
class Rows:
    """Groups that ran compiled, one row for a group and a number of threads.

    Args:
        program: name of each row's program.
        group: number of the group in `graphs`.
        threads: of the compiled code.
        compiled, eager: logarithms of microseconds.
        peak: logarithms of microseconds at peak rates (`timm.step_time`), kernels one after the other.
        columns: what trees see: times at peak rates by class of kernels, shapes, and threads.
        graphs: the operations of each group, with what they read; its configurations are numbers of threads.
    """

    program: np.ndarray
    group: np.ndarray
    threads: np.ndarray
    compiled: Logs
    eager: Logs
    peak: Logs
    columns: Float64[np.ndarray, "rows columns"]
    graphs: list[Graph]

    def of(self, chosen: np.ndarray) -> Rows:
        """Some of the rows."""
        parts = {name: getattr(self, name)[chosen] for name in self.__dataclass_fields__ if name != "graphs"}
        return Rows(**parts, graphs=self.graphs)


def rows_of(data: Path, lines: Sequence[Mapping[str, Any]]) -> Rows:
    """Features and times of collected groups; those that failed are left out."""
    by_name = {line["program"]: line["groups"] for line in lines}
    rows: list[tuple[Any, ...]] = []
    graphs: list[Graph] = []
    for source in bar([each for each in read_sources(data) if each.name in by_name], desc="features"):
        program = capture_module(*module_of(source))
        by_node = operators_by_node(program)
        number: dict[tuple[int, ...], int] = {}
        for line in by_name[source.name]:
            nodes = tuple(line["nodes"])
            operations = [each for node in nodes for each in by_node[node]]
            if line["reason"] or all(each.is_view for each in operations):
                continue
            if nodes not in number:
                number[nodes] = len(graphs)
                graphs.append(graph_of(program, nodes, f"{source.name} {nodes[0]} {len(nodes)}"))
            peak, columns = _described(operations, line["threads"])
            rows.append((
                source.name, number[nodes], line["threads"], np.log(line["compiled_us"]), np.log(line["eager_us"]),
                peak, columns,
            ))  # fmt: skip
    if not rows:
        raise ValueError("no group ran compiled; collect some first")
    arrays = [np.array(each) for each in zip(*rows, strict=True)]
    return Rows(*arrays, graphs)


def graph_of(program: Program, nodes: Sequence[int], name: str) -> Graph:
    """The operations of a group and the values that these read, as the graph of a cost model whose configurations are
    one thread and two."""
    whole = program.graph
    seen = sorted({*nodes, *(each for node in nodes for each in program.operations[node].producers)})
    inside = np.zeros(whole.num_nodes, bool)
    inside[list(nodes)] = True
    position = np.full(whole.num_nodes, -1)
    position[seen] = np.arange(len(seen))
    edges = position[whole.edges[:, inside[whole.edges[1]]]]
    features = np.concatenate([whole.node_features[seen], inside[seen, None]], 1).astype(np.float32)
    configurable = position[list(nodes)]
    threads = np.broadcast_to(np.array([1.0, 2.0], np.float32)[:, None, None], (2, len(configurable), 1))
    return Graph(features, edges, whole.opcodes[seen], configurable, np.ascontiguousarray(threads), name=name)


def _described(operations: Sequence[Any], threads: int) -> tuple[float, np.ndarray]:
    kernels, machine = kernels_of(operations, "fp32", True, is_cpu=True), machine_of(MACHINE)
    terms, columns, _ = row_of(kernels, 1, 224, Setting(MACHINE, "infer", "fp32", False, TORCH, True))
    products, activations, parameters, _ = kernel_times(kernels, 1, machine)
    peak = float(np.maximum(products, activations + parameters).sum()) * 1e3
    return np.log(max(peak, 1e-3) / threads), np.concatenate([np.log(terms + 1e-5), columns, [threads]])


# Methods: they see the rows of other programs and predict logarithms ------------------------------------------------


def by_peak(rest: Rows, asked: Rows, seed: int) -> Logs:
    """At peak rates, divided by the threads; nothing is learned."""
    return asked.peak


def by_eager(rest: Rows, asked: Rows, seed: int) -> Logs:
    """As long as its operations one by one take, which has to be measured."""
    return asked.eager


def by_ridge(rest: Rows, asked: Rows, seed: int) -> Logs:
    """Ridge regression on the columns of the trees."""
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-2, 4, 13)))
    return np.asarray(model.fit(rest.columns, rest.compiled).predict(asked.columns))


def by_trees(rest: Rows, asked: Rows, seed: int) -> Logs:
    """Extremely randomized trees on the time over that at peak rates."""
    from sklearn.ensemble import ExtraTreesRegressor

    model = ExtraTreesRegressor(300, min_samples_leaf=2, random_state=seed)
    return np.asarray(model.fit(rest.columns, rest.compiled - rest.peak).predict(asked.columns) + asked.peak)


def by_network(rest: Rows, asked: Rows, seed: int) -> Logs:
    """`CostModel`, the network of Graph Segment Training, on the graphs of operations."""
    targets = {number: np.full(2, np.nan) for number in np.unique(rest.group).tolist()}
    for number, threads, time in zip(rest.group, rest.threads, rest.compiled, strict=True):
        targets[number][threads - 1] = np.exp(time)
    known = [(rest.graphs[number], each) for number, each in targets.items()]
    lessons = [with_targets(graph, each) for graph, each in known]
    model = CostModel(seed=seed)
    model.fit(lessons, epochs=EPOCHS)
    predicted = {number: model.predict(asked.graphs[number]) for number in np.unique(asked.group).tolist()}
    return np.log([predicted[group][threads - 1] for group, threads in zip(asked.group, asked.threads, strict=True)])


EPOCHS, FOLDS = 30, 8
Method = Callable[[Rows, Rows, int], Logs]
METHODS: dict[str, Method] = {
    "peak rates": by_peak, "operations one by one, measured": by_eager, "ridge": by_ridge, "trees": by_trees,
    "GST cost model": by_network,
}  # fmt: skip


def with_targets(graph: Graph, targets: Float64[np.ndarray, " configs"]) -> Graph:
    """The configurations whose target is known."""
    known = np.isfinite(targets)
    return Graph(
        graph.node_features, graph.edges, graph.opcodes, graph.config_nodes, graph.config_features[known],
        targets[known], name=graph.name,
    )  # fmt: skip


# The comparison ------------------------------------------------------------------------------------------------------


def compare(data: Path, lines: Sequence[Mapping[str, Any]], seeds: int, path: Path | None = None) -> dict[str, Any]:
    """Tau of each method on programs that are left out, an eighth at a time, with what it learned from the others.

    Returns:
        programs, groups, rows; of each method `tau` (mean over programs of the tau within one, and its 95 % interval by
        drawing programs anew), `tau_together` (of all rows) and `error` (median of the greater over the lesser, -1).
    """
    rows = rows_of(data, lines)
    names = np.unique(rows.program).tolist()
    result: dict[str, Any] = {
        "command": f"python -m experiments.reproductions.groups compare --seeds {seeds}",
        "programs": len(names), "groups": len(rows.graphs), "rows": len(rows.program), "methods": {},
        "machine": lines[0]["machine"],
    }  # fmt: skip
    predicted: dict[str, list[Logs]] = {name: [] for name in METHODS}
    for seed in bar(range(seeds), desc="seeds"):
        made = {name: np.zeros(len(rows.program)) for name in METHODS}
        fold = dict(zip(names, np.random.default_rng(seed).permutation(len(names)) % FOLDS, strict=True))
        folds = np.array([fold[name] for name in rows.program])
        for left_out in bar(range(min(FOLDS, len(names))), desc="folds"):  # whole programs
            asked = folds == left_out
            for name, method in METHODS.items():
                made[name][asked] = method(rows.of(~asked), rows.of(asked), seed)
        for name in METHODS:
            predicted[name].append(made[name])
    for name, each in predicted.items():
        result["methods"][name] = scores(rows, each)
    if path:
        write_json(path, result)
    return result


def scores(rows: Rows, predicted: Sequence[Logs]) -> dict[str, Any]:
    """See `compare`; means over seeds."""
    chosen = [np.flatnonzero(rows.program == name) for name in np.unique(rows.program)]
    chosen = [places for places in chosen if len(places) >= FEWEST]
    within = np.array([
        np.mean([kendall_tau(each[places], rows.compiled[places]) for each in predicted]) for places in chosen
    ])  # fmt: skip
    draws = np.random.default_rng(0).integers(len(within), size=(10_000, len(within)))
    low, high = np.percentile(within[draws].mean(1), [2.5, 97.5])
    errors = [np.median(np.expm1(np.abs(each - rows.compiled))) for each in predicted]
    return {
        "tau": [round(float(each), 3) for each in (within.mean(), low, high)],
        "tau_together": round(float(np.mean([kendall_tau(each, rows.compiled) for each in predicted])), 3),
        "error": round(float(np.mean(errors)), 3),
    }
