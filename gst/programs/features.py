"""Features and FLOPs of each node of a list of operations, opcodes, kinds and colocation groups."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64
from torch.utils import _pytree as pytree
from torch.utils import flop_counter
from torch.utils.flop_counter import conv_flop_count, flop_registry

from gst.graphs.graph import Graph
from gst.programs.operation import Operation, Reference

# An element-wise operation of this many elements takes 5-20 us here: less than a hand-over to another thread.
TINY_ELEMENTS = 16_384

FEATURE_NAMES = (
    "log_output_bytes", "log_input_bytes", "log_flops", "rank",
    "log_dim_0", "log_dim_1", "log_dim_2", "log_dim_3", "dtype_bytes", "is_floating", "num_results",
    "is_input", "is_constant", "is_operation", "is_view", "is_elementwise",
    "log_in_degree", "log_out_degree", "depth", "height",
)  # fmt: skip

# The numbers of opcodes are stored with datasets: only append. 0 = input, 1 = constant, then these in order.
KNOWN_OPERATIONS = (
    "_log_softmax", "_log_softmax_backward_data", "_softmax", "_softmax_backward_data", "_to_copy",
    "_unsafe_view", "abs", "add", "addcdiv", "addcmul", "addmm", "alias", "amax", "amin", "arange", "argmax",
    "avg_pool2d", "avg_pool2d_backward", "baddbmm", "bernoulli", "bmm", "cat", "clamp", "clone",
    "constant_pad_nd", "convolution", "convolution_backward", "cos", "cumsum", "div", "embedding",
    "embedding_dense_backward", "empty", "eq", "erf", "exp", "expand", "fill", "full", "full_like", "gather",
    "ge", "gelu", "gelu_backward", "getitem", "gt", "index", "index_put", "index_select", "le", "leaky_relu",
    "log", "lt", "masked_fill", "max", "max_pool2d_with_indices", "max_pool2d_with_indices_backward",
    "maximum", "mean", "min", "minimum", "mm", "mse_loss", "mul", "native_dropout", "native_group_norm",
    "native_group_norm_backward", "native_layer_norm", "native_layer_norm_backward", "ne", "neg",
    "new_zeros", "nll_loss_backward", "nll_loss_forward", "ones", "ones_like", "permute", "pow",
    "reciprocal", "relu", "rsqrt", "rsub", "scalar_tensor", "scatter", "scatter_add", "select",
    "select_backward", "sigmoid", "sigmoid_backward", "silu", "sin", "slice", "slice_backward", "softplus",
    "split", "split_with_sizes", "sqrt", "squeeze", "stack", "sub", "sum", "t", "tanh", "tanh_backward",
    "threshold_backward", "transpose", "unbind", "unsqueeze", "upsample_nearest2d", "var_mean", "view",
    "where", "zeros", "zeros_like",
    "_native_batch_norm_legit_functional", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward", "bitwise_and", "copy", "expm1", "native_batch_norm",
    "native_batch_norm_backward", "new_ones", "nll_loss2d_backward", "nll_loss2d_forward", "select_scatter",
    "silu_backward", "slice_scatter", "topk", "triu",
)  # fmt: skip
NUM_OTHER = 32  # operations not in the list share these, by checksum of their name
NUM_OPCODES = 2 + len(KNOWN_OPERATIONS) + NUM_OTHER
_NUMBER = {name: 2 + position for position, name in enumerate(KNOWN_OPERATIONS)}


def opcode(operation: Operation) -> int:
    """Return the kind of an operation, 0 .. NUM_OPCODES - 1, the same in every process; overloads count as one kind."""
    if operation.kind != "operation":
        return 0 if operation.kind == "input" else 1
    name = _name(operation)
    return _NUMBER.get(name, 2 + len(KNOWN_OPERATIONS) + zlib.crc32(name.encode()) % NUM_OTHER)


def _name(operation: Operation) -> str:
    packet = getattr(operation.target, "overloadpacket", operation.target)
    return str(getattr(packet, "__name__", packet))


def program_graph(operations: Sequence[Operation], name: str = "") -> Graph:
    """Return operations in topological order as a graph: features, opcodes, and edges to readers, each pair once."""
    pairs = [(producer, node) for node, each in enumerate(operations) for producer in each.producers]
    edges = np.array(pairs, np.int64).reshape(-1, 2).T.copy()
    opcodes = np.array([opcode(each) for each in operations], np.int64)
    return Graph(node_features(operations, edges), edges, opcodes, name=name)


def node_features(
    operations: Sequence[Operation], edges: Int64[np.ndarray, "2 edges"]
) -> Float32[np.ndarray, "nodes features"]:
    """Return features with columns as in `FEATURE_NAMES`. Logarithms are natural, of 1 + the number; depth and height
    are 0 .. 1.

    Args:
        operations: nodes in topological order.
        edges: producers, consumers; each pair once.
    """
    nodes = len(operations)
    counted = flops(operations)
    in_degree, out_degree = np.bincount(edges[1], minlength=nodes), np.bincount(edges[0], minlength=nodes)
    depth, height = _longest_paths(nodes, edges)
    rows = []
    for node, operation in enumerate(operations):
        shape = operation.shapes[0] if operation.shapes else ()
        dims = [*shape[:4], 0, 0, 0, 0][:4]
        input_bytes = sum(operations[producer].output_bytes for producer in operation.producers)
        dtype = operation.dtypes[0] if operation.dtypes else None
        rows.append([
            operation.output_bytes, input_bytes, counted[node], len(shape), *dims,
            dtype.itemsize if dtype else 0, dtype.is_floating_point if dtype else 0, len(operation.shapes),
            operation.kind == "input", operation.kind == "constant", operation.kind == "operation",
            operation.is_view, is_elementwise(operation),
            in_degree[node], out_degree[node], depth[node], height[node],
        ])  # fmt: skip
    features = np.array(rows, np.float64).reshape(nodes, len(FEATURE_NAMES))
    logarithmic = [name.startswith("log_") for name in FEATURE_NAMES]
    features[:, logarithmic] = np.log1p(features[:, logarithmic])
    return features.astype(np.float32)


ATTENTION: dict[Any, Callable[..., int]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: flop_counter.sdpa_flop,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: flop_counter.sdpa_backward_flop,
}
"""Formulas of operators that PyTorch's flop counter lacks."""


def flops(operations: Sequence[Operation]) -> Float64[np.ndarray, " nodes"]:
    """Return the floating point operations of each node; a multiplication and an addition are two.

    Exact for operators of PyTorch's flop counter (products of matrices, convolutions, attention, their derivatives); 0
    for inputs, constants and views; otherwise one per element of the largest of inputs and output.
    """
    return np.array([_flops(operation, operations) for operation in operations], np.float64)


def _flops(operation: Operation, operations: Sequence[Operation]) -> float:
    if operation.kind != "operation" or operation.is_view:
        return 0.0
    packet = getattr(operation.target, "overloadpacket", None)
    if packet is torch.ops.aten.convolution_backward:
        return _convolution_backward_flops(operation, operations)
    formula = flop_registry.get(packet) or ATTENTION.get(packet)
    if formula is not None:
        shapes = operation.shapes[0] if len(operation.shapes) == 1 else operation.shapes
        args = pytree.tree_map_only(Reference, lambda each: operations[each.node].shapes[0], operation.args)
        return float(formula(*args, **operation.kwargs, out_val=shapes))
    return float(max(operation.elements, *(operations[each].elements for each in operation.producers), 0))


def _convolution_backward_flops(operation: Operation, operations: Sequence[Operation]) -> float:
    """Return as many FLOPs as the convolution's for each wanted derivative (PyTorch 2.13 counts only if all are)."""
    gradient, inputs, weight = (operations[each.node].shapes[0] for each in operation.args[:3])
    transposed, wanted = operation.args[7], operation.args[10]
    return float(sum(wanted[:2]) * conv_flop_count(list(inputs), list(weight), list(gradient), transposed))


def _longest_paths(
    nodes: int, edges: Int64[np.ndarray, "2 edges"]
) -> tuple[Float64[np.ndarray, " nodes"], Float64[np.ndarray, " nodes"]]:
    """Return edges on the longest path from a source, and to a sink, as a share of the longest in the program."""
    depth, height = np.zeros(nodes), np.zeros(nodes)
    for producer, consumer in edges[:, np.argsort(edges[1], kind="stable")].T:
        depth[consumer] = max(depth[consumer], depth[producer] + 1)
    for producer, consumer in edges[:, np.argsort(-edges[0], kind="stable")].T:
        height[producer] = max(height[producer], height[consumer] + 1)
    longest = max(depth.max(initial=0.0), 1.0)
    return depth / longest, height / longest


# Kinds --------------------------------------------------------------------------------------------------------------

KINDS = ("matrix product", "convolution", "element-wise", "reduction", "view", "other")
"""Kinds of operations in pictures and traces."""

MATRIX_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm"}
REDUCTIONS = {"amax", "amin", "argmax", "cumsum", "max", "mean", "min", "sum", "var_mean", "_softmax", "_log_softmax",
              "native_layer_norm", "native_group_norm"}  # fmt: skip


def kind_of(operation: Operation) -> str:
    """Return the kind of an operation, one of `KINDS`; a derivative has the kind of its primal."""
    name = _name(operation).removesuffix("_data").removesuffix("_backward")
    if operation.is_view:
        return "view"
    if name in MATRIX_PRODUCTS:
        return "matrix product"
    if name == "convolution":
        return "convolution"
    if is_elementwise(operation):
        return "element-wise"
    return "reduction" if name in REDUCTIONS else "other"


# Colocation ----------------------------------------------------------------------------------------------------------


def colocate(
    operations: Sequence[Operation], updates: Mapping[int, int], ties: Sequence[tuple[int, int]] = ()
) -> Int64[np.ndarray, " nodes"]:
    """Number the colocation groups 0, 1, ... in the order of their first nodes.

    Views and `getitem` follow their producer. The update of a parameter follows the parameter, with the element-wise
    operations that only feed it. A tiny element-wise operation follows the last of the operations it reads. An input or
    a constant follows its consumers if these are in one group.

    Args:
        operations: nodes in topological order.
        updates: node of the new value of a parameter -> input node of that parameter.
        ties: pairs of nodes to be kept together, as inputs that share memory.
    """
    groups = _Groups(len(operations))
    consumers: list[list[int]] = [[] for _ in operations]
    for node, operation in enumerate(operations):
        for producer in operation.producers:
            consumers[producer].append(node)
    for first, second in ties:
        groups.join(first, second)
    parameters = set(updates.values())
    in_update = _feeding_updates(operations, consumers, updates, groups)
    for node, operation in enumerate(operations):
        if operation.is_view and operation.producers:
            groups.join(node, operation.producers[0])
        elif node not in in_update and is_elementwise(operation) and operation.elements <= TINY_ELEMENTS:
            computed = [each for each in operation.producers if operations[each].kind == "operation"]
            groups.join(node, max(computed, default=node))
    for node in reversed(range(len(operations))):
        if not operations[node].producers and consumers[node] and node not in parameters:
            others = {groups.of(each) for each in consumers[node]} - {groups.of(node)}
            if len(others) == 1:
                groups.join(node, consumers[node][0])
    roots = [groups.of(node) for node in range(len(operations))]
    number = {root: position for position, root in enumerate(dict.fromkeys(roots))}
    return np.array([number[root] for root in roots], np.int64)


def _feeding_updates(
    operations: Sequence[Operation], consumers: Sequence[Sequence[int]], updates: Mapping[int, int], groups: _Groups
) -> set[int]:
    """Join each update with its parameter and with the element-wise operations that feed nothing else."""
    joined: set[int] = set()
    for update, parameter in updates.items():
        if update == parameter:
            continue
        groups.join(update, parameter)
        waiting = [update]
        while waiting:
            node = waiting.pop()
            joined.add(node)
            for producer in operations[node].producers:
                if is_elementwise(operations[producer]) and len(consumers[producer]) == 1:
                    groups.join(producer, parameter)
                    waiting.append(producer)
    return joined


def is_elementwise(operation: Operation) -> bool:
    """True for one output element per input element, as PyTorch tags it."""
    return torch.Tag.pointwise in getattr(operation.target, "tags", ())


class _Groups:
    """Disjoint sets of nodes (union-find; the least node stands for its group)."""

    def __init__(self, nodes: int) -> None:
        self._parent = list(range(nodes))

    def of(self, node: int) -> int:
        while self._parent[node] != node:
            self._parent[node] = self._parent[self._parent[node]]
            node = self._parent[node]
        return node

    def join(self, first: int, second: int) -> None:
        a, b = sorted((self.of(first), self.of(second)))
        self._parent[b] = a
