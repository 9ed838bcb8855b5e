"""What is recorded of an accelerator, from a device that is described."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from experiments.bench.gpu import record

XPU = torch.device("xpu", 0)


def test_the_record_names_memory_and_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="H100", total_memory=80 << 30)
    module = SimpleNamespace(get_device_properties=lambda device: properties)
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(record, "driver", lambda: "570.1")
    got = record.accelerator_record(XPU)
    assert (got["name"], got["memory_bytes"], got["driver"]) == ("H100", 80 << 30, "570.1")
    assert got["cuda"] == torch.version.cuda and got["tf32"] == torch.backends.cudnn.allow_tf32


def test_clocks_are_those_of_the_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "read_clocks", lambda names: {name: {"sm_mhz": 1980.0} for name in names})
    assert record.clocks_of(XPU)["xpu:0"]["sm_mhz"] == 1980.0 and record.clocks_of(torch.device("cpu")) == {}
