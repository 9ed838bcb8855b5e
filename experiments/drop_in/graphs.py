"""Small generated graphs of five families, in the manner of MalNet (Freitas et al. 2021); the label is the family."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gst.data.malnet import DEGREE_COLUMNS, degree_profile

if TYPE_CHECKING:
    from torch_geometric.data import Data

NUM_FAMILIES = 5  # as MalNet-Tiny has types of software
NUM_FEATURES = len(DEGREE_COLUMNS)
NUM_TRAINING = 150  # graphs of a training; the others are held out

Edges = np.ndarray
"""Pairs of nodes, int64, shape (2, edges), each once in one direction."""


class Example(NamedTuple):
    """A graph and its label, with the names that PyG's `Data` gives them.

    Args:
        x: float32 (nodes, features), the local degree profile of each node, since nodes have no features of their own.
        edge_index: int64 (2, edges), every edge in both directions.
        y: int64 without axes, the family.
    """

    x: Tensor
    edge_index: Tensor
    y: Tensor


def families(num_graphs: int = 200, seed: int = 0) -> list[Example]:
    """Generate graphs; columns of `x` have mean 0 and deviation 1 over all of them."""
    generator = np.random.default_rng(seed)
    sizes = generator.integers(80, 160, size=num_graphs)
    labels = np.arange(num_graphs) % NUM_FAMILIES
    edges = [_both_ways(FAMILIES[label](int(nodes), generator)) for label, nodes in zip(labels, sizes, strict=True)]
    profiles = np.concatenate([degree_profile(*each) for each in zip(edges, sizes.tolist(), strict=True)])
    x = torch.from_numpy((profiles - profiles.mean(0)) / profiles.std(0)).float().split(sizes.tolist())
    return [
        Example(x[i], torch.from_numpy(edge_index), torch.tensor(label))
        for i, (edge_index, label) in enumerate(zip(edges, labels.tolist(), strict=True))
    ]


def as_pyg(examples: list[Example]) -> list[Data]:
    """Return the graphs as PyG's `Data`."""
    from torch_geometric.data import Data

    return [Data(**example._asdict()) for example in examples]


def accuracy(pairs: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Return the share of graphs whose label has the largest output, over batches of outputs and labels."""
    outputs, labels = map(torch.cat, zip(*pairs, strict=True))
    return (outputs.argmax(1) == labels).float().mean().item()


def _both_ways(edges: Edges) -> Edges:
    edges = edges[:, edges[0] != edges[1]]
    return np.unique(np.concatenate([edges, edges[::-1]], axis=1), axis=1)


def _small_world(nodes: int, generator: np.random.Generator) -> Edges:
    """A ring whose nodes know the next two, one edge in ten led elsewhere (Watts and Strogatz 1998)."""
    source = np.tile(np.arange(nodes), 2)
    target = (source + np.repeat([1, 2], nodes)) % nodes
    elsewhere = generator.random(2 * nodes) < 0.1
    return np.stack([source, np.where(elsewhere, generator.integers(nodes, size=2 * nodes), target)])


def _tree(nodes: int, generator: np.random.Generator) -> Edges:
    """Each node hangs from an earlier one."""
    new = np.arange(1, nodes)
    return np.stack([new, generator.integers(new)])


def _preferential(nodes: int, generator: np.random.Generator) -> Edges:
    """Each node joins two earlier ones, drawn by degree (Barabasi and Albert 1999)."""
    ends = [0, 1]
    for new in range(2, nodes):
        first, second = generator.integers(len(ends), size=2)
        ends += [new, ends[first], new, ends[second]]
    return np.array(ends).reshape(-1, 2).T


def _uniform(nodes: int, generator: np.random.Generator) -> Edges:
    """Two edges per node between any nodes (Erdos and Renyi 1959)."""
    return generator.integers(nodes, size=(2, 2 * nodes))


def _grid(nodes: int, generator: np.random.Generator) -> Edges:
    """Rows of 6 to 11 nodes, each joined to the next and to the one below, one edge in twenty missing."""
    width = int(generator.integers(6, 12))
    ids = np.arange(nodes)
    across = ids[(ids % width < width - 1) & (ids + 1 < nodes)]
    down = ids[: max(0, nodes - width)]
    edges = np.stack([np.concatenate([across, down]), np.concatenate([across + 1, down + width])])
    return edges[:, generator.random(edges.shape[1]) > 0.05]


FAMILIES = (_small_world, _tree, _preferential, _uniform, _grid)
