"""Default devices: a model in the host's memory stays there, on a made-up machine with accelerators."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gst
from gst.machine import devices as machine
from gst.machine.devices import Device, discover
from gst.placement.api import place as module
from gst.placement.api.place import own_devices, unused_accelerators
from gst.placement.api.placed import unused_words
from gst.placement.planning import Settings
from gst.programs import Step

CORES = [Device(f"cpu:{number}", "cpu", (number,), 1, "host", "made up") for number in range(4)]
GPUS = [Device(name, name[:4], (), 1, name, "made up") for name in ("cuda:0", "meta", "cuda:1")]
QUICK = Settings(evaluations=20, methods=(), repetitions=5, patience_s=0.0, compile_step=False)
X = torch.ones(2, 3)


@pytest.fixture
def with_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "discover", lambda: [*CORES, *GPUS])
    monkeypatch.setattr(module, "shared_domains", list)


@pytest.mark.usefixtures("with_gpus")
def test_what_lies_in_the_memory_of_the_host_has_the_cores_of_a_machine_without_accelerators() -> None:
    assert own_devices([X, {"seed": torch.tensor(0)}]) == machine.with_core_sets(CORES)
    assert unused_accelerators(CORES) == [each.name for each in GPUS]
    names = [device.name for device in own_devices(({}, (X, X.to("meta"))))]
    assert names == ["cpu:0-3", "meta", "cuda:0", "cuda:1"]  # where it lies comes first


def test_a_model_of_the_host_is_placed_there_and_a_line_names_what_was_left_out(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    here = [*discover()[:1], GPUS[0]]
    monkeypatch.setattr(module, "discover", lambda: here)
    monkeypatch.setattr(machine, "discover", lambda: here)
    model, line = nn.Linear(3, 2).eval(), unused_words(["cuda:0"])
    for what, inputs in ((model, X), (Step("linear", model.forward, (X,)), ())):
        placed = gst.place(what, inputs, budget=0, settings=QUICK)
        assert [device.name for device in placed.devices] == ["cpu:0"] == placed.result["devices"]
        assert "accelerator" not in placed.result and line in placed.explain() and line in capfd.readouterr().err
    assert line not in gst.place(model, X, "cpu:0", budget=0, settings=QUICK).explain()  # as asked


def test_the_command_goes_on_with_all_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "discover", lambda: [*CORES, *GPUS])
    assert [device.name for device in machine.usable_devices(None)] == ["cpu:0-3", "cuda:0", "meta", "cuda:1"]
