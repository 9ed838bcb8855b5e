"""What is logged, read back from the files of W&B's own client."""

from __future__ import annotations

import json
import os
import subprocess
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import wandb
from offline_runs import OfflineRun, read_runs

from gst.cli import main
from gst.data.synthetic import synthetic_program
from gst.graphs.store import open_store
from gst.training.plan_run import usual_mode
from gst.training.record import code_version

ROOT = Path(__file__).parents[2]
PROGRAM = "rnnlm:layers=1,hidden=8,steps=2,batch=2,vocabulary=10"


@pytest.fixture(autouse=True)
def in_own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


def fit(*arguments: str) -> int:
    config = ROOT / "experiments/configs/giant_synthetic.yaml"
    small = ["--data.source.init_args.num_nodes=3000", "--data.max_nodes=500", "--trainer.limit_train_batches=4"]
    quiet = ["--trainer.enable_progress_bar=false", "--trainer.log_every_n_steps=1"]
    return main(["fit", "--config", str(config), *small, *quiet, *arguments])


def runs_in(folder: Path) -> list[OfflineRun]:
    """What W&B's service wrote, which is all there once it has ended."""
    wandb.teardown()
    return read_runs(folder)


@pytest.mark.slow
def test_each_training_of_one_process_has_its_own_run(tmp_path: Path) -> None:
    assert fit("--trainer.max_epochs=1") == 0
    assert wandb.run is None
    mine = wandb.init(project="mine", dir=tmp_path)
    assert fit("--trainer.max_epochs=1") == 0
    assert wandb.run is mine, "a run that somebody else began is theirs to end"
    mine.finish()
    wandb.teardown()
    assert len(list(Path().glob("**/run-*.wandb"))) == 2


def test_a_training_logs_speed_memory_the_table_predictions_and_versions() -> None:
    assert fit("--trainer.max_epochs=2") == 0
    (run,) = runs_in(Path("runs"))
    for key in ("train/loss", "val/tau", "table/age_mean", "table/age_max", "table/share_unknown", "data/stall"):
        assert np.isfinite(run.history[key]).all() and run.history[key], key
    assert max(run.history["data/stall"]) > 0
    (store,) = (meta.parent for meta in Path("runs/stores").glob("*/meta.json"))
    (graph,) = open_store(store)
    speed = {what: np.array(run.history[f"speed/{what}_per_s"]) for what in ("graphs", "segments")}
    assert len(speed["graphs"]) == 2 and (speed["graphs"] > 0).all()
    assert speed["segments"] == pytest.approx(speed["graphs"] * graph.num_segments) and graph.num_segments > 5
    assert 50 << 20 < run.history["memory/host_peak_bytes"][-1] < 1 << 40
    assert run.config["code_version"] == code_version()
    assert run.config["data_version"] == {"source": store.name}

    (logged,) = run.history["val/predicted_table/path"]
    (table,) = Path("runs").glob(f"**/{logged}")
    rows = json.loads(table.read_text())["data"]
    targets = set(synthetic_program(3000, 256).targets.tolist())
    assert len(rows) == 32 and {measured for _, measured, _ in rows} <= targets
    assert len({predicted for *_, predicted in rows}) > 1


def test_a_plan_is_logged_with_its_file_as_an_artifact() -> None:
    arguments = ["place", PROGRAM, "--machine", "gpus:2", "--evaluations", "40", "--methods", "annealing"]
    assert main([*arguments, "--wandb", "--out", "out", "--json", "result.json"]) == 0
    result = json.loads(Path("result.json").read_text())
    (run,) = runs_in(Path("out"))
    assert run.history["objective"] == [result["objective"]] and run.history["best"] == [result["best"]]
    logged = {name.removeprefix("plans/").removesuffix("_ms"): values for name, values in run.history.items()}
    for name, plan in result["plans"].items():
        assert not plan["feasible"] or logged[name] == [plan["latency"]]
    assert run.config["evaluations"] == 40 and run.config["code_version"] == code_version()
    assert run.config["data_version"] == json.loads(Path("out/plan.json").read_text())["program"]
    artifact = run.artifacts["plan"]
    contents = {each.path: each for each in artifact.manifest.contents}
    assert contents.keys() == {"plan.json", "report.html"}
    assert contents["plan.json"].size == Path("out/plan.json").stat().st_size


def test_nothing_is_logged_online_unless_somebody_is_logged_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "netrc"
    monkeypatch.setenv("NETRC", str(home))
    assert usual_mode() == "offline"
    home.write_text("machine elsewhere.example login me password secret\n")
    assert usual_mode() == "offline"
    home.write_text("machine api.wandb.ai login user password secret\n")
    assert usual_mode() == "online"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert usual_mode() is None


def git(folder: Path, *arguments: str) -> str:
    own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    names = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    command = ["git", "-C", str(folder), *names, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | own).stdout.strip()


def test_the_version_of_the_code_is_that_of_the_repository_which_tracks_it(tmp_path: Path) -> None:
    package, installed = tmp_path / "gst", tmp_path / "venv/gst"
    for each in (package, installed):
        each.mkdir(parents=True)
        (each / "__init__.py").write_text("")
    released = version("graph-segment-training")
    assert code_version(package) == released
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "gst")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert code_version(package) == commit and code_version(installed) == released
    (package / "__init__.py").write_text("changed = True")
    assert code_version(package) == f"{commit}-dirty"
