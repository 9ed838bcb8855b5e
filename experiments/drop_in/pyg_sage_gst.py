"""A PyG GraphSAGE measures how much like joins like in a graph."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import mse_loss
from torch_geometric.data import Data
from torch_geometric.loader import DataListLoader as DataLoader
from torch_geometric.nn import SAGEConv

import gst
from experiments.drop_in.graphs import NUM_KINDS, as_pyg, homophily


class GraphSAGE(torch.nn.Module):
    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.first = SAGEConv(NUM_KINDS, channels)
        self.second = SAGEConv(channels, channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        hidden = self.first(x, edge_index).relu()
        hidden = self.second(hidden, edge_index).relu()
        return hidden


def batches(graphs: list[Data]) -> DataLoader:
    return DataLoader([gst.segment(gst.from_pyg(graph), max_nodes=50) for graph in graphs], 8, shuffle=True)


def outputs_and_labels(model: torch.nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    return model(batch), torch.tensor([float(graph.targets[0]) for graph in batch])


def fit(graphs: list[Data], epochs: int = 30) -> torch.nn.Module:
    loader = batches(graphs)
    table = gst.EmbeddingTable(1, 32)
    model = gst.GraphSegmentTraining(GraphSAGE(), torch.nn.Linear(32, 1), keep_probability=0.5, table=table)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(epochs):
        for batch in loader:
            loss = mse_loss(*outputs_and_labels(model, batch))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval()


@torch.no_grad()
def score(model: torch.nn.Module, graphs: list[Data]) -> float:
    """R2, the share of the variance of the labels that is explained."""
    pairs = [outputs_and_labels(model, batch) for batch in batches(graphs)]
    outputs, labels = map(torch.cat, zip(*pairs, strict=True))
    return 1 - ((outputs - labels).square().mean() / labels.var(correction=0)).item()


if __name__ == "__main__":
    examples = as_pyg(homophily())
    print(score(fit(examples[:150]), examples[150:]))
