"""Layer histories: messages cross the cut, exactly in evaluation and with the states of earlier steps in training."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from reference import random_graph
from torch import Tensor, nn

import gst
from embedding_cache import EmbeddingTable
from gst.graphs.graph import Graph
from gst.graphs.segments import SegmentedGraph
from gst.method.estimator import GraphSegmentTraining
from gst.method.histories import LayerHistories
from gst.nn import SAGE, Head

WIDTH = 5


class Layer(nn.Module):
    """Mean over producers, mixed with the node itself."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(width, WIDTH), nn.Linear(width, WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        producers, consumers = edge_index
        sums = x.new_zeros(x.shape).index_add(0, consumers, x[producers])
        counts = x.new_zeros(len(x)).index_add(0, consumers, x.new_ones(len(producers)))
        return (self.own(x) + self.others(sums / counts.clamp(min=1)[:, None])).tanh()


class Deep(nn.Module):
    def __init__(self, width: int, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width if number == 0 else WIDTH) for number in range(depth))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, edge_index)
        return x


def graph_of(seed: int, num_configs: int = 3) -> Graph:
    return random_graph(seed, 40, 70, num_configs=num_configs)


def model_of(graph: Graph, names: tuple[str, ...] = ("layers.0", "layers.1"), **arguments: Any) -> GraphSegmentTraining:
    torch.manual_seed(0)
    width = graph.node_features.shape[1] + graph.config_features.shape[2]
    histories = LayerHistories(dict.fromkeys(names, WIDTH), torch.float64) if names else None
    encoder, head = Deep(width).double(), nn.Sequential(nn.Linear(WIDTH, 1), nn.Flatten(-2)).double()
    return GraphSegmentTraining(encoder, head, "mean", histories=histories, **arguments)


def cut(graph: Graph, halo: int = 1) -> SegmentedGraph:
    return gst.segment(graph, max_nodes=8, halo=halo)


def whole(graph: Graph) -> SegmentedGraph:
    return gst.segment(graph, parts=np.zeros(graph.num_nodes, np.int64))


def test_evaluation_with_a_halo_of_one_hop_is_that_of_the_whole_graph() -> None:
    graphs = [graph_of(0), graph_of(1)]
    truth = model_of(graphs[0], ()).exact([whole(graph) for graph in graphs])
    torch.testing.assert_close(model_of(graphs[0]).exact([cut(graph) for graph in graphs]), truth)
    assert not torch.allclose(model_of(graphs[0], ()).exact([cut(graph) for graph in graphs]), truth)
    bounded = model_of(graphs[0], max_rows=20)  # segments come one by one
    torch.testing.assert_close(bounded.exact([cut(graph) for graph in graphs]), truth)


def test_states_of_earlier_steps_become_those_of_the_whole_graph() -> None:
    """With weights that stand still, layer l is right after l steps of all segments."""
    graph = graph_of(0)
    truth, model = model_of(graph, ()).exact([whole(graph)]), model_of(graph, num_fresh=99)
    off = [(model([cut(graph)]) - truth).abs().max().item() for _ in range(3)]
    assert off[0] > 1e-3 and off[1] > 1e-4 and off[2] < 1e-12


def test_a_step_equals_its_slow_twin() -> None:
    """Dictionaries of states: owned nodes write theirs, context nodes take those that are there."""
    graph = graph_of(2, num_configs=1)
    model, segmented = model_of(graph, num_fresh=1, omit_rest=True, seed=3), cut(graph)
    kept: list[dict[int, Tensor]] = [{}, {}]
    for _ in range(12):
        draw = model.draw([segmented])
        assert draw is not None
        (number,) = draw.fresh.nonzero().flatten().tolist()
        start, stop = segmented.row_ptr[number : number + 2]
        ids, owned = segmented.node_ids[start:stop].tolist(), int(segmented.owned_counts[number])
        inside = slice(segmented.edge_ptr[number], segmented.edge_ptr[number + 1])
        edges = torch.from_numpy(segmented.edges[:, inside].astype(np.int64))
        x = model.load(draw).batch.expanded().x.double()
        for layer, states in zip(model.encoder.layers, [*kept, None], strict=True):
            x = layer(x, edges)
            if states is not None:
                x = torch.stack([x[i] if i < owned else states.get(ids[i], x[i]) for i in range(len(ids))])
                states.update({ids[i]: x[i].detach() for i in range(owned)})
        pooled = x[:owned].sum(0) * segmented.num_segments / segmented.num_nodes  # one speaks for all
        torch.testing.assert_close(model([segmented]), model.head(pooled.view(1, 1, -1)))


def test_states_that_cross_the_cut_have_no_gradient() -> None:
    graph = graph_of(0)
    model, plain = model_of(graph, num_fresh=99), model_of(graph, (), num_fresh=99)
    for estimator in (model, plain):
        estimator([cut(graph)]).sum().backward()
    first = model.encoder.layers[0].own.weight.grad.clone()
    torch.testing.assert_close(first, plain.encoder.layers[0].own.weight.grad)  # there was no state to hear yet
    model.zero_grad()
    model([cut(graph)]).sum().backward()
    second = model.encoder.layers[0].own.weight.grad
    assert second.isfinite().all() and not torch.allclose(second, first)


def test_only_nodes_that_other_segments_see_are_kept() -> None:
    graph = graph_of(0)
    model, segmented = model_of(graph, num_fresh=99), cut(graph)
    model([segmented]).sum().backward()
    context = {
        int(node)
        for j in range(segmented.num_segments)
        for node in segmented.node_ids[segmented.row_ptr[j] + segmented.owned_counts[j] : segmented.row_ptr[j + 1]]
    }
    assert 0 < len(context) < graph.num_nodes
    assert [table.rows_in_use for table in model.histories.tables] == 2 * [3 * len(context)]


def test_evaluation_leaves_histories_as_they_are_and_a_checkpoint_goes_on_alike() -> None:
    graphs = [cut(graph_of(seed)) for seed in (0, 1)]
    model, loaded = (
        model_of(graph_of(0), table=EmbeddingTable(1, WIDTH, torch.float64), seed=5, num_fresh=2) for _ in range(2)
    )
    for _ in range(3):
        model(graphs).sum().backward()
    loaded.load_state_dict(copy.deepcopy(model.state_dict()))
    twins = [loaded, pickle.loads(pickle.dumps(model)), copy.deepcopy(model)]  # noqa: S301
    model.eval()(graphs)
    expected = [model.train()(graphs) for _ in range(3)]
    for twin in twins:
        torch.testing.assert_close([twin(graphs) for _ in range(3)], expected, rtol=0, atol=0)


def test_a_step_without_finite_gradients_leaves_histories_as_they_were() -> None:
    graph = graph_of(0)
    model, segmented = model_of(graph, num_fresh=99), cut(graph)
    model([segmented]).sum().backward()
    before = [table.export_rows()[1] for table in model.histories.tables]
    with torch.no_grad():
        model.encoder.layers[0].own.weight.mul_(2)
    (model([segmented]).sum() * torch.inf).backward()
    after = [table.export_rows()[1] for table in model.histories.tables]
    torch.testing.assert_close(after, before, rtol=0, atol=0)


def test_graphs_of_equal_segments_that_are_joined_otherwise_have_states_of_their_own() -> None:
    """What a fingerprint does not say: which node stands as context beside another segment."""
    x = np.ones((4, 1), np.float32)
    one = Graph(x, np.array([[0, 2], [2, 3]]), name="one")
    two = Graph(x, np.array([[1, 2], [2, 3]]), name="two")
    parts = np.array([0, 0, 1, 1])
    first, second = (gst.segment(graph, parts=parts, halo=1) for graph in (one, two))
    histories = LayerHistories({"a": 1})
    keys = [histories.keys([graph], [(0, 0)], torch.zeros(1, 1, dtype=torch.long)) for graph in (first, second)]
    assert set(keys[0].flatten().tolist()) & set(keys[1].flatten().tolist()) <= {-1}


@pytest.mark.parametrize("num_configs", [1, 3])
def test_encoders_of_gst_without_sharing_take_part(num_configs: int) -> None:
    graph = graph_of(0, num_configs)

    def model_with(names: tuple[str, ...]) -> GraphSegmentTraining:
        torch.manual_seed(0)
        encoder = SAGE(channels=WIDTH, num_layers=3, share=num_configs == 1)
        histories = LayerHistories(dict.fromkeys(names, WIDTH)) if names else None
        return GraphSegmentTraining(encoder, Head(WIDTH), histories=histories)

    truth = model_with(()).exact([whole(graph)])
    torch.testing.assert_close(model_with(("layers.0", "layers.1")).exact([cut(graph)]), truth, rtol=1e-4, atol=1e-5)


def test_what_histories_cannot_follow_is_refused() -> None:
    graph = graph_of(0)
    with pytest.raises(ValueError, match=r"no layer 'layers\.7'; it has layers, layers\.0"):
        model_of(graph, ("layers.7",))
    with pytest.raises(ValueError, match="cut with halo=1"):
        model_of(graph)([cut(graph, halo=0)])
    with pytest.raises(ValueError, match=r"freeze_encoder\(\)"):
        model_of(graph).freeze_encoder()
    with pytest.raises(ValueError, match="names no layer"):
        LayerHistories({})
    with pytest.raises(ValueError, match="share=False"):
        encoder = SAGE(channels=WIDTH, num_layers=2)
        GraphSegmentTraining(encoder, Head(WIDTH), histories=LayerHistories({"layers.0": WIDTH}))([cut(graph)])
    with pytest.raises(ValueError, match="returns 5 channels, and histories say 7"):
        encoder = SAGE(channels=WIDTH, num_layers=2, share=False)
        GraphSegmentTraining(encoder, Head(WIDTH), histories=LayerHistories({"layers.0": 7}))([cut(graph)])
    with pytest.raises(ValueError, match=r"torch\.nn\.Module"):
        GraphSegmentTraining(lambda x, edge_index: x, Head(1), histories=LayerHistories({"a": 1}))


def test_a_table_that_is_elsewhere_moves_with_its_rows_to_the_states() -> None:
    histories = LayerHistories({"layer": 2})
    histories.tables[0] = EmbeddingTable(3, 2, device="cpu:0")  # another name than that of tensors made here
    histories.tables[0].push(torch.tensor([1]), torch.tensor([[5.0, 7.0]]), step=4)
    table = histories._table_on(torch.zeros(1).device, 0)
    rows, ages, is_known = table.pull(torch.tensor([0, 1]), step=6)
    assert histories.tables[0] is table and table.device == torch.device("cpu")
    assert (rows.tolist(), ages.tolist(), is_known.tolist()) == ([[0, 0], [5, 7]], [-1, 2], [False, True])
