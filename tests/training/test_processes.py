"""`gst fit` with several processes, as a user starts them: on one host, and on two that only a network joins."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import torch

from gst.cli import main
from tests.checks import without_checks

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
QUIET = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": str(ROOT), "WANDB_SILENT": "true"}
LIMIT = 480  # seconds
TWO_HOSTS = ["unshare", "-rn", "sh", str(Path(__file__).with_name("two_hosts.sh"))]
SGD = [
    "--optimizer=torch.optim.SGD", "--optimizer.lr=0.01", "--optimizer.momentum=0.9",
    "--lr_scheduler=torch.optim.lr_scheduler.ConstantLR",
]  # fmt: skip
SMALL = [
    "--config", str(ROOT / "experiments/configs/giant_synthetic.yaml"), "--data.source.init_args.num_nodes=600",
    "--data.source.init_args.num_graphs=5", "--data.source.init_args.num_configs=26", "--data.max_nodes=150",
    "--data.num_valid=8", "--data.num_test=5", "--model.num_fresh=1", "--trainer.enable_progress_bar=false",
    "--data.configs_per_graph=8",
    "--trainer.accelerator=cpu", "--trainer.logger=false", "--trainer.callbacks=[]",
    "--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint", "--trainer.callbacks.save_last=true", *SGD,
]  # fmt: skip


def gst(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gst.cli", *arguments]
    return subprocess.run(
        command, cwd=folder, env=os.environ | QUIET, capture_output=True, text=True, timeout=LIMIT, check=False
    )


def state_of(checkpoint: Path) -> dict[str, Any]:
    return torch.load(checkpoint, weights_only=True)["state_dict"]


def fit(folder: Path, processes: int, name: str, epochs: int, *more: str) -> dict[str, Any]:
    """The checkpoint that so many processes leave, which share four graphs a step."""
    several = [f"--trainer.devices={processes}", *["--trainer.strategy=ddp"] * (processes > 1)]
    arguments = [
        "fit", *SMALL, *several, f"--data.graphs_per_step={4 // processes}", f"--trainer.max_epochs={epochs}",
        f"--trainer.callbacks.dirpath={name}", *more,
    ]  # fmt: skip
    if processes == 1:
        with chdir(folder), without_checks():
            assert main(arguments) == 0
    else:
        done = gst(folder, *arguments)
        assert done.returncode == 0, done.stderr[-3000:]
    return state_of(folder / name / "last.ckpt")


def assert_alike(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Parameters, and rows of the table by graph, however its keys are numbered."""
    table = "estimator.table._extra_state"
    for name, value in theirs.items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(ours[name], value, rtol=2e-3, atol=2e-4)
    assert len(theirs[table]["keys"]) > 50 and ours[table]["step"] == theirs[table]["step"]
    rows = [sorted(map(tuple, state[table]["rows"].tolist())) for state in (ours, theirs)]
    torch.testing.assert_close(*map(torch.tensor, rows), rtol=2e-3, atol=2e-4)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The checkpoints of one process after each of three epochs."""
    folder = tmp_path_factory.mktemp("alone")
    fit(folder, 1, "kept", 3, "--trainer.callbacks.save_top_k=-1")
    return [path for epoch in range(3) for path in folder.glob(f"kept/epoch={epoch}-*.ckpt")]


# As documented, with the progress bar: a configuration of each kind of batch ------------------------------------------

SIZES = {  # and those of the data: what is documented stays as it is
    "giant_synthetic": ["--data.source.init_args.num_nodes=600", "--data.max_nodes=150",
                        "--data.source.init_args.num_configs=80"],
    "alexnet_layout": [f"--data.source.init_args.files=[{FIXTURES}/alexnet_small.npz]", "--data.num_valid=100",
                       "--data.num_test=100", "--data.lists_per_graph=2"],
    "tile": [f"--data.source.init_args.files=[{FIXTURES}/tile/*.npz]", "--data.num_valid=1", "--data.num_test=1",
             "--data.lists_per_graph=1"],
}  # fmt: skip


def on_a_terminal(command: list[str], **options: Any) -> tuple[int, str]:
    """Exit status of a command whose output is a terminal, and what it says there."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, **options) as process:
        os.close(theirs)
        output = bytearray()
        while select.select([ours], [], [], LIMIT)[0]:
            try:
                output += os.read(ours, 1 << 16)
            except OSError:  # the other end is closed
                break
        else:
            process.kill()
    os.close(ours)
    return process.returncode, output.decode(errors="replace")


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_the_documented_command_of_two_processes_ends(name: str, tmp_path: Path) -> None:
    arguments = [
        "fit", "--config", str(ROOT / f"experiments/configs/{name}.yaml"), "--trainer.accelerator=cpu",
        "--trainer.devices=2", "--trainer.strategy=ddp", "--trainer.max_epochs=1", "--json=fit.json", *SIZES[name],
    ]  # fmt: skip
    if name == "giant_synthetic":
        environment = os.environ | QUIET | {"TERM": "xterm"}
        status, said = on_a_terminal([sys.executable, "-m", "gst.cli", *arguments], cwd=tmp_path, env=environment)
        assert "Epoch 0/0" in said
    else:
        done = gst(tmp_path, *arguments)
        status, said = done.returncode, done.stdout + done.stderr
        assert "gst: after epoch 0: train/loss=" in said and "Epoch 0" not in said and said.count("\r") == 0
    assert status == 0, said[-3000:]
    metrics = json.loads((tmp_path / "fit.json").read_text())["metrics"]
    assert {"speed/graphs_per_s", "data/stall", "memory/host_peak_bytes"} <= metrics.keys()


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_and_two_processes_go_on_from_each_others_checkpoints(alone: list[Path]) -> None:
    """With as many graphs in a step of all, the training is the same, in float32, momentum included."""
    first, _, last = alone
    folder = first.parents[1]
    fit(folder, 2, "several", 2, f"--ckpt_path={first}")
    assert_alike(fit(folder, 1, "after", 3, "--ckpt_path=several/last.ckpt"), state_of(last))
    several = ["--trainer.devices=2", "--trainer.strategy=ddp", "--ckpt_path=several/last.ckpt"]
    done = gst(folder, "test", *SMALL, *several, "--json=several.json")
    assert done.returncode == 0, done.stderr[-3000:]
    assert -1 <= json.loads((folder / "several.json").read_text())["metrics"]["test/tau"] <= 1


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_hosts_train_together_over_a_network(alone: list[Path], tmp_path: Path) -> None:
    """Two network namespaces joined by a virtual cable: each host reaches the other by its address alone."""
    try:
        allowed = subprocess.run([*TWO_HOSTS, "true"], capture_output=True, text=True, check=False)
        reason = allowed.stderr.strip() if allowed.returncode else ""
    except OSError as error:
        reason = str(error)
    if reason:
        pytest.skip(f"this system lets users make no network namespaces: {reason}")
    arguments = [
        "fit", *SMALL, "--trainer.devices=1", "--trainer.num_nodes=2", "--trainer.strategy=ddp",
        "--data.graphs_per_step=2", "--trainer.max_epochs=1", "--trainer.callbacks.dirpath=hosts",
    ]  # fmt: skip
    meeting = ["--nnodes=2", "--nproc-per-node=1", "--master-addr=10.77.0.1", "--master-port=29501"]
    started = [sys.executable, "-m", "torch.distributed.run", *meeting, '--node-rank="$NODE_RANK"', "-m", "gst.cli"]
    script = " ".join([*started, *(f"'{each}'" for each in arguments)])
    done = subprocess.run(
        [*TWO_HOSTS, "sh", "-c", script], cwd=tmp_path, env=os.environ | QUIET, capture_output=True, text=True,
        timeout=LIMIT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert_alike(state_of(tmp_path / "hosts" / "last.ckpt"), state_of(alone[0]))


@pytest.mark.parametrize("strategy", ["fsdp", '{"class_path": "lightning.pytorch.strategies.ModelParallelStrategy"}'])
def test_strategies_that_gather_layer_by_layer_are_refused(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["fit", *SMALL, "--trainer.devices=2", f"--trainer.strategy={strategy}"]) == 2
    assert "--trainer.strategy ddp" in capsys.readouterr().err.splitlines()[-1]
