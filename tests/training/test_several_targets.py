"""Several targets of a configuration: from `y` of PyG through store, loader, losses and metrics to predictions."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from made_targets import small
from torch import Tensor

import gst
from gst.cli import main
from gst.cost.losses import squared_error
from gst.data import GraphSource
from gst.graphs.store import open_store, verify
from tests.choices import with_rest

SOURCE = "--data.source=test_several_targets.Rings"
CHECKPOINT = "--ckpt_path=run/checkpoints/best.ckpt"


class Data:
    """With the attributes of a `Data` of PyG."""

    def __init__(self, x: Tensor, edge_index: Tensor, y: Tensor) -> None:
        self.x, self.edge_index, self.y = x, edge_index, y


def ring(seed: int, width: int = 3) -> Data:
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(seed))
    nodes = torch.arange(40)
    y = torch.stack([x[:, 0].mean(), x[:, 1].mean(), x.square().mean()])[None].exp()
    return Data(x, torch.stack([nodes, nodes.roll(1)]), y[:, :width])


class Rings(GraphSource):
    def __init__(self, number: int = 12, widths: Sequence[int] = (3,), unknown: bool = False, scale: float = 1) -> None:
        self.number, self.widths, self.unknown, self.scale = number, widths, unknown, scale

    def __iter__(self) -> Iterator[gst.Graph]:
        for seed in range(self.number):
            data = ring(seed, self.widths[seed % len(self.widths)])
            targets = data.y.double().numpy() * self.scale
            if self.unknown:
                targets[0, seed % 3] = np.nan
            yield gst.Graph(data.x.numpy(), data.edge_index.numpy(), targets=targets, name=f"ring {seed}")


@pytest.fixture(autouse=True)
def in_own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def fit(*flags: str) -> int:
    given = (
        "--data.split_by=graphs",
        "--model.loss=squared_error",
        "--model.head.outputs=3",
        "--data.graphs_per_step=3",
    )
    return small("fit", SOURCE, *given, "--json=fit.json", *flags)


def test_a_store_keeps_the_targets_of_pyg_and_one_column_is_one_target(tmp_path: Path) -> None:
    directory = gst.prepare([ring(0), ring(1)], tmp_path)
    verify(directory)
    for seed, graph in enumerate(open_store(directory)):
        np.testing.assert_array_equal(graph.targets, ring(seed).y.double().numpy())
    (one,) = open_store(gst.prepare([ring(2, width=1)], tmp_path))
    assert one.targets.shape == (1,)
    assert gst.Graph(one.node_features, np.zeros((2, 0), np.int64), targets=np.ones((4, 1))).targets.shape == (4,)


def test_the_loss_of_several_targets_is_the_mean_of_theirs() -> None:
    scores, targets = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    parts = [squared_error(scores[..., k], targets[..., k]) for k in range(5)]
    torch.testing.assert_close(squared_error(scores, targets), torch.stack(parts).mean())


def test_they_are_trained_evaluated_and_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    assert fit("--data.num_valid=3", "--data.num_test=4") == 0
    metrics = json.loads(Path("fit.json").read_text())["metrics"]
    assert metrics["val/mae"] == pytest.approx(np.mean([metrics[f"val/mae/{k}"] for k in range(3)]), rel=1e-6)
    assert "[2]" in Path("run/report.html").read_text()
    given = [SOURCE, "--data.split_by=graphs", "--data.num_valid=3", "--data.num_test=4", CHECKPOINT]
    assert small("test", *given, "--json=test.json") == 0
    assert small("predict", *given, "--predictions.path=p.csv") == 0
    with Path("p.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 4
    tested = json.loads(Path("test.json").read_text())["metrics"]
    for k in range(3):
        scores, targets = (np.array([float(row[f"{what}_{k}"]) for row in rows]) for what in ("score", "target"))
        assert tested[f"test/mae/{k}"] == pytest.approx(np.abs(scores - targets).mean(), rel=1e-5)
    capsys.readouterr()
    assert main(["rank", "run/checkpoints/best.ckpt", "synthetic:40"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("gst: error: ") and len(said.splitlines()) == 1


LOSSES = ["log_runtime", "torch.nn.BCEWithLogitsLoss"]


@pytest.mark.parametrize("loss", with_rest(LOSSES, LOSSES[1:]))
def test_losses_of_several_targets(loss: str) -> None:
    """With classes that exclude nothing, `y` in 0..1."""
    own = "--data.source.init_args.scale=0.1"
    assert fit(f"--model.loss={loss}", own) == 0
    assert np.isfinite(json.loads(Path("fit.json").read_text())["metrics"]["train/loss"])


def test_unknown_targets_of_a_graph_are_skipped_alone() -> None:
    assert fit("--data.source.init_args.unknown=true", "--data.missing_targets=skip", "--data.num_valid=6") == 0
    metrics = json.loads(Path("fit.json").read_text())["metrics"]
    assert all(np.isfinite(metrics[name]) for name in ("train/loss", "val/mae/0", "val/mae/2", "val/rmse"))


WRONG = {
    "ranking": (["--model.loss=pairwise_hinge"], "loss='pairwise_hinge' takes one target .* graphs have 3"),
    "classes": (["--model.loss=cross_entropy"], "loss='cross_entropy' takes one target"),
    "head": (
        ["--model.head.outputs=2"],
        r"shape \(1, 1, 2\) and targets \(1, 1, 3\).* give the head an output for each target",
    ),
    "one output": (["--model.head.outputs=1"], r"shape \(1, 1\) and .* give the head an output for each"),
    "own": (["--model.loss=torch.nn.CrossEntropyLoss", "--model.head.outputs=2"], "CrossEntropyLoss"),
    "widths": (["--data.source.init_args.widths=[3, 2]"], "targets have the shapes .* equally many"),
    "unknown": (["--data.source.init_args.unknown=true"], "targets are NaN or infinite"),
}


@pytest.mark.parametrize("name", with_rest(WRONG, ["ranking", "head", "own", "widths"]))
def test_what_does_not_take_several_is_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags, message = WRONG[name]
    assert fit(*flags) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("gst: error: ")]
    assert len(said) == 1 and re.search(message, said[0])


def test_a_dataset_of_pyg_is_trained_on_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    source = ["--data.source=gst.data.PygDataset", "--data.source.name=FakeDataset", "--model.loss=cross_entropy",
              "--data.source.arguments={num_graphs: 12, avg_num_nodes: 30, num_classes: 3, task: graph}"]  # fmt: skip
    given = [*source, "--data.split_by=graphs", "--model.head.outputs=3", "--json=fit.json"]
    assert small("fit", *given) == 0
    assert "val/accuracy" in json.loads(Path("fit.json").read_text())["metrics"]
    assert "of FakeDataset" not in capsys.readouterr().err
    assert main(["test", CHECKPOINT]) == 2  # its configuration would have PyG unpickle any file
    assert "gst.data.PygDataset', which is not of this program" in capsys.readouterr().err
