"""Third-party models under GST: few lines change, they learn, and they compute what they computed before."""

from __future__ import annotations

import difflib
import runpy
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

import gst
from experiments.drop_in.graphs import Example, as_pyg, families
from gst.data.pyg import from_pyg
from tests.choices import with_rest

FOLDER = Path(__file__).parents[2] / "experiments" / "drop_in"
MOST_LINES = 10
REACH = {"pyg_gcn": 3, "plain_torch": 2}
"""Distance of nodes that change the embedding of another: the layers, and for GCN one more, since it divides a message
by the degree of its sender."""
HELD = {"pyg_gcn": as_pyg, "plain_torch": list}
GOOD = 0.6  # accuracy of a model that learned; chance is 0.2

every_program = pytest.mark.parametrize("name", REACH)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Graphs this small are slower on two."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def load(name: str) -> ModuleType:
    if name.startswith("pyg"):
        pytest.importorskip("torch_geometric", reason="needs torch-geometric: pip install .[pyg]")
    return import_module(f"experiments.drop_in.{name}")


@every_program
def test_at_most_ten_lines_change_as_the_readme_says(name: str) -> None:
    before, after = ((FOLDER / f"{name}{suffix}.py").read_text().splitlines() for suffix in ("", "_gst"))
    blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    lines = sum(max(i2 - i1, j2 - j1) for kind, i1, i2, j1, j2 in blocks if kind != "equal")
    assert 0 < lines <= MOST_LINES and f"(`{name}`) | {lines} |" in (FOLDER / "README.md").read_text()


# They learn ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", with_rest([f"{name}{suffix}" for name in REACH for suffix in ("", "_gst")],
                                             ["plain_torch_gst"]))  # fmt: skip
def test_the_program_learns_run_as_it_stands(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    load(name)
    torch.manual_seed(0)
    runpy.run_module(f"experiments.drop_in.{name}", run_name="__main__")
    assert float(capsys.readouterr().out) > GOOD


# They compute what they computed -------------------------------------------------------------------


def before_and_after(name: str) -> tuple[ModuleType, torch.nn.Module, gst.GraphSegmentTraining]:
    """Return the model on whole graphs and the model under GST, with the same weights, in double."""
    module, gst_module = load(name), load(f"{name}_gst")
    examples = HELD[name](families(2))
    full, under_gst = module.fit(examples, epochs=0), gst_module.fit(examples, epochs=0)
    weights, parameters = list(full.state_dict().values()), list(under_gst.parameters())
    assert [tuple(p.shape) for p in parameters] == [tuple(w.shape) for w in weights]
    with torch.no_grad():
        for parameter, weight in zip(parameters, weights, strict=True):
            parameter.copy_(weight)
    return module, full.double(), under_gst.double()


def on_whole_graph(name: str, module: ModuleType, model: torch.nn.Module, example: Example) -> Tensor:
    (batch,) = module.batches(HELD[name]([example._replace(x=example.x.double())]))
    with torch.no_grad():
        return module.outputs_and_labels(model, batch)[0].flatten()


def largest_difference(name: str, halo: int, max_nodes: int = 15) -> float:
    """Return the largest difference between the whole graph and its segments, over a graph of every family."""
    module, full, under_gst = before_and_after(name)
    differences = []
    for example in families(5):
        segmented = gst.segment(from_pyg(example), max_nodes, halo=halo)
        assert max_nodes > len(example.x) or segmented.num_segments > 3
        difference = under_gst.exact([segmented]).flatten() - on_whole_graph(name, module, full, example)
        differences.append(float(difference.abs().max()))
    return max(differences)


@every_program
def test_with_a_halo_all_segments_give_what_the_whole_graph_gives_and_with_less_of_it_not(name: str) -> None:
    assert largest_difference(name, REACH[name]) < 1e-10
    assert largest_difference(name, REACH[name] - 1) > 1e-5
