from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset
from torch_geometric.transforms import OneHotDegree

from gst.data.pyg import PygDataset, from_pyg, hetero_inputs
from gst.graphs.segments import segment
from gst.graphs.store import prepare
from gst.method.batch import assemble


def data(**changes: Any) -> SimpleNamespace:
    """Two edges between three nodes, with the attributes of PyG's `Data`."""
    given = {"x": torch.eye(3), "edge_index": torch.tensor([[0, 1], [1, 2]]), "y": torch.tensor(4)}
    return SimpleNamespace(**(given | changes))


@given(num_nodes=st.integers(1, 9), num_edges=st.integers(0, 12), features=st.integers(0, 3), seed=st.integers(0, 99))
def test_what_pyg_holds_is_what_the_graph_holds(num_nodes: int, num_edges: int, features: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_nodes, features, generator=generator)
    edge_index = torch.randint(num_nodes, (2, num_edges), generator=generator)
    graph = from_pyg(Data(x=x, edge_index=edge_index, y=torch.tensor([seed])))
    assert torch.from_numpy(graph.node_features).equal(x)
    assert torch.from_numpy(graph.edges).equal(edge_index)
    assert graph.targets.tolist() == [seed] and graph.num_configs == 1


@pytest.mark.parametrize("y", [3, 3.0, torch.tensor(3), torch.tensor([3.0]), torch.tensor([[3]]), np.float32(3)])
def test_a_label_is_a_number_however_it_is_wrapped(y: Any) -> None:
    assert from_pyg(data(y=y)).targets.tolist() == [3.0]


def test_features_keep_their_dtype_and_halves_become_floats() -> None:
    for dtype, stored in ((torch.int64, np.int64), (torch.float64, np.float64), (torch.bool, np.bool_)):
        graph = from_pyg(data(x=torch.eye(3).to(dtype)))
        assert graph.node_features.dtype == stored and (graph.node_features == np.eye(3)).all()
    for dtype in (torch.float16, torch.bfloat16):
        assert from_pyg(data(x=torch.eye(3).to(dtype))).node_features.dtype == np.float32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": None}, r"x is None, want a tensor \(nodes, features\); gst.data.malnet.degree_profile"),
        ({"x": torch.ones(3)}, r"x has shape \(3,\), want \(nodes, features\)"),
        ({"edge_index": None}, "edge_index is None.*ToSparseTensor"),
        ({"edge_index": torch.zeros(5, 2)}, r"edge_index has shape \(5, 2\), want \(2, edges\)"),
        ({"edge_index": torch.tensor([[0], [3]])}, "edges name nodes 0..3, but nodes are 0..2"),
        ({"y": torch.zeros(3)}, r"y has shape \(3,\), want one number for the whole graph"),
        ({"y": torch.tensor(torch.nan)}, r"y is \[nan\]; want finite numbers, or data.y = None"),
        ({"y": torch.tensor([[1.0, torch.inf]])}, r"y is \[1.0, inf\]; want finite numbers"),
        ({"x": torch.full((3, 1), torch.nan)}, "node_features holds NaN or infinity"),
        ({"edge_attr": torch.full((2, 1), torch.inf)}, r"edge_data\['edge_attr'\] holds NaN or infinity"),
        ({"edge_index": torch.tensor([[0.5], [1.2]])}, r"edge_index is torch.float32, want numbers of nodes"),
        ({"edge_attr": torch.ones(1, 4)}, "edge_attr has 1 rows for 2 edges; want one row for each edge"),
        ({"edge_weight": torch.ones(3)}, "edge_weight has 3 rows for 2 edges"),
        ({"num_graphs": 2}, r"a Batch of 2 graphs; convert each of its to_data_list\(\)"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_pyg(data(**changes))


def test_what_nodes_and_edges_have_besides_is_kept_under_its_name() -> None:
    more = {"edge_attr": torch.ones(2, 4), "edge_weight": torch.tensor([1, 2]), "pos": torch.zeros(3, 2)}
    left = {"train_mask": torch.ones(3, dtype=torch.bool), "z": torch.ones(5, 2), "edge_label": torch.ones(1)}
    with pytest.warns(UserWarning, match=r"left out: train_mask \(3,\), z \(5, 2\), edge_label \(1,\); kept are"):
        graph = from_pyg(data(**more, **left, opcodes=torch.tensor([1, 2, 3])))
    assert {name: array.dtype for name, array in graph.edge_data.items()} == {
        "edge_attr": np.float32, "edge_weight": np.int64,
    }  # fmt: skip
    assert list(graph.node_data) == ["pos"] and graph.opcodes.tolist() == [1, 2, 3]
    assert from_pyg(data(weight=torch.tensor([3.0, 4.0]))).edge_data["weight"].tolist() == [3, 4]


def test_nodes_and_edges_of_several_types_are_put_together_and_taken_apart() -> None:
    hetero = HeteroData()
    hetero["op"].x, hetero["buffer"].x = torch.randn(3, 4), torch.randn(2, 2)
    hetero["op", "writes", "buffer"].edge_index = torch.tensor([[0, 2, 1], [1, 0, 1]])
    hetero["buffer", "read_by", "op"].edge_index = torch.tensor([[1], [2]])
    cut = segment(from_pyg(hetero))
    batch = assemble([cut], [(0, 0)], torch.zeros(1, 1, dtype=torch.int64)).expanded()
    inputs = hetero_inputs(hetero)
    for kind, x in inputs["x_dict"](batch).items():
        assert x.equal(hetero[kind].x)
    for kind, edge_index in inputs["edge_index_dict"](batch).items():
        expected = hetero[kind].edge_index
        assert sorted(edge_index.T.tolist()) == sorted(expected.T.tolist())


def test_a_real_batch_is_refused() -> None:
    batch = Batch.from_data_list([Data(**vars(data()))] * 2)
    with pytest.raises(ValueError, match="a Batch of 2 graphs"):
        from_pyg(batch)
    assert from_pyg(Batch.from_data_list([Data(**vars(data()))])).num_nodes == 3


def test_what_all_types_have_comes_along_and_what_some_have_is_named() -> None:
    hetero = HeteroData()
    hetero["op"].x, hetero["buffer"].x = torch.ones(3, 4), torch.ones(2, 2)
    hetero["op"].pos, hetero["buffer"].pos = torch.zeros(3, 1), torch.ones(2, 1)
    hetero["op"].cost = torch.ones(3)
    hetero["op"].time, hetero["buffer"].time = torch.arange(3), torch.arange(2)
    for number, kinds in enumerate([("op", "writes", "buffer"), ("buffer", "read_by", "op")]):
        hetero[kinds].edge_index = torch.tensor([[0, 1], [1, 0]])
        hetero[kinds].edge_attr = torch.full((2, 3), float(number))
        hetero[kinds].time = torch.tensor([7, 8])
    with pytest.warns(UserWarning, match="left out: cost, which not all types have"):
        graph = from_pyg(hetero)
    assert graph.node_data["pos"].tolist() == [[0], [0], [0], [1], [1]] and "cost" not in graph.node_data
    assert graph.edge_data["edge_attr"].tolist() == [[0] * 3] * 2 + [[1] * 3] * 2
    assert graph.node_data["time"].tolist() == [0, 1, 2, 0, 1] and graph.edge_data["edge_time"].tolist() == [7, 8] * 2


def typed(edges: list[list[int]], **of_edges: Any) -> Any:
    hetero = HeteroData()
    hetero["op"].x, hetero["buffer"].x = torch.ones(50, 4), torch.ones(20, 2)
    hetero["op", "writes", "buffer"].edge_index = torch.tensor(edges)
    for key, value in of_edges.items():
        hetero["op", "writes", "buffer"][key] = value
    return hetero


def test_edges_of_a_type_stay_within_its_nodes() -> None:
    assert from_pyg(typed([[49], [19]])).edges.tolist() == [[49], [69]]
    with pytest.raises(ValueError, match=r"\('op', 'writes', 'buffer'\): edge_index names nodes 50..50, .* are 0..49"):
        from_pyg(typed([[50], [0]]))
    with pytest.raises(ValueError, match=r"edge_index names nodes -1..-1, but nodes are 0..19"):
        from_pyg(typed([[0], [-1]]))
    with pytest.raises(ValueError, match="edge_attr has 1 rows for 2 edges"):
        from_pyg(typed([[0, 1], [1, 1]], edge_attr=torch.ones(1, 3)))
    with pytest.warns(UserWarning, match="left out: score"):
        from_pyg(typed([[0, 1], [1, 1]], score=torch.ones(5)))


def test_a_list_is_no_graph_and_a_row_is_several_targets() -> None:
    with pytest.raises(ValueError, match=r"from_pyg takes one Data, not 2 of them: \[gst.from_pyg\(each\)"):
        from_pyg([data(), data()])
    assert from_pyg(data(y=torch.tensor([[1.0, 2.0, 3.0]]))).targets.tolist() == [[1, 2, 3]]


def test_a_row_for_each_edge_and_node_is_asked_about() -> None:
    cycle = {"edge_index": torch.tensor([[0, 1, 2], [1, 2, 0]])}
    graph = from_pyg(data(**cycle, pos=torch.ones(3), edge_cost=torch.ones(3), the_edge=torch.ones(3)))
    assert list(graph.node_data) == ["pos"] and list(graph.edge_data) == ["edge_cost", "the_edge"]
    with pytest.raises(ValueError, match=r"weight has 3 rows, .* as many edges as nodes.* node_weight or edge_weight"):
        from_pyg(data(**cycle, weight=torch.ones(3)))


@pytest.mark.parametrize(("name", "rows"), [("parent_index", 3), ("edge_reverse_index", 2), ("indexes", 2)])
def test_numbers_of_nodes_and_edges_are_no_data(name: str, rows: int) -> None:
    with pytest.raises(ValueError, match=rf"\['{name}'\] holds numbers of nodes or edges by its name"):
        from_pyg(data(**{name: torch.arange(rows)}))
    assert from_pyg(data(index_of_price=torch.ones(3))).node_data["index_of_price"].tolist() == [1, 1, 1]


class OnDisk(InMemoryDataset):
    """Graphs that `save` wrote; equal ones are allowed, as in TUDataset."""

    def __init__(self, root: str, transform: Any = None) -> None:
        super().__init__(root, transform)
        self.load(self.processed_paths[0])

    processed_file_names = "data.pt"

    def process(self) -> None:
        path = torch.tensor([[0, 1], [1, 2]])
        graphs = [Data(edge_index=path, num_nodes=3, y=torch.tensor([k % 2])) for k in range(4)]
        self.save(graphs, self.processed_paths[0])


def test_a_dataset_of_pyg_yields_its_graphs_under_the_same_names_each_time(tmp_path: Path) -> None:
    dotted = f"{__name__}.OnDisk"
    source = PygDataset(dotted, {"root": str(tmp_path)}, transform=OneHotDegree(2))
    graphs = list(source)
    assert [graph.name for graph in graphs] == [graph.name for graph in source] == [f"OnDisk-{k}" for k in range(4)]
    assert [graph.targets.item() for graph in graphs] == [0, 1, 0, 1] and len(source) == 4
    np.testing.assert_array_equal(graphs[0].node_features, np.eye(3)[[1, 1, 0]])
    assert prepare(source, tmp_path / "stores") == prepare(
        PygDataset(dotted, {"root": str(tmp_path)}, OneHotDegree(2)), tmp_path / "stores"
    )


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("Absent", {}, "dataset Absent of PyG: AttributeError"),
        ("absent.Absent", {}, "dataset absent.Absent of PyG: ModuleNotFoundError"),
        ("TUDataset", {"number": 3}, "dataset TUDataset of PyG: TypeError"),
        ("FakeDataset", {"task": "node"}, "y has shape .* want one number for the whole graph"),
        (f"{__name__}.OnDisk", {"root": "here"}, "x is None"),
    ],
)
def test_what_is_no_dataset_of_graphs_is_one_line(
    name: str, arguments: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message) as error:
        list(PygDataset(name, arguments))
    assert "\n" not in str(error.value)
