"""The part of DGL's interface that a message-passing model touches, in plain torch: write against it as with `dgl`.

`graph`, `batch`, `mean_nodes`, `ndata`, `edges`, `update_all` behave as DGL documents them; nothing else is here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Rows = dict[str, Tensor]


@dataclass(frozen=True)
class EdgeBatch:
    """Argument of a message function: the features at both ends of every edge, by name."""

    src: Rows
    dst: Rows


@dataclass(frozen=True)
class NodeBatch:
    """Argument of a reduce function: nodes with equally many messages (nodes, messages, channels), and their data."""

    mailbox: Rows
    data: Rows


class Graph:
    """Directed edges `source[i] -> target[i]` between `num_nodes` nodes, and named features of the nodes."""

    def __init__(self, source: Tensor, target: Tensor, num_nodes: int, batch_num_nodes: Tensor | None = None) -> None:
        self.source, self.target, self.num_nodes = source, target, num_nodes
        self.batch_num_nodes = torch.tensor([num_nodes]) if batch_num_nodes is None else batch_num_nodes
        self.ndata: Rows = {}

    def edges(self) -> tuple[Tensor, Tensor]:
        return self.source, self.target

    def update_all(self, message: Callable[[EdgeBatch], Rows], reduce: Callable[[NodeBatch], Rows]) -> None:
        """Send `message` along every edge, `reduce` what arrives, and add the result to `ndata`. Nodes are reduced
        together with those that have as many messages; a node without any gets zeros."""
        ends = [{key: rows[end] for key, rows in self.ndata.items()} for end in (self.source, self.target)]
        messages = message(EdgeBatch(*ends))
        order = torch.argsort(self.target, stable=True)
        degrees = torch.bincount(self.target, minlength=self.num_nodes)
        first = degrees.cumsum(0) - degrees
        updated: Rows = {}
        for degree in degrees[degrees > 0].unique().tolist():
            nodes = (degrees == degree).nonzero().squeeze(1)
            arrived = order[first[nodes, None] + torch.arange(degree, device=nodes.device)]
            mailbox = {key: rows[arrived] for key, rows in messages.items()}
            data = {key: rows[nodes] for key, rows in self.ndata.items()}
            for key, rows in reduce(NodeBatch(mailbox, data)).items():
                zeros = rows.new_zeros(self.num_nodes, *rows.shape[1:])
                updated[key] = updated.get(key, zeros).index_copy(0, nodes, rows)
        self.ndata.update(updated)


def graph(edges: tuple[Tensor, Tensor], num_nodes: int) -> Graph:
    """A graph from the sources and the targets of its edges."""
    return Graph(*edges, num_nodes)


def batch(graphs: Sequence[Graph]) -> Graph:
    """Graphs side by side as one, with the features that all of them have."""
    counts = [each.num_nodes for each in graphs]
    starts = [sum(counts[:i]) for i in range(len(counts))]
    ends = [
        torch.cat([each.edges()[end] + start for each, start in zip(graphs, starts, strict=True)]) for end in (0, 1)
    ]
    together = Graph(ends[0], ends[1], sum(counts), torch.cat([each.batch_num_nodes for each in graphs]))
    shared = set.intersection(*(set(each.ndata) for each in graphs))
    together.ndata = {key: torch.cat([each.ndata[key] for each in graphs]) for key in shared}
    return together


def mean_nodes(graph: Graph, key: str) -> Tensor:
    """The mean of a feature over the nodes of each graph of a batch."""
    rows, counts = graph.ndata[key], graph.batch_num_nodes
    owner = torch.repeat_interleave(torch.arange(len(counts), device=rows.device), counts)
    return rows.new_zeros(len(counts), rows.shape[1]).index_add(0, owner, rows) / counts[:, None]
