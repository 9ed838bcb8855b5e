"""A GNN in plain torch, one graph at a time, tells families of graphs apart."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import gst
from experiments.drop_in.graphs import NUM_FAMILIES, NUM_FEATURES, NUM_TRAINING, Example, accuracy, families


class Network(torch.nn.Module):
    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.first = torch.nn.Linear(2 * NUM_FEATURES, channels)
        self.second = torch.nn.Linear(2 * channels, channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        source, target = edge_index
        for layer in (self.first, self.second):
            heard = torch.zeros_like(x).index_add(0, target, x[source])
            x = layer(torch.cat([x, heard], dim=1)).relu()
        return x


def batches(graphs: list[Example]) -> DataLoader:
    graphs = [gst.Graph(g.x.numpy(), g.edge_index.numpy(), targets=g.y.double().numpy()[None]) for g in graphs]
    graphs = [gst.segment(graph, max_nodes=50) for graph in graphs]
    return DataLoader(graphs, batch_size=8, shuffle=True, collate_fn=list)


def outputs_and_labels(model: torch.nn.Module, batch: list[Example]) -> tuple[Tensor, Tensor]:
    return model(batch), torch.tensor([int(graph.targets[0]) for graph in batch])


def fit(graphs: list[Example], epochs: int = 10) -> torch.nn.Module:
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
def score(model: torch.nn.Module, graphs: list[Example]) -> float:
    return accuracy(outputs_and_labels(model, batch) for batch in batches(graphs))


if __name__ == "__main__":
    examples = families()
    print(score(fit(examples[:NUM_TRAINING]), examples[NUM_TRAINING:]))
