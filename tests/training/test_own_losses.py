"""A loss of one's own: of rows without padding, shared by processes, named by checkpoints, refused in one line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from made_targets import small
from test_distributed import loaders
from torch import Tensor, nn

from gst.cli import main
from gst.cost.losses import check_own, cross_entropy, of_rows, squared_error
from gst.nn import SAGE, Head
from gst.training import SegmentTrainingModule
from gst.training.processes import share_of
from tests.choices import with_rest

LOSSES = """
import torch

class Asymmetric(torch.nn.Module):
    def __init__(self, over: float = 1.0):
        super().__init__()
        self.over, self.scale = over, torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, prediction, target):
        error = prediction - target
        return self.scale * torch.where(error > 0, self.over * error, -error)

def absolute(prediction, target):
    return (prediction - target).abs().mean()

def text(prediction, target):
    return "no number"
"""
CHECKPOINT = "run/checkpoints/best.ckpt"


@pytest.fixture(autouse=True)
def in_own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own_losses.py").write_text(LOSSES)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "own_losses", raising=False)


def padded(seed: int, *outputs: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(3, (4, 5), generator=generator).double()
    targets[torch.rand(4, 5, generator=generator) < 0.3] = torch.nan
    return torch.randn(4, 5, *outputs, generator=generator, dtype=torch.float64), targets


@pytest.mark.parametrize("seed", range(3))
def test_losses_of_torch_are_those_of_the_same_formula_here(seed: int) -> None:
    scores, targets = padded(seed)
    for reduction in ("mean", "none"):
        torch.testing.assert_close(
            of_rows(nn.MSELoss(reduction=reduction), scores, targets), squared_error(scores, targets)
        )
    scores, targets = padded(seed, 3)
    torch.testing.assert_close(of_rows(nn.CrossEntropyLoss(), scores, targets), cross_entropy(scores, targets))


@pytest.mark.parametrize("world_size", [2, 4])
def test_the_mean_over_processes_is_the_loss_of_all_graphs_together(world_size: int) -> None:
    """With other numbers of configurations in each process, and idle ones in the last step."""

    def loss(scores: Tensor, targets: Tensor) -> Tensor:
        return (scores - targets.log1p()).abs().sqrt()

    for whole, *parts in zip(*loaders(1), *loaders(world_size), strict=True):
        shared = [
            float(of_rows(loss, step.configs.double().sin(), step.targets))
            * share_of(step, step.peers, "squared_error")
            for step in parts
        ]
        alone = float(of_rows(loss, whole.configs.double().sin(), whole.targets))
        assert sum(shared) / world_size == pytest.approx(alone, rel=1e-12)


def test_processes_refuse_a_sum() -> None:
    scores, targets = torch.tensor([[2.0]]), torch.tensor([[1.0]])
    check_own(nn.L1Loss(reduction="none"), scores, targets, is_shared=True)
    check_own(nn.L1Loss(reduction="sum"), scores, targets, is_shared=False)
    with pytest.raises(ValueError, match=r"L1Loss becomes 6 from 3 .* several processes average"):
        check_own(nn.L1Loss(reduction="sum"), scores, targets, is_shared=True)


def metrics_of(path: str) -> dict[str, float]:
    return json.loads(Path(path).read_text())["metrics"]


def test_a_class_is_trained_saved_restored_and_continued(capsys: pytest.CaptureFixture[str]) -> None:
    own = ["--model.loss=own_losses.Asymmetric", "--model.loss.over=3"]
    saved = ["--trainer.callbacks.monitor=val/loss", "--trainer.callbacks.save_last=true"]
    assert small("fit", *own, *saved, "--json=fit.json") == 0
    assert {"val/loss", "val/mae", "val/tau"} <= metrics_of("fit.json").keys()
    content = torch.load(CHECKPOINT, weights_only=True)
    assert content["hyper_parameters"]["loss"] == {"class_path": "own_losses.Asymmetric", "init_args": {"over": 3.0}}
    assert content["state_dict"]["own_loss.scale"] != 2.0  # it learns
    assert "Asymmetric" in Path("run/report.html").read_text()
    assert small("validate", *own, f"--ckpt_path={CHECKPOINT}", "--json=again.json") == 0
    assert metrics_of("again.json")["val/loss"] == metrics_of("fit.json")["val/loss"]
    assert small("fit", *own, *saved, "--ckpt_path=last", "--trainer.max_epochs=2") == 0
    capsys.readouterr()
    assert main(["rank", CHECKPOINT, "synthetic:40"]) == 2
    assert "own_losses.Asymmetric', which is not of this program" in capsys.readouterr().err
    assert main(["rank", CHECKPOINT, "synthetic:40", "--trust", "own_losses"]) == 0


FUNCTIONS = ["own_losses.absolute", "torch.nn.functional.l1_loss", "torch.nn.L1Loss"]


@pytest.mark.parametrize("loss", with_rest(FUNCTIONS, [FUNCTIONS[0], FUNCTIONS[2]]))
def test_functions_and_losses_of_torch_are_losses_too(loss: str) -> None:
    assert small("fit", f"--model.loss={loss}", "--json=fit.json") == 0
    metrics = metrics_of("fit.json")
    assert metrics["val/loss"] == pytest.approx(metrics["val/mae"], rel=1e-6)
    config = ["--config=small.yaml", f"--model.loss={loss}", f"--ckpt_path={CHECKPOINT}"]
    assert main(["test", *config]) == 0


CLASSES = "--data.source.init_args.targets=[[0, 1, 2, 0, 1, 2, 0, 1], [1, 1, 0, 2, 2, 0, 1, 0]]"


def test_a_loss_of_classes_has_their_metrics_and_predictions(capsys: pytest.CaptureFixture[str]) -> None:
    own = ["--model.loss=torch.nn.CrossEntropyLoss", "--model.loss.label_smoothing=0.1", CLASSES]
    assert small("fit", *own, "--model.head.outputs=3", "--json=fit.json") == 0
    metrics = {"val/loss", "val/accuracy", "val/balanced_accuracy", "val/macro_f1"}
    assert metrics <= metrics_of("fit.json").keys()
    arguments = [f"--ckpt_path={CHECKPOINT}", "--predictions.path=p.csv"]
    assert small("predict", *own, "--model.head.outputs=3", *arguments) == 0
    scores = {line.split(",")[2] for line in Path("p.csv").read_text().splitlines()[1:]}
    assert scores <= {"0.0", "1.0", "2.0"}
    capsys.readouterr()
    assert main(["rank", CHECKPOINT, "synthetic:40"]) == 2
    assert "tells 3 classes apart" in capsys.readouterr().err


WRONG: dict[str, tuple[list[str], str]] = {
    "no such class": (["--model.loss=own_losses.Absent"], "there is no loss 'own_losses.Absent'; there are"),
    "no number": (
        ["--model.loss=own_losses.text"],
        r"loss text of predictions \(3,\) and targets \(3,\): AttributeError",
    ),
    "one output": (["--model.loss=torch.nn.CrossEntropyLoss", CLASSES], "give the head 3 outputs"),
    "no classes": (["--model.loss=torch.nn.CrossEntropyLoss", "--model.head.outputs=3"], "number them from 0"),
    "unknown argument": (["--model.loss=own_losses.Asymmetric", "--model.loss.under=3"], "under"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_loss_is_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags, message = WRONG[name]
    assert small("fit", *flags) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("gst: error: ")]
    assert len(said) == 1 and re.search(message, said[0])
    assert not Path("run").exists()


def test_a_loss_given_in_python_is_no_part_of_a_checkpoint() -> None:
    arguments: dict[str, Any] = {"encoder": SAGE(8, 1, num_opcodes=8), "head": Head(8)}
    for loss in (nn.L1Loss(), nn.functional.l1_loss):
        model = SegmentTrainingModule(**arguments, loss=loss)
        settings = dict(model.hparams)
        assert settings["loss"] in ("L1Loss", "l1_loss")
        with pytest.raises(ValueError, match=r"there is no loss '[Ll]1_?[Ll]oss'"):
            SegmentTrainingModule(**arguments, **settings)


def test_a_pooling_given_in_python_is_wanted_again_where_a_checkpoint_is_loaded() -> None:
    aggr = pytest.importorskip("torch_geometric.nn.aggr")
    arguments: dict[str, Any] = {"encoder": SAGE(8, 1, num_opcodes=8), "head": Head(8)}
    settings = dict(SegmentTrainingModule(**arguments, pooling=aggr.SumAggregation()).hparams)
    with pytest.raises(ValueError, match=r"pooling 'SumAggregation' does not decompose"):
        SegmentTrainingModule(**arguments, **settings)
    again = SegmentTrainingModule(**arguments, **settings | {"pooling": aggr.SumAggregation()})
    assert again.estimator.pooling == "sum"
