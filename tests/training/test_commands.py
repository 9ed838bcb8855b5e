"""The training commands, end to end: every shipped YAML, resume, rank, predict."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import wandb

from gst.cli import main
from gst.data.tpugraphs import OPCODE_NAMES, read
from gst.training.checkpoints import check_readable
from tests.choices import with_rest
from tests.outcomes import same

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "experiments" / "configs").glob("*.yaml"))
FIXTURES = ROOT / "tests" / "fixtures"
SMALL_DATA = {
    "placement_cost": [f"--data.source.init_args.directories=[{FIXTURES}/measured/*]", "--data.num_valid=8",
                       "--data.num_test=8"],
    "alexnet_layout": [f"--data.source.init_args.files=[{FIXTURES}/alexnet_small.npz]", "--data.num_valid=20",
                       "--data.num_test=20"],
    "layout_xla_random": [f"--data.{name}.init_args.root=." for name in ("source", "valid_source", "test_source")],
    "giant_synthetic": ["--data.source.init_args.num_nodes=3000", "--data.max_nodes=500"],
    "tile": [f"--data.source.init_args.files=[{FIXTURES}/tile/*.npz]", "--data.num_valid=1", "--data.num_test=1"],
}  # fmt: skip


@pytest.fixture(autouse=True)
def in_own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs, stores and W&B files of a test stay in its directory, where a small collection lies."""
    monkeypatch.chdir(tmp_path)
    for part in ("train", "valid", "test"):
        folder = tmp_path / "layout/xla/random" / part
        folder.mkdir(parents=True)
        shutil.copy(FIXTURES / "alexnet_small.npz", folder / f"{part}.npz")
    monkeypatch.setenv("WANDB_SILENT", "true")


def command(verb: str, name: str, *more: str) -> list[str]:
    config = ROOT / "experiments" / "configs" / f"{name}.yaml"
    return [verb, "--config", str(config), *SMALL_DATA[name], "--trainer.enable_progress_bar=false", *more]


@pytest.mark.parametrize("name", [path.stem for path in CONFIGS])
def test_every_shipped_yaml_parses_and_runs_one_batch(name: str) -> None:
    assert main(command("fit", name, "--trainer.fast_dev_run=1", "--json", "fit.json")) == 0
    assert np.isfinite(json.loads(Path("fit.json").read_text())["metrics"]["train/loss"])


@pytest.mark.slow
@pytest.mark.parametrize("steps", with_rest([2, 4], [2]))
def test_a_training_of_so_many_steps_is_validated_where_it_ends(steps: int) -> None:
    """Within an epoch of three steps, so that early stopping has its metric and there is a best checkpoint."""
    sizes = ["--data.configs_per_graph=4", "--data.lists_per_graph=3", "--trainer.logger=false"]
    assert main(command("fit", "giant_synthetic", f"--trainer.max_steps={steps}", *sizes, "--json=fit.json")) == 0
    assert np.isfinite(json.loads(Path("fit.json").read_text())["best"]["val/tau"])
    assert torch.load("runs/giant_synthetic/checkpoints/last.ckpt")["global_step"] == steps


def checkpoint_of(directory: str, epochs: int, *more: str) -> dict:
    arguments = [
        f"--trainer.max_epochs={epochs}", "--data.lists_per_graph=4", "--model.table=true",
        "--model.keep_probability=0.5", "--data.configs_per_graph=32", "--trainer.callbacks=[]",
        "--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint",
        f"--trainer.callbacks.dirpath={directory}", "--trainer.callbacks.save_last=true", "--trainer.logger=false",
    ]  # fmt: skip
    assert main(command("fit", "alexnet_layout", *arguments, *more)) == 0
    return torch.load(f"{directory}/last.ckpt", weights_only=True)


def test_precisions_that_the_table_does_not_have_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command("fit", "giant_synthetic", "--trainer.precision=bf16-true")) == 2
    assert "--trainer.precision bf16-true converts" in capsys.readouterr().err


def test_a_class_and_an_accelerator_that_are_not_there_bring_a_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command("fit", "giant_synthetic", "--data.source=synthetic")) == 2
    assert "such as gst.data.SyntheticPrograms" in capsys.readouterr().err.splitlines()[-1]
    if not torch.accelerator.is_available():
        assert main(command("fit", "giant_synthetic", "--trainer.accelerator=gpu")) == 2
        assert "Without --trainer.accelerator" in capsys.readouterr().err.splitlines()[-1]
        assert main(["place", "rnnlm", "--devices", "cuda:0", "--out", "out"]) == 2
        assert "there is no device 'cuda:0' here" in capsys.readouterr().err


@pytest.mark.slow
def test_a_resumed_training_is_bit_identical_with_table_and_generators() -> None:
    whole = checkpoint_of("whole", 2)
    checkpoint_of("parts", 1)
    resumed = checkpoint_of("parts", 2, "--ckpt_path=parts/last.ckpt")
    assert whole["state_dict"]["estimator.table._extra_state"]["keys"].numel() > 0
    assert same(whole["state_dict"], resumed["state_dict"])
    assert not same(whole["state_dict"], torch.load("whole/last.ckpt", weights_only=True)["optimizer_states"])
    # Evaluation reads no table, so that rows of other segments are no obstacle.
    Path("which.yaml").write_text("ckpt_path: whole/last.ckpt\n")
    more = ["--config=which.yaml", "--model.table=true", "--data.max_nodes=40"]
    assert main(command("test", "alexnet_layout", *more)) == 0


@pytest.mark.parametrize("words", ["ckpt_path: null", "# ckpt_path: best.ckpt"])
def test_a_configuration_that_names_no_checkpoint_is_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.yaml").write_text(f"{words}\ndata: {{max_nodes: 500}}\n")
    assert main(["test", "--config", "mine.yaml"]) == 2
    assert "gst test needs --ckpt_path: without it the model is untrained" in capsys.readouterr().err


@pytest.mark.parametrize("verb", with_rest(["fit", "test"], ["fit"]))
def test_an_unreadable_checkpoint_is_one_line_before_anything_is_started(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"state_dict": {"weight": torch.ones(9999)}}, "whole.ckpt")
    torch.save([1], "list.ckpt")
    torch.save({"epoch": 1}, "weightless.ckpt")
    damaged = {"cut": Path("whole.ckpt").read_bytes()[:20000], "random": np.random.default_rng(0).bytes(300)}
    for name, content in damaged.items():
        Path(f"{name}.ckpt").write_bytes(content)
    for name in ("random", "list", "weightless"):
        with pytest.raises(ValueError, match=f"{name}.ckpt is not a checkpoint"):
            check_readable(f"{name}.ckpt")
    for name in ("cut", "missing"):
        assert main(command(verb, "giant_synthetic", f"--ckpt_path={name}.ckpt")) == 2
        err = capsys.readouterr().err
        assert err.startswith(f"gst: error: {name}.ckpt") and len(err.splitlines()) == 1 and "weights_only" not in err
    assert main(command(verb, "giant_synthetic", "--ckpt_path=best")) == 2
    assert "give the file, such as DIR/best.ckpt" in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.slow
def test_fit_then_rank_then_predict(capsys: pytest.CaptureFixture[str]) -> None:
    wandb.teardown()  # the service of an earlier test stays in that test's directory
    assert main(command("fit", "alexnet_layout", "--trainer.max_epochs=1", "--trainer.limit_train_batches=6")) == 0
    assert list(Path("runs/alexnet_layout").glob("wandb/offline-run-*")), "W&B logged nothing"
    checkpoint = "runs/alexnet_layout/checkpoints/best.ckpt"
    file = FIXTURES / "alexnet_small.npz"
    arguments = ["rank", checkpoint, str(file), "--top", "3", "--explain", "--out", "scores.csv", "--json", "rank.json"]
    assert main(arguments) == 0
    with Path("scores.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert [int(row["config"]) for row in rows] == list(range(read(file, merge=False).num_configs))
    scores = np.array([float(row["score"]) for row in rows])
    assert json.loads(Path("rank.json").read_text())["top"] == np.argsort(scores, kind="stable")[:3].tolist()
    assert len(set(scores)) > 100
    why, printed = json.loads(Path("rank.json").read_text())["explained"], capsys.readouterr().out
    assert why["difference"] == pytest.approx(scores[why["slow"]].mean() - scores[why["fast"]].mean(), rel=1e-3)
    assert all(name in printed for name, _ in why["segments"] + why["operations"])
    assert {name.split()[0] for name, _ in why["operations"]} <= set(OPCODE_NAMES)

    assert main(command("test", "alexnet_layout", f"--ckpt_path={checkpoint}", "--json", "test.json")) == 0
    assert "test/tau" in json.loads(Path("test.json").read_text())["metrics"]
    assert main(command("predict", "alexnet_layout", f"--ckpt_path={checkpoint}", "--predictions.path=p.csv")) == 0
    with Path("p.csv").open() as lines:
        predicted = list(csv.DictReader(lines))
    assert predicted[0].keys() == {"graph", "config", "score", "target"}
    assert all(float(row["score"]) == pytest.approx(scores[int(row["config"])], rel=1e-4) for row in predicted)


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        ["--model.estimate=fresh", "--model.num_fresh=1"],
        ["--model.table=true", "--model.keep_probability=0.5", "--trainer.callbacks+=gst.training.HeadFinetuning"],
    ],
    ids=["GST-One", "GST+EFD"],
)
def test_every_variant_trains_by_flags(flags: list[str]) -> None:
    quick = ["--trainer.max_epochs=2", "--trainer.limit_train_batches=3", "--trainer.limit_val_batches=1",
             "--trainer.logger=false", "--trainer.callbacks=null", "--json", "fit.json"]  # fmt: skip
    assert main(command("fit", "alexnet_layout", *quick, *flags)) == 0
    metrics = json.loads(Path("fit.json").read_text())["metrics"]
    assert np.isfinite(metrics["train/loss"])
    assert ("table/age_mean" in metrics) == ("--model.table=true" in flags)


@pytest.mark.slow
def test_networks_of_other_packages_are_imported_only_where_they_are_trusted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.py").write_text("from gst.nn import SAGE\nclass Mine(SAGE): ...\nprint('mine runs')\n")
    monkeypatch.syspath_prepend(str(Path.cwd()))
    quick = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=2", "--model.encoder=mine.Mine"]
    assert main(command("fit", "alexnet_layout", *quick)) == 0
    arguments = ["rank", "runs/alexnet_layout/checkpoints/best.ckpt", str(FIXTURES / "alexnet_small.npz")]
    sys.modules.pop("mine")  # as in another process
    capsys.readouterr()
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert "mine.Mine" in err and "--trust" in err and "mine runs" not in out
    assert main([*arguments, "--trust", "mine"]) == 0
    assert "mine runs" in capsys.readouterr().out
