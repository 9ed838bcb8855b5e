"""What `gst devices` prints; names of core sets and streams; sizes of memory."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from gst.cli import main
from gst.machine.devices import Device, core_sets, discover, parse_bytes, select

CPU = [Device(f"cpu:{number}", "cpu", (number,), 1, "host", "test") for number in range(5)]


def test_the_command_prints_devices_and_sets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--sets", "--json", str(tmp_path / "out.json")]) == 0
    printed, found = capsys.readouterr().out, json.loads((tmp_path / "out.json").read_text())
    assert len(found["devices"]) == len(discover())
    assert all(each["name"] in printed for each in [*found["devices"], *found["sets"]])


def test_core_sets_are_powers_of_two_and_all() -> None:
    assert [each.name for each in core_sets(CPU)] == ["cpu:0-1", "cpu:2-3", "cpu:0-3", "cpu:0-4"]
    assert [each.name for each in core_sets(CPU[:4])] == ["cpu:0-1", "cpu:2-3", "cpu:0-3"]
    assert [each.name for each in core_sets(CPU[:2])] == ["cpu:0-1"]
    assert core_sets(CPU[:1]) == [] == core_sets([dataclasses.replace(each, memory=each.name) for each in CPU[:2]])
    assert core_sets(CPU)[2].cores == (0, 1, 2, 3) and core_sets(CPU)[2].threads == 4


def test_streams_of_a_gpu_are_named_and_share_its_memory() -> None:
    """Names only: that they run side by side takes a GPU."""
    gpu = Device("cuda:0", "cuda", (), 1, "cuda:0", "test")
    first, second = select(["cuda:0", "cuda:0/stream:1"], [gpu])
    assert first == gpu and second == dataclasses.replace(gpu, name="cuda:0/stream:1")
    assert second.memory == "cuda:0" and second.torch_device == torch.device("cuda:0")
    for name in ("cuda:1/stream:1", "cuda:0/stream:x", "cpu:0/stream:1"):
        with pytest.raises(ValueError, match=f"there is no device '{name}'"):
            select([name], [gpu, CPU[0]])


def test_a_device_has_no_limit_of_memory_unless_given() -> None:
    assert all(device.memory_limit is None for device in discover())
    assert dataclasses.replace(CPU[0], memory_limit=parse_bytes("1KiB")).memory_limit == 1024


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GiB", 2 << 30), ("512 MiB", 512 << 20), ("1.5GB", 1_500_000_000), ("3kb", 3000), ("1TiB", 1 << 40),
     ("4096", 4096), (" 7B ", 7)],
)  # fmt: skip
def test_sizes_of_memory(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "2 gibi", "-1GiB", "0", "0.4B", "1e9", "2GiB2", "nan", "2,5GB"])
def test_what_is_no_size_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match="is no size of memory; write a number and a unit") as caught:
        parse_bytes(text)
    assert "\n" not in str(caught.value) and repr(text) in str(caught.value)
