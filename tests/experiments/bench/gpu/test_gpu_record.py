"""The description of an accelerator, from recorded text of nvidia-smi."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from experiments.bench.gpu import record
from experiments.bench.gpu.record import Clocks, parsed

ONE, TWO = "GPU-0d7a3c7e-6f1f-5f0a-9c38-1b2c3d4e5f60", "GPU-8d3c1a52-0001-0002-0003-4b5c6d7e8f90"
# A data-centre card at its power limit; one that idles; a card of a laptop, and one split by MIG, which report little.
STATES = f"""\
{ONE}, 1410, 1980, 61, 0x0000000000000004
{TWO}, 345, 1980, 34, 0x0000000000000001
GPU-laptop, 300, [N/A], 45, [N/A]
GPU-split, 1095, 1980, 39, 0x0000000000000000
GPU-lost, [Unknown Error], [Unknown Error], [GPU requires reset], [Unknown Error]
"""


def clocks(sm_mhz: float | None, most_sm_mhz: float | None, celsius: float | None, *slowed_by: str) -> Clocks:
    return {"sm_mhz": sm_mhz, "most_sm_mhz": most_sm_mhz, "celsius": celsius, "slowed_by": [*slowed_by]}


def test_what_nvidia_smi_prints_is_read_and_what_it_does_not_report_is_none() -> None:
    assert parsed(STATES) == {
        ONE: clocks(1410.0, 1980.0, 61.0, "power limit"),
        TWO: clocks(345.0, 1980.0, 34.0),
        "GPU-laptop": clocks(300.0, None, 45.0),
        "GPU-split": clocks(1095.0, 1980.0, 39.0),
        "GPU-lost": clocks(None, None, None),
    }


def test_the_record_names_memory_and_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="H100", total_memory=80 << 30)
    module = SimpleNamespace(get_device_properties=lambda device: properties)
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(record, "driver", lambda: "570.1")
    got = record.accelerator_record(torch.device("xpu", 0))
    assert (got["name"], got["memory_bytes"], got["driver"]) == ("H100", 80 << 30, "570.1")
    assert got["cuda"] == torch.version.cuda and got["tf32"] == torch.backends.cudnn.allow_tf32
