"""Graphs of circuits: typed nodes with structural features.

Synthesis commands look for local waste: trees of ANDs (`balance`), cones of single use (`refactor`), reconvergent cuts
of four inputs (`rewrite`), signals that are functions of others nearby (`resub`). The features count what each of them
could find, level by level and without a search.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64

from experiments.reproductions.circuits.circuit import Circuit
from gst.graphs.graph import Graph

KINDS = ("constant", "input", "and, no input inverted", "and, one inverted", "and, both inverted", "root of an xor",
         "root of a multiplexer", "output", "inverted output")  # fmt: skip
WORDS = 4  # of 64 random input vectors, to estimate probabilities


def circuit_graph(circuit: Circuit) -> Graph:
    """Return the graph of a circuit: the constant, inputs, ANDs and outputs, in this order.

    Edges lead from a signal to its users. The kind of a node (`KINDS`) holds the number of its inverted edges.

    Examples:
        >>> graph = circuit_graph(Circuit(2, np.array([[2, 5]]), np.array([6])))
        >>> graph.opcodes.tolist(), graph.edges.tolist()
        ([0, 1, 1, 3, 7], [[1, 2, 3], [3, 3, 4]])
    """
    first, total = circuit.num_variables - circuit.num_ands, circuit.num_variables + len(circuit.outputs)
    kinds = np.zeros(total, np.int64)
    kinds[1:first] = 1
    kinds[first : circuit.num_variables] = 2 + (circuit.fanins & 1).sum(1)
    xor, multiplexer = _selections(circuit)
    kinds[first : circuit.num_variables][multiplexer] = 6
    kinds[first : circuit.num_variables][xor] = 5
    kinds[circuit.num_variables :] = 7 + (circuit.outputs & 1)
    producers = np.r_[circuit.fanins.ravel(), circuit.outputs] >> 1
    ands, outputs = np.arange(first, circuit.num_variables), np.arange(circuit.num_variables, total)
    features, edges = node_features(circuit), np.stack([producers, np.r_[ands.repeat(2), outputs]])
    return Graph(np.concatenate([features, features[circuit.outputs >> 1]]), edges, kinds)


def node_features(circuit: Circuit) -> Float32[np.ndarray, "variables features"]:
    """Structural features of the constant, the inputs and the ANDs."""
    first, depth = circuit.num_variables - circuit.num_ands, max(1, int(circuit.levels.max()))
    levels, reverse, fanouts = circuit.levels, circuit.reverse_levels, circuit.fanouts
    uses = np.r_[circuit.fanins.ravel(), circuit.outputs]
    inverted = np.bincount(uses >> 1, uses & 1, circuit.num_variables) / np.maximum(fanouts, 1)
    leaves = np.zeros((circuit.num_variables, 2))
    leaves[first:] = _distinct_leaves(circuit)
    ones = _probabilities(circuit)
    trees, gates = _trees(circuit, inverted_too=True), _trees(circuit, inverted_too=False)
    columns = [
        levels / depth, reverse / depth, (depth - levels - reverse) / depth, np.log1p(levels) / 4, np.log1p(fanouts),
        fanouts == 1, inverted, np.log1p(trees), np.log1p(gates), *leaves.T, 4 * ones * (1 - ones),
        np.repeat([0.0, 1.0], [first, circuit.num_ands]) * _is_repeated(circuit),
    ]  # fmt: skip
    return np.stack(columns, axis=1).astype(np.float32)


def _selections(circuit: Circuit) -> tuple[Bool[np.ndarray, " ands"], Bool[np.ndarray, " ands"]]:
    """ANDs of the form not(a s) not(b not s): roots of an xor if b is not a, else of a multiplexer."""
    first = circuit.num_variables - circuit.num_ands
    left, right = circuit.fanins.T
    candidate = (left & 1).astype(bool) & (right & 1).astype(bool) & ((left >> 1) >= first) & ((right >> 1) >= first)
    xor, multiplexer = np.zeros(circuit.num_ands, bool), np.zeros(circuit.num_ands, bool)
    rows = np.flatnonzero(candidate)
    above, below = (circuit.fanins[(each[rows] >> 1) - first] for each in (left, right))
    opposite = above[:, :, None] == (below[:, None, :] ^ 1)
    pairs = opposite.any(2).sum(1)
    xor[rows], multiplexer[rows] = pairs == 2, pairs == 1
    return xor, multiplexer


def _trees(circuit: Circuit, inverted_too: bool) -> Float64[np.ndarray, " variables"]:
    """ANDs in the tree of signals with a single use below each AND; without inverted edges, those that `balance` may
    regroup."""
    sizes, first = np.zeros(circuit.num_variables), circuit.num_variables - circuit.num_ands
    joins = circuit.fanouts[circuit.fanins >> 1] == 1
    if not inverted_too:
        joins &= (circuit.fanins & 1) == 0
    for ands in circuit.by_level:
        sizes[first + ands] = 1 + (sizes[circuit.fanins[ands] >> 1] * joins[ands]).sum(1)
    return sizes


def _distinct_leaves(circuit: Circuit) -> Float64[np.ndarray, "ands 2"]:
    """Share of the leaves two and three levels below each AND that are distinct: less where paths meet again."""
    first = circuit.num_variables - circuit.num_ands
    below = np.arange(circuit.num_variables)[:, None].repeat(2, 1)  # inputs stand for themselves
    below[first:] = circuit.fanins >> 1
    shares, leaves = [], below[first:]
    for _ in range(2):
        leaves = below[leaves].reshape(len(leaves), -1)
        ordered = np.sort(leaves, axis=1)
        shares.append((1 + (ordered[:, 1:] != ordered[:, :-1]).sum(1)) / leaves.shape[1])
    return np.stack(shares, axis=1)


def _values(circuit: Circuit) -> Int64[np.ndarray, "variables words"]:
    """Values of all variables under random inputs, the same at every call."""
    every = Circuit(circuit.num_inputs, circuit.fanins, 2 * np.arange(circuit.num_variables))
    inputs = np.random.default_rng(0).integers(0, 2**64, (circuit.num_inputs, WORDS), np.uint64)
    return every.simulate(inputs)


def _probabilities(circuit: Circuit) -> Float64[np.ndarray, " variables"]:
    return np.bitwise_count(_values(circuit)).sum(1) / (64.0 * WORDS)


def _is_repeated(circuit: Circuit) -> Bool[np.ndarray, " variables"]:
    """Mark the variables that equal another variable, or its negation, under all random inputs."""
    values = _values(circuit)
    values = values ^ np.where(values[:, :1] & np.uint64(1), np.uint64(2**64 - 1), np.uint64(0))
    _, inverse, counts = np.unique(values, axis=0, return_inverse=True, return_counts=True)
    return counts[inverse] > 1
