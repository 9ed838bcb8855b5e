"""Checkpoints, configurations beside them and addresses that try to run code: one line, and nothing has run."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from gst.cli import main
from gst.training import SegmentTrainingModule
from gst.training.checkpoints import BackgroundCheckpointIO, check_readable
from gst.training.rank import load
from gst.util import cluster

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "experiments" / "configs" / "giant_synthetic.yaml"
SAGE = {"class_path": "gst.nn.SAGE", "init_args": {"channels": 8, "num_layers": 1, "num_opcodes": 8}}
HEAD = {"class_path": "gst.nn.Head", "init_args": {"channels": 8}}
CODE = "__import__('pathlib').Path('ran').touch()"
TEXT = {
    "class_path": "torch_geometric.nn.Sequential",
    "init_args": {"input_args": f"x -> {CODE}", "modules": [[{"class_path": "torch.nn.Identity"}, "x -> x"]]},
}
PAYLOAD = {"class_path": "payload.Runs"}
ATTACKS: dict[str, Any] = {
    "text": TEXT, "longer name": TEXT | {"class_path": "torch_geometric.nn.sequential.Sequential"},
    "name alone": TEXT | {"class_path": "Sequential"}, "class": PAYLOAD,
    "imported by gst": "gst.training.cli.os.system", "builds any class": {"class_path": "gst.data.PygDataset"},
    "within a text": json.dumps(PAYLOAD), "escaped": '"payload\\x2eRuns"', "tabs": '{\t"class_path":\t"payload.Runs"}',
    "a file": "settings", "an address": "memory://settings.yaml",
    "deep": SAGE | {"init_args": {"channels": [PAYLOAD]}},
}  # fmt: skip
LAYERS = ("GCNConv", "GPSConv", "conv.gcn_conv.GCNConv")


@pytest.fixture(autouse=True)
def payload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a class that writes `ran`, on the path and imported, and a file with settings that name it."""
    monkeypatch.chdir(tmp_path)
    made = f"from gst.nn import SAGE\nclass Runs(SAGE):\n    def __init__(self, **given):\n        {CODE}\n"
    Path("payload.py").write_text(made + "        super().__init__(8, 1, num_opcodes=8)\n")
    Path("settings").write_text(yaml.safe_dump(PAYLOAD))
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("payload")
    monkeypatch.delitem(sys.modules, "payload")


def checkpoint(path: str, encoder: Any) -> str:
    parameters = {"encoder": encoder, "head": HEAD, "_instantiator": "lightning.pytorch.cli.instantiate_module"}
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    torch.save({
        "state_dict": {}, "hyper_parameters": parameters, "pytorch-lightning_version": "2.5.0", "epoch": 0,
        "global_step": 0, "segmentation": {"method": "bfs", "max_nodes": 8, "halo": 0, "seed": 0},
    }, path)  # fmt: skip
    return path


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("gst: error: ") and len(said.splitlines()) == 1
    assert not Path("ran").exists()
    return said


@pytest.mark.parametrize("attack", ATTACKS)
def test_classes_of_a_checkpoint_are_checked_on_every_path(attack: str, capsys: pytest.CaptureFixture[str]) -> None:
    evil = checkpoint("evil.ckpt", ATTACKS[attack])
    assert "it names " in refused(["rank", evil, "x.npz"], capsys)
    for verb in ("fit", "test") if attack == "text" else ():
        said = refused([verb, f"--config={EXAMPLE}", f"--ckpt_path={evil}"], capsys)
        assert "evil.ckpt: it names " in said
    with pytest.raises(ValueError, match=r"evil.ckpt: it names "):
        check_readable(evil, {"encoder": SAGE, "head": HEAD})
    with pytest.raises(ValueError, match="it names "):
        SegmentTrainingModule.load_from_checkpoint(evil, weights_only=True)
    assert not Path("ran").exists()


def test_a_class_of_the_configuration_or_of_a_trusted_package_is_built_and_text_only_as_it_is_there() -> None:
    own = {"encoder": PAYLOAD, "head": HEAD}
    check_readable(checkpoint("mine.ckpt", PAYLOAD | {"init_args": {"channels": 4}}), own)
    check_readable(checkpoint("text.ckpt", TEXT), own | {"encoder": TEXT})
    other = TEXT | {"init_args": {"input_args": "y"}}
    with pytest.raises(ValueError, match="Sequential"):
        check_readable("text.ckpt", own | {"encoder": other})
    SegmentTrainingModule.load_from_checkpoint("mine.ckpt", encoder=nn.Identity(), weights_only=True, strict=False)
    assert not Path("ran").exists()
    load(Path(checkpoint("mine.ckpt", PAYLOAD)), ["payload"])
    assert Path("ran").exists()


@pytest.mark.parametrize("name", LAYERS)
def test_usual_layers_may_be_named(name: str) -> None:
    check_readable(checkpoint("x.ckpt", SAGE | {"init_args": {"layer": {"class_path": f"torch_geometric.nn.{name}"}}}))


def test_a_configuration_beside_a_checkpoint_builds_known_classes_alone(capsys: pytest.CaptureFixture[str]) -> None:
    path = checkpoint("dl/checkpoints/best.ckpt", SAGE)
    honest = yaml.safe_load(EXAMPLE.read_text())
    for section, name in (("data", "source"), ("model", "encoder"), ("trainer", "callbacks")):
        for attack in (PAYLOAD, {"class_path": "os.system"}, json.dumps(PAYLOAD), "settings"):
            evil = honest | {section: honest[section] | {name: [attack] if name == "callbacks" else attack}}
            Path("dl/config.yaml").write_text(yaml.safe_dump(evil))
            Path("dl/settings").write_text(yaml.safe_dump(PAYLOAD))
            said = refused(["test", f"--ckpt_path={path}"], capsys)
            assert "config.yaml beside the checkpoint: it names " in said and "--config" in said


def test_what_an_address_holds_is_not_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for verb in ("fit", "test"):
        said = refused([verb, f"--config={EXAMPLE}", "--ckpt_path=http://127.0.0.1:1/evil.ckpt"], capsys)
        assert "http://127.0.0.1:1/evil.ckpt" in said

    class Runs:
        def __reduce__(self) -> Any:
            return os.mkdir, ("ran",)

    torch.save({"state_dict": Runs()}, "pickled.ckpt")
    # Of a folder that the configuration names, such as s3://
    with pytest.raises(ValueError, match="only tensors and plain values are read"):
        BackgroundCheckpointIO().load_checkpoint(f"file://{Path('pickled.ckpt').resolve()}", weights_only=False)
    assert not Path("ran").exists()


@pytest.mark.slow
def test_a_cluster_of_another_host_is_not_joined_by_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    joins = list[str]()
    monkeypatch.setattr("ray.init", lambda address, **_: joins.append(address))
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
        cluster._connect("ray")
        assert joins.pop() == address
    monkeypatch.setattr(cluster, "_is_here", lambda address: False)
    for mode in ("disabled", "token"):
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
        with pytest.raises(ValueError, match="another host; name it by --workers"):
            cluster._connect("ray")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(ValueError, match="without authentication"):
        cluster._connect("ray://other:10001")
    assert joins == []
