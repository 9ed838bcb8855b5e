"""GraphNet samples as graphs: operators with their kinds, shapes and bytes. `gst prepare` cuts them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from experiments.reproductions.dataset_files import files_below
from experiments.reproductions.graphnet.reader import (
    BINARY,
    DOTTED,
    METHODS,
    Operation,
    operator_graph,
    sample_names,
    stream_sources,
)
from gst.data.source import GraphSource, fingerprint_of_files
from gst.graphs.graph import Graph

VERSION = 1  # of what is read
DIMENSIONS = 4  # of a result that have a column; those before them are one
_NAMES = {name for line in DOTTED.split(":") for name in line.split()} | METHODS
_NAMES |= {getattr(function, "__name__", "") for function in BINARY.values()} | {"getitem", "setitem", "floor_divide"}
KINDS = {name: number for number, name in enumerate(sorted(_NAMES), 1)}
"""Opcode of each kind of operator; 0 is any other."""
COLUMNS = (
    *(f"dimension {place}" for place in range(DIMENSIONS)), "rank", "elements", "bytes read", "bytes of parameters",
    "bytes written", "inputs", "is view",
)  # fmt: skip
"""Node features. Sizes are those of one sample; bytes are those of the types in the source."""


def fx_graph(operations: Sequence[Operation], name: str = "") -> Graph:
    """Build the graph of the operators of a sample (`reader.operator_graph`).

    Node features are `COLUMNS`, opcodes `KINDS`. Edges lead from the operator that makes a value to those that read it.
    Without operators it raises ValueError.
    """
    if not operations:
        raise ValueError("the program has no operators")
    writer: dict[int, int] = {}
    pairs: set[tuple[int, int]] = set()
    rows = []
    for place, operation in enumerate(operations):
        pairs |= {(writer[value.name], place) for value in operation.reads if value.name in writer}
        writer |= {value.name: place for value in operation.writes}
        shape = operation.writes[0].shape if operation.writes else ()
        last = shape[max(len(shape) - DIMENSIONS, 0) :]
        parameters, activations = (
            sum(value.numel * value.dtype.itemsize for value in operation.reads if value.is_parameter == wanted)
            for wanted in (True, False)
        )
        rows.append((
            *last, *[0] * (DIMENSIONS - len(last)), len(shape), sum(value.numel for value in operation.writes),
            activations, parameters, sum(value.numel * value.dtype.itemsize for value in operation.writes),
            len(operation.reads), operation.is_view,
        ))  # fmt: skip
    edges = np.array(sorted((source, target) for source, target in pairs if source != target), np.int64).reshape(-1, 2)
    opcodes = np.array([KINDS.get(operation.kind, 0) for operation in operations], np.int64)
    return Graph(np.array(rows, np.float32), np.ascontiguousarray(edges.T), opcodes, name=name)


@dataclass(frozen=True)
class FxGraphs(GraphSource):
    """The samples of a GraphNet archive or folder as graphs without targets, in the order of its files.

    Attributes:
        skipped: number of samples left out, by reason with file and line; filled while the graphs are read.

    Raises:
        ValueError: the archive is cut off, or no sample can be read.

    Examples:
        >>> from experiments.reproductions.graphnet.reader import FxSource, operator_graph
        >>> block = "class {0}:\\n name = '{0}'\\n shape = {1}\\n dtype = 'torch.float32'\\n data = None\\n"
        >>> model = "def forward(self, x, w):\\n y = torch.matmul(x, w)\\n return (torch.relu(y),)\\n"
        >>> source = FxSource("small", model, block.format("x", [2, 3]) + block.format("w", [3, 4]))
        >>> fx_graph(operator_graph(source)).edges.tolist()
        [[0], [1]]
    """

    path: str
    skipped: Counter[str] = field(default_factory=Counter, init=False, repr=False, compare=False)

    def __iter__(self) -> Iterator[Graph]:
        self.skipped.clear()
        count = 0
        for source in stream_sources(self.path):
            try:
                graph = fx_graph(operator_graph(source), source.name)
            except ValueError as error:
                self.skipped[str(error)] += 1
                continue
            count += 1
            yield graph
        if not count:
            raise ValueError(next(iter(self.skipped), f"{self.path} holds no sample: want model.py and weight_meta.py"))

    def __len__(self) -> int:
        return len(sample_names(self.path))

    def fingerprint(self) -> str:
        """Return the same text for equal files."""
        return fingerprint_of_files(files_below(self.path, "graphnet.tar.xz"), f"FxGraphs {VERSION}")
