"""A PyG GCN tells families of graphs apart."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool

from experiments.drop_in.graphs import NUM_FAMILIES, NUM_FEATURES, NUM_TRAINING, accuracy, as_pyg, families


class GCN(torch.nn.Module):
    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.first = GCNConv(NUM_FEATURES, channels)
        self.second = GCNConv(channels, channels)
        self.head = torch.nn.Linear(channels, NUM_FAMILIES)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        hidden = self.first(x, edge_index).relu()
        hidden = self.second(hidden, edge_index).relu()
        return self.head(global_mean_pool(hidden, batch))


def batches(graphs: list[Data]) -> DataLoader:
    return DataLoader(graphs, batch_size=8, shuffle=True)


def outputs_and_labels(model: torch.nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    return model(batch.x, batch.edge_index, batch.batch), batch.y


def fit(graphs: list[Data], epochs: int = 5) -> torch.nn.Module:
    loader = batches(graphs)
    model = GCN()
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
