"""XLA programs (HLO modules) as graphs with the nodes, edges and features that TpuGraphs publishes of them.

Encoded as in `EncodeHloModule` (hlo_encoder.cc), `FeaturizeHloInstruction` (featurizers.h) and `FeaturizeLayoutConfig`
(tuning_data_iterator.cc) of google-research-datasets/tpu_graphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Float64, Int8, Int64

from gst.data.hlo.modules import ModuleTuningData, read_tuning
from gst.data.tpugraphs import CONFIGURABLE, ELEMENT_TYPES, NODE_FEATURES, WINDOW_NUMBERS, merge_repeats, opcode_number
from gst.graphs.graph import Graph

LARGEST_RANK = 64  # far above any array that was ever compiled; it keeps sums and products cheap
TENSORS, DIMENSIONS = 3, 6  # layouts of output, input and kernel; dimensions beyond the sixth are left out
DEFAULT = -1  # no layout asked for: the compiler chooses


def read_hlo(path: Path | str, merge: bool = True) -> Graph:
    """Read an XLA program, from a file that `gst.data.hlo.modules.read_tuning` reads.

    Nodes, opcodes, edges and the 140 node features are those that TpuGraphs publishes of the same module. Tuning data
    have configurable nodes, configurations and runtimes in ns; failed runs are left out. Other modules get one
    configuration without a runtime: -1, the choice of the compiler, at every convolution, dot and reshape. Text and
    protobuf of a compiled module list their instructions in different orders, which nodes follow.

    Examples:
        >>> text = Path("step.txt").write_text("HloModule m\\nENTRY e {\\nROOT x = f32[3] parameter(0)\\n}")
        >>> graph = read_hlo("step.txt")
        >>> graph.num_nodes, graph.node_features.shape[1]
        (1, 140)

    Args:
        merge: merge repeated configurations, see `gst.data.tpugraphs.merge_repeats`.

    Raises:
        ValueError: there is no such file, it is no XLA program, or it is damaged; the message names the place.
    """
    path = Path(path)
    module, tuning = read_tuning(path)
    try:
        graph = _graph(module, tuning, path.stem)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return merge_repeats(graph) if merge and graph.num_configs > 1 else graph


def _graph(module: Any, tuning: Any, name: str) -> Graph:
    node_features, edges, opcodes = _encoded(module)
    if not tuning.config_index_to_node:
        config_nodes, tuning = np.flatnonzero(np.isin(opcodes, sorted(CONFIGURABLE))), ModuleTuningData()
    elif (last := max(tuning.config_index_to_node)) < len(opcodes):
        config_nodes = np.array(tuning.config_index_to_node, np.int64)
    else:
        raise ValueError(f"its configurations name node {last}, but nodes are 0..{len(opcodes) - 1}")
    return Graph(node_features, edges, opcodes, config_nodes, *_configurations(tuning, len(config_nodes)), name=name)


def _encoded(
    module: Any,
) -> tuple[Float32[np.ndarray, "nodes 140"], Int64[np.ndarray, "2 edges"], Int64[np.ndarray, " nodes"]]:
    """Encode the instructions of all computations as node features, edges and opcodes, in the order of the module.

    Edges lead from producer to consumer, ordered by consumer, then producer, each once; an instruction that calls a
    computation consumes what its root produces. Operands stand before their users, computations before their callers.
    """
    num_nodes = sum(len(computation.instructions) for computation in module.computations)
    features = np.empty((num_nodes, len(NODE_FEATURES)), np.float32)
    opcodes = np.empty(num_nodes, np.int64)
    pairs: list[tuple[int, int]] = []
    roots: dict[int, int] = {}
    start = 0
    for computation in module.computations:
        positions: dict[int, int] = {}
        for node, instruction in enumerate(computation.instructions, start):
            try:
                pairs += [(node, producer) for producer in _producers(instruction, positions, roots)]
                row = _features(instruction, instruction.id == computation.root_id)
            except ValueError as error:
                raise ValueError(f"instruction {instruction.name!r}: {error}") from None
            features[node] = np.array(row, np.int64)  # rounded once, from 64-bit integers, as C++ does
            opcodes[node] = opcode_number(instruction.opcode)
            positions[instruction.id] = node
        start += len(computation.instructions)
        if computation.id in roots:
            raise ValueError(f"computation {computation.name!r} has the id of another")
        if computation.root_id not in positions:
            raise ValueError(f"computation {computation.name!r} lacks its root; the file is damaged")
        roots[computation.id] = positions[computation.root_id]
    edges = np.unique(np.array(pairs, np.int64).reshape(-1, 2), axis=0)
    return features, np.ascontiguousarray(edges[:, ::-1].T), opcodes


def _producers(instruction: Any, positions: dict[int, int], roots: dict[int, int]) -> list[int]:
    if not instruction.opcode:
        raise ValueError("it has no opcode; the file is damaged")
    if instruction.id in positions:
        raise ValueError("it has the id of another")
    try:
        operands = [positions[operand] for operand in instruction.operand_ids]
    except KeyError as error:
        raise ValueError(f"its operand {error} is no earlier instruction of its computation") from None
    try:
        return operands + [roots[callee] for callee in instruction.called_computation_ids]
    except KeyError as error:
        raise ValueError(f"it calls {error}, which is no earlier computation") from None


def _features(instruction: Any, is_root: bool) -> list[int]:
    """Return the columns `NODE_FEATURES` of one `HloInstruction`."""
    shape, slices = instruction.shape, instruction.slice_dimensions
    window, padding = instruction.window.dimensions, instruction.padding_config.dimensions
    convolution, reversal = instruction.convolution_dimension_numbers, _each(window, "window_reversal")
    if any(size < 0 for size in shape.dimensions):
        raise ValueError(f"its shape has a dimension of size {min(shape.dimensions)}; sizes must be known")
    return [
        int(is_root),
        0,
        *(int(number == shape.element_type) for number in ELEMENT_TYPES.values()),
        *_with_totals(shape.dimensions, 6),
        len(shape.tuple_shapes),
        instruction.parameter_number,
        *_first(instruction.dimensions, 6),
        *(number for part in WINDOW_NUMBERS for number in _with_totals(_each(window, part), 6)),
        *_first(reversal, 6),
        sum(reversal),
        len(reversal) - sum(reversal),
        convolution.input_batch_dimension,
        convolution.input_feature_dimension,
        *_first(convolution.input_spatial_dimensions, 4),
        convolution.kernel_input_feature_dimension,
        convolution.kernel_output_feature_dimension,
        *_first(convolution.kernel_spatial_dimensions, 4),
        convolution.output_batch_dimension,
        convolution.output_feature_dimension,
        instruction.feature_group_count,
        instruction.batch_group_count,
        *(number for part in ("start", "stride", "limit") for number in _with_totals(_each(slices, part), 2)),
        *_with_totals(instruction.dynamic_slice_sizes, 2),
        *(number for end in ("low", "high") for number in _with_totals(_each(padding, f"edge_padding_{end}"), 2)),
        int(instruction.is_stable),
        *_first(shape.layout.minor_to_major, 6),
    ]


def _each(messages: Iterable[Any], field: str) -> list[int]:
    return [getattr(message, field) for message in messages]


def _first(numbers: Sequence[int], length: int) -> list[int]:
    if len(numbers) > LARGEST_RANK:
        raise ValueError(f"it lists {len(numbers)} numbers where an array has at most {LARGEST_RANK} dimensions")
    first = list(numbers[:length])
    return first + [0] * (length - len(first))


def _with_totals(numbers: Sequence[int], length: int) -> list[int]:
    first = _first(numbers, length)
    totals = [sum(numbers), prod(numbers)]
    if max(map(abs, totals)) >= 2**63:
        raise ValueError(f"the sum or the product of its {list(numbers[:6])} exceeds 64 bits; no such array exists")
    return first + totals


def _configurations(
    tuning: Any, num_configurable: int
) -> tuple[Int8[np.ndarray, "configs configurable 18"], Float64[np.ndarray, " configs"]]:
    """Return the configurations of the runs that did not fail, padded with -1, and their runtimes in ns.

    Without such a run there is one configuration, the default, with the runtime NaN.
    """
    runs = [run for run in tuning.runs if not run.error and run.profile.compute_time_ns > 0]
    for run in runs:
        count = len(run.module_config.layout_config.nodes)
        if count != num_configurable:
            raise ValueError(f"a run configures {count} nodes, but {num_configurable} are configurable")
    features = np.full((max(len(runs), 1), num_configurable, TENSORS * DIMENSIONS), DEFAULT, np.int8)
    for configuration, run in zip(features, runs, strict=False):
        for row, node in zip(configuration, run.module_config.layout_config.nodes, strict=True):
            _fill(row, node)
    return features, np.array([run.profile.compute_time_ns for run in runs] or [np.nan], np.float64)


def _fill(row: Int8[np.ndarray, "18"], node: Any) -> None:
    if len(node.tensors) > TENSORS:
        raise ValueError(f"a configuration has layouts of {len(node.tensors)} tensors, want at most {TENSORS}")
    for start, tensor in zip(range(0, len(row), DIMENSIONS), node.tensors, strict=False):
        dims = tensor.dims[:DIMENSIONS]
        if any(not -1 <= dim < 127 for dim in dims):
            raise ValueError(f"a configuration has the layout {list(dims)}; its entries are numbers of dimensions")
        row[start : start + len(dims)] = dims
