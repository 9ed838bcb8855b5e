"""From an HLO module to the arrays of a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from gst.data.hlo.features import NODE_FEATURES, node_features
from gst.data.hlo.opcodes import opcode_number


@dataclass(frozen=True, eq=False)
class ModuleGraph:
    """The instructions of all computations of a module as nodes, in the order of the module.

    Args:
        node_features: the columns `NODE_FEATURES`.
        opcodes: see `opcodes.OPCODE_NAMES`.
        edges: producer (row 0) to consumer (row 1), ordered by consumer, then producer; no edge twice. An instruction
            that calls a computation consumes what the root of that computation produces.
    """

    node_features: Float32[np.ndarray, "nodes 140"]
    opcodes: Int64[np.ndarray, " nodes"]
    edges: Int64[np.ndarray, "2 edges"]


def module_graph(module: Any) -> ModuleGraph:
    """Encode an `HloModule` as TpuGraphs does (`EncodeHloModule` in hlo_encoder.cc).

    In a module operands stand before their users and computations before their callers, so a cycle shows as an
    instruction that uses what comes later.

    Raises:
        ValueError: an instruction uses one that does not come before it, a computation lacks its root, a name stands
            for two things, or the numbers of an instruction are impossible; the message names it.
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
                row = node_features(instruction, instruction.id == computation.root_id)
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
    return ModuleGraph(features, opcodes, np.ascontiguousarray(edges[:, ::-1].T))


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
