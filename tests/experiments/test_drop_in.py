"""Other people's models under GST: few lines change, they learn, and they compute what they computed before."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import gst
from experiments.drop_in import message_graph as dgl
from experiments.drop_in.comparison import PROGRAMS, Program, changed_lines, learn
from experiments.drop_in.graphs import Example, families, homophily, shuffled
from gst.data.pyg import from_pyg
from tests.choices import rest_in_e2e

MOST_LINES = 10
README = (Path(__file__).parents[2] / "experiments" / "drop_in" / "README.md").read_text()

GOOD = 0.6
"""An accuracy (chance: 0.2) or R2 (chance: 0) that a model which learned is above."""
POOR = 0.45
"""One that a model which had nothing to learn from stays below."""

REACH = {"pyg_gcn": 3, "pyg_sage": 2, "dgl_style": 2, "plain_torch": 2}
"""How far away a node can be and change the embedding of another: the layers, and for GCN one more, since it divides a
message by the degree of its sender."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Graphs this small are slower on two."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


every_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
local_programs = pytest.mark.parametrize(
    "program", [program for program in PROGRAMS if program.name in REACH], ids=lambda program: program.name
)


def need(program: Program) -> None:
    if program.name.startswith("pyg"):
        pytest.importorskip("torch_geometric", reason="needs torch-geometric: pip install .[pyg]")


# Few lines -----------------------------------------------------------------------------------------


@every_program
def test_at_most_ten_lines_change(program: Program) -> None:
    assert 0 < program.changed_lines() <= MOST_LINES


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ("a\nb\nc", "a\nb\nc", 0),
        ("a\nb\nc", "a\nx\nc", 1),
        ("a\nb\nc", "a\nc", 1),
        ("a\nb\nc", "a\nb\nx\ny\nc", 2),
        ("a\nb\nc", "a\nx\ny\nz\nc", 3),
        ("a\nb\nb\nc", "x\nb\nb\ny\nz", 3),
        ("a\nb", "  a\nb", 1),
    ],
)
def test_changed_lines_counts_what_is_changed_added_and_removed(before: str, after: str, lines: int) -> None:
    assert changed_lines(before, after) == lines


@every_program
def test_the_readme_tells_the_number_of_lines(program: Program) -> None:
    row = re.search(rf"^\| {program.model}[^|]*\| (\d+) \|", README, re.MULTILINE)
    assert row is not None and int(row[1]) == program.changed_lines()


# They learn ----------------------------------------------------------------------------------------


@every_program
def test_the_model_learns_from_whole_graphs(program: Program) -> None:
    need(program)
    assert learn(program, "") > GOOD


@pytest.mark.parametrize("program", rest_in_e2e(PROGRAMS, PROGRAMS[:2]), ids=lambda program: program.name)
def test_the_program_learns_under_gst_run_as_it_stands(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    need(program)
    torch.manual_seed(0)
    runpy.run_module(f"experiments.drop_in.{program.name}_gst", run_name="__main__")
    assert float(capsys.readouterr().out) > GOOD


@pytest.mark.parametrize("name", rest_in_e2e(["dgl_style", "plain_torch"], ["plain_torch"]))
def test_nothing_is_learned_from_shuffled_labels(name: str) -> None:
    """One program for each of the two kinds of graphs: it is their labels that are the control."""
    program = next(program for program in PROGRAMS if program.name == name)
    assert learn(program, "_gst", shuffle=True) < POOR


# They compute what they computed -------------------------------------------------------------------


def before_and_after(program: Program) -> tuple[ModuleType, torch.nn.Module, gst.GraphSegmentTraining]:
    """The model on whole graphs and the model under GST, with the same weights, in double."""
    need(program)
    module, gst_module = program.load(), program.load("_gst")
    examples = program.given(program.examples(2))
    full, under_gst = module.fit(examples, epochs=0), gst_module.fit(examples, epochs=0)
    weights = list(full.state_dict().values())
    parameters = list(under_gst.parameters())
    assert [tuple(p.shape) for p in parameters] == [tuple(w.shape) for w in weights]
    with torch.no_grad():
        for parameter, weight in zip(parameters, weights, strict=True):
            parameter.copy_(weight)
    return module, full.double(), under_gst.double()


def on_whole_graph(program: Program, module: ModuleType, model: torch.nn.Module, example: Example) -> Tensor:
    (batch,) = module.batches(program.given([example._replace(x=example.x.double())]))
    with torch.no_grad():
        return module.outputs_and_labels(model, batch)[0].flatten()


def on_segments(model: gst.GraphSegmentTraining, example: Example, max_nodes: int = 15, halo: int = 0) -> Tensor:
    segmented = gst.segment(from_pyg(example), max_nodes, halo=halo)
    assert max_nodes > len(example.x) or segmented.num_segments > 3
    return model.exact([segmented]).flatten()


def largest_difference(program: Program, halo: int, which: slice = slice(None)) -> float:
    """Between the whole graph and its segments, over two graphs of every family."""
    module, full, under_gst = before_and_after(program)
    differences = [
        (on_segments(under_gst, example, halo=halo) - on_whole_graph(program, module, full, example)).abs().max()
        for example in program.examples(10)[which]
    ]
    return float(torch.stack(differences).max())


@local_programs
def test_with_a_halo_all_segments_give_what_the_whole_graph_gives(program: Program) -> None:
    assert largest_difference(program, REACH[program.name]) < 1e-10


@local_programs
def test_with_less_of_a_halo_they_do_not(program: Program) -> None:
    assert largest_difference(program, REACH[program.name] - 1) > 1e-5


def side_by_side(first: Example, second: Example) -> tuple[Example, np.ndarray]:
    """One graph of two pieces, and the piece of each node."""
    edges = torch.cat([first.edge_index, second.edge_index + len(first.x)], dim=1)
    piece = np.repeat([0, 1], [len(first.x), len(second.x)])
    return Example(torch.cat([first.x, second.x]), edges, first.y), piece


@local_programs
def test_where_no_edge_is_cut_no_halo_is_needed(program: Program) -> None:
    module, full, under_gst = before_and_after(program)
    example, parts = side_by_side(*program.examples(2))
    segmented = gst.segment(from_pyg(example), parts=parts)
    assert segmented.num_segments == 2 and segmented.edge_cut == 0
    ours, truth = under_gst.exact([segmented]).flatten(), on_whole_graph(program, module, full, example)
    torch.testing.assert_close(ours, truth, rtol=0, atol=1e-10)


@every_program
def test_one_segment_is_the_whole_graph(program: Program) -> None:
    module, full, under_gst = before_and_after(program)
    for example in program.examples(5):
        ours, truth = on_segments(under_gst, example, max_nodes=999), on_whole_graph(program, module, full, example)
        torch.testing.assert_close(ours, truth, rtol=0, atol=1e-10)


@every_program
def test_segments_side_by_side_do_not_change_each_other(program: Program) -> None:
    _, _, under_gst = before_and_after(program)
    segmented = [gst.segment(from_pyg(example), max_nodes=15) for example in program.examples(5)]
    together = under_gst.exact(segmented)
    under_gst.max_rows = 1
    torch.testing.assert_close(under_gst.exact(segmented), together, rtol=0, atol=1e-10)


def test_attention_stays_inside_a_segment_so_gps_is_not_the_whole_graph() -> None:
    gps = next(program for program in PROGRAMS if program.name == "pyg_gps")
    connected = slice(1, 3)  # a tree and a preferential graph
    assert largest_difference(gps, halo=99, which=connected) < 1e-10  # every segment holds all nodes
    assert largest_difference(gps, halo=2, which=connected) > 1e-5


# The graphs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [families, homophily])
def test_examples_are_graphs_without_loops_or_doubles_both_ways(make: object) -> None:
    assert callable(make)
    for example in make(15):
        edges = set(map(tuple, example.edge_index.T.tolist()))
        assert len(edges) == example.edge_index.shape[1]
        assert all(a != b and (b, a) in edges for a, b in edges)
        assert example.edge_index.max() < len(example.x) and example.x.isfinite().all()


def test_homophily_is_the_mean_share_of_neighbours_of_the_same_kind() -> None:
    for example in homophily(3):
        kinds, shares = example.x.argmax(1).tolist(), []
        for node, kind in enumerate(kinds):
            around = example.edge_index[0][example.edge_index[1] == node].tolist()
            shares.append(sum(kinds[other] == kind for other in around) / len(around))
        assert float(example.y) == pytest.approx(np.mean(shares))


def test_shuffled_keeps_graphs_and_labels_and_parts_them() -> None:
    examples, dealt = families(50), shuffled(families(50))
    assert all(a.x.equal(b.x) for a, b in zip(examples, dealt, strict=True))
    assert sorted(int(e.y) for e in dealt) == sorted(int(e.y) for e in examples)
    assert sum(int(a.y) == int(b.y) for a, b in zip(examples, dealt, strict=True)) < 25


# Message passing in the style of DGL ---------------------------------------------------------------


def random_message_graph(num_nodes: int, num_edges: int, seed: int) -> dgl.Graph:
    generator = torch.Generator().manual_seed(seed)
    source, target = torch.randint(num_nodes, (2, num_edges), generator=generator)
    graph = dgl.graph((source, target), num_nodes)
    graph.ndata["h"] = torch.randn(num_nodes, 2, generator=generator)
    return graph


@given(num_nodes=st.integers(1, 8), num_edges=st.integers(1, 20), seed=st.integers(0, 99))
def test_update_all_is_a_loop_over_nodes(num_nodes: int, num_edges: int, seed: int) -> None:
    graph = random_message_graph(num_nodes, num_edges, seed)
    hidden, (source, target) = graph.ndata["h"], graph.edges()
    graph.update_all(
        lambda edges: {"m": edges.src["h"] - 2 * edges.dst["h"]},
        lambda nodes: {"h": nodes.mailbox["m"].amax(1) * nodes.data["h"]},
    )
    for node in range(num_nodes):
        messages = [hidden[a] - 2 * hidden[node] for a, b in zip(source, target, strict=True) if b == node]
        wanted = torch.stack(messages).amax(0) * hidden[node] if messages else torch.zeros(2)
        torch.testing.assert_close(graph.ndata["h"][node], wanted)


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_a_batch_of_graphs_is_the_graphs(sizes: list[int], seed: int) -> None:
    def heard(graph: dgl.Graph) -> Tensor:
        graph.update_all(lambda edges: {"m": edges.src["h"]}, lambda nodes: {"s": nodes.mailbox["m"].sum(1)})
        return dgl.mean_nodes(graph, "s")

    graphs = [random_message_graph(size, 2 * size, seed + i) for i, size in enumerate(sizes)]
    together = heard(dgl.batch(graphs))
    torch.testing.assert_close(together, torch.cat([heard(graph) for graph in graphs]))


def test_dgl_itself_computes_what_its_stand_in_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    real = pytest.importorskip("dgl", reason="needs DGL itself: pip install --no-deps dgl==1.1.3")
    program = next(program for program in PROGRAMS if program.name == "dgl_style")
    module, full, under_gst = before_and_after(program)
    (ours, _), examples = module.collate(program.given(program.examples(10))), program.examples(10)
    segmented = [gst.segment(from_pyg(example), max_nodes=15) for example in examples]
    with torch.no_grad():
        wanted = full(ours, ours.ndata["x"].double()), under_gst.exact(segmented)
    graphs = [
        real.graph((example.edge_index[0], example.edge_index[1]), num_nodes=len(example.x)) for example in examples
    ]
    theirs = real.batch(graphs)
    for each in (module, program.load("_gst")):
        monkeypatch.setattr(each, "dgl", real)
    with torch.no_grad():
        found = full(theirs, torch.cat([example.x for example in examples]).double()), under_gst.exact(segmented)
    assert isinstance(theirs, real.DGLGraph)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)
