"""NeuSight's transformers as graphs: operators of a traced model; the GPUs that it was timed on are configurations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.reproductions.dataset_files import files_below
from experiments.reproductions.neusight.dataset import Case, Machine, Operation, read_neusight
from gst.data.source import GraphSource, fingerprint_of_files
from gst.graphs.graph import Graph

VERSION = 2  # of what is read
PRODUCTS = ("addmm", "Linear", "Conv1D", "bmm", "matmul", "baddbmm", "einsum")
KINDS = (
    *PRODUCTS, "Embedding", "LayerNorm", "Dropout", "softmax", "add", "mul", "truediv", "div", "sub", "pow", "tanh",
    "relu", "gelu", "where", "to", "type", "float", "view", "reshape", "permute", "transpose", "split", "contiguous",
    "getitem", "cat", "placeholder", "output", "get_attr",
)  # fmt: skip
"""Kinds of operators, in the order of their opcodes from 1 on; 0 is any other."""
CALLS = ("call_module", "call_function", "call_method")


@dataclass(frozen=True)
class NeuSightTimes(GraphSource):
    """Whole-model times of transformers: one graph for each model, mode, length, batch and option, with the GPUs that
    it was timed on as configurations of every operator. Targets are nanoseconds.

    Node features: number of dimensions, elements of the result and of what is read, floating-point operations, and how
    often the operator occurs in the model. Configuration features of an operator: log of microseconds of its
    operations and of its bytes at the peak rates of the GPU, and log of these rates. Names are `MODEL/...`, so that a
    split by groups keeps models apart.

    Args:
        path: `neusight.tar.xz`, or the folder unpacked from it.
        mode: `inf`, `train` or `all`.

    Raises:
        ValueError: there is no such mode, the archive is cut off, or a machine has no rates; the message says
            where.
    """

    path: str
    mode: str = "all"

    def __post_init__(self) -> None:
        if self.mode not in ("all", "inf", "train"):
            raise ValueError(f"mode is {self.mode!r}; choose all, inf, train")

    def __iter__(self) -> Iterator[Graph]:
        dataset = read_neusight(self.path)
        groups: dict[tuple[str, str, int, int, str], dict[int, list[Case]]] = {}
        for case in dataset.cases:
            if case.operations and case.time_ms > 0 and self.mode in ("all", case.mode):
                key = (case.model, case.mode, case.length, case.batch, case.option)
                groups.setdefault(key, {}).setdefault(len(case.operations), []).append(case)
        for key in sorted(groups):
            name = "/".join(map(str, filter(None, key)))
            for number, (count, cases) in enumerate(groups[key].items()):  # some GPUs ran other operators
                machines = [dataset.machines[each.machine] for each in cases]
                yield _graph(f"{name}/{count} operators" if number else name, cases, machines)

    def fingerprint(self) -> str:
        """Equal for equal files and settings, so that a segment store is found without reading the files."""
        return fingerprint_of_files(files_below(self.path, "neusight.tar.xz"), f"NeuSight {VERSION} {self.mode}")


def _graph(name: str, cases: Sequence[Case], machines: Sequence[Machine]) -> Graph:
    operations = cases[0].operations
    opcodes = [KINDS.index(each.kind) + 1 if each.kind in KINDS else 0 for each in operations]
    work = np.array([_work(each) for each in operations], np.float64)
    repeats = np.array(cases[0].repeats(), np.float64)
    features = np.stack([
        [len(each.output_shape) for each in operations], [math.prod(each.output_shape) for each in operations],
        [sum(map(math.prod, each.input_shapes)) for each in operations], work[:, 0], repeats,
    ], 1)  # fmt: skip
    edges = [(source, place) for place, each in enumerate(operations) for source in sorted(set(each.inputs))]
    busy = np.array([place for place, each in enumerate(operations) if each.call in CALLS], np.int64)
    configurations = np.stack([_features(work[busy] * repeats[busy, None], machine) for machine in machines])
    return Graph(
        features.astype(np.float32), np.array(edges, np.int64).reshape(-1, 2).T.copy(), np.array(opcodes, np.int64),
        busy, configurations, np.array([round(each.time_ms * 1e6) for each in cases], np.float64), name=name,
    )  # fmt: skip


def _work(operation: Operation) -> tuple[float, float]:
    """Floating-point operations and bytes of four a number."""
    elements = math.prod(operation.output_shape)
    moved = 4.0 * (elements + sum(map(math.prod, operation.input_shapes)))
    if operation.kind in PRODUCTS and operation.input_shapes:
        shapes = [shape for shape in operation.input_shapes if len(shape) > 1] or [(1,)]
        first = shapes[1] if operation.kind == "addmm" and len(shapes) > 2 else shapes[0]
        return 2.0 * elements * first[-1], moved
    return float(elements), moved


def _features(work: np.ndarray, machine: Machine) -> np.ndarray:
    rates = np.array([machine.matrix_flops, machine.bandwidth])
    times = np.log(work / rates * 1e6 + 1e-3)
    return np.concatenate([times, np.broadcast_to(np.log(rates / 1e12), times.shape)], 1).astype(np.float32)
