"""GraphNet samples as graphs: arrays of operators, `gst prepare`, and bad input."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from experiments.reproductions.graphnet.fx_graphs import COLUMNS, FxGraphs, fx_graph
from experiments.reproductions.graphnet.reader import operator_graph, read_sources
from gst.cli import main
from tests.files import FIXTURES

SAMPLES = FIXTURES / "graphnet"
CLASS = "experiments.reproductions.graphnet.fx_graphs:FxGraphs"


def test_an_operator_graph_in_arrays() -> None:
    (source,) = read_sources(SAMPLES)
    operations = operator_graph(source)
    graph = fx_graph(operations)
    assert graph.node_features.shape == (len(operations), len(COLUMNS)) and (graph.edges[0] < graph.edges[1]).all()
    assert graph.opcodes.min() > 0
    first = dict(zip(COLUMNS, graph.node_features[0].tolist(), strict=True))
    assert (first["dimension 1"], first["dimension 2"], first["bytes of parameters"]) == (16, 16, 4 * 16 * 27)


def test_prepare_a_folder_of_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["prepare", CLASS, f"--arg=path={SAMPLES}", "--store", str(tmp_path)]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert ": 1 graphs, " in printed and "skipped: nothing" in printed
    assert main([*command, "--part", "train"]) == 2
    assert "takes no option part; tpugraphs does" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "before", "after", "message"),
    [
        ("model.py", "torch.conv2d", "torch.compile", r"model\.py, line .*torch.compile is not a function"),
        ("weight_meta.py", "[16, 3, 3, 3]", "[16, 5, 3, 3]", r"model\.py, line "),
    ],
)
def test_a_sample_that_cannot_be_read_is_named_by_file_and_line(
    tmp_path: Path, file: str, before: str, after: str, message: str
) -> None:
    folder = shutil.copytree(SAMPLES, tmp_path / "samples")
    for path in folder.rglob(file):
        assert before in path.read_text()
        path.write_text(path.read_text().replace(before, after))
    source = FxGraphs(str(folder))
    with pytest.raises(ValueError, match=message):
        list(source)
    assert len(source) == 1 and source.skipped.total() == 1
