"""A PyG GCN tells families of graphs apart."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.loader import DataListLoader as DataLoader
from torch_geometric.nn import GCNConv

import gst
from experiments.drop_in.graphs import NUM_FAMILIES, NUM_FEATURES, NUM_TRAINING, accuracy, as_pyg, families


class GCN(torch.nn.Module):
    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.first = GCNConv(NUM_FEATURES, channels)
        self.second = GCNConv(channels, channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        hidden = self.first(x, edge_index).relu()
        hidden = self.second(hidden, edge_index).relu()
        return hidden


def batches(graphs: list[Data]) -> DataLoader:
    return DataLoader([gst.segment(gst.from_pyg(graph), max_nodes=50) for graph in graphs], 8, shuffle=True)


def outputs_and_labels(model: torch.nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    return model(batch), torch.tensor([int(graph.targets[0]) for graph in batch])


def fit(graphs: list[Data], epochs: int = 5) -> torch.nn.Module:
    loader = batches(graphs)
    table = gst.EmbeddingTable(1, 32)
    model = gst.GraphSegmentTraining(GCN(), torch.nn.Linear(32, NUM_FAMILIES), keep_probability=0.5, table=table)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(epochs):
        for batch in loader:
            loss = cross_entropy(*outputs_and_labels(model, batch))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval()


@torch.no_grad()
def score(model: torch.nn.Module, graphs: list[Data]) -> float:
    return accuracy(outputs_and_labels(model, batch) for batch in batches(graphs))


if __name__ == "__main__":
    examples = as_pyg(families())
    print(score(fit(examples[:NUM_TRAINING]), examples[NUM_TRAINING:]))
