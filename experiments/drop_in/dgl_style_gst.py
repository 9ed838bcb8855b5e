"""A GNN in the style of DGL, with message and reduce functions, tells families of graphs apart."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import gst
from experiments.drop_in import message_graph as dgl
from experiments.drop_in.graphs import NUM_FAMILIES, NUM_FEATURES, as_message_graphs, families

Labelled = tuple[dgl.Graph, Tensor]


def send(edges: dgl.EdgeBatch) -> dict[str, Tensor]:
    return {"message": edges.src["hidden"]}


def largest_and_mean(nodes: dgl.NodeBatch) -> dict[str, Tensor]:
    messages = nodes.mailbox["message"]
    return {"heard": torch.cat([messages.amax(1), messages.mean(1)], dim=1)}


class Network(torch.nn.Module):
    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3 * NUM_FEATURES, channels)
        self.second = torch.nn.Linear(3 * channels, channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        graph = dgl.graph((edge_index[0], edge_index[1]), num_nodes=len(x))
        graph.ndata["hidden"] = x
        for layer in (self.first, self.second):
            graph.update_all(send, largest_and_mean)
            graph.ndata["hidden"] = layer(torch.cat([graph.ndata["hidden"], graph.ndata["heard"]], dim=1)).relu()
        return graph.ndata["hidden"]


def collate(pairs: list[Labelled]) -> tuple[Any, Tensor]:
    graphs, labels = zip(*pairs, strict=True)
    return graphs, torch.stack(labels)


def batches(graphs: list[Labelled]) -> DataLoader:
    graphs = [(gst.segment(gst.Graph(g.ndata["x"].numpy(), torch.stack(g.edges()).numpy()), 50), y) for g, y in graphs]
    return DataLoader(graphs, batch_size=8, shuffle=True, collate_fn=collate)


def outputs_and_labels(model: torch.nn.Module, batch: tuple[Any, Tensor]) -> tuple[Tensor, Tensor]:
    graph, labels = batch
    return model(graph), labels


def fit(graphs: list[Labelled], epochs: int = 5) -> torch.nn.Module:
    loader = batches(graphs)
    table = gst.EmbeddingTable(1, 32)
    model = gst.GraphSegmentTraining(Network(), torch.nn.Linear(32, NUM_FAMILIES), keep_probability=0.5, table=table)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(epochs):
        for batch in loader:
            loss = cross_entropy(*outputs_and_labels(model, batch))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval()


@torch.no_grad()
def score(model: torch.nn.Module, graphs: list[Labelled]) -> float:
    """Accuracy."""
    pairs = [outputs_and_labels(model, batch) for batch in batches(graphs)]
    outputs, labels = map(torch.cat, zip(*pairs, strict=True))
    return (outputs.argmax(1) == labels).float().mean().item()


if __name__ == "__main__":
    examples = as_message_graphs(families())
    print(score(fit(examples[:150]), examples[150:]))
