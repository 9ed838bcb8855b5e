"""Devices here, and what `gst devices` prints; names of core sets and streams; sizes of memory."""

import dataclasses
import json
import os
from pathlib import Path

import pytest
import torch

from gst.cli import main
from gst.machine.devices import (
    Device,
    core_numbers,
    core_sets,
    cpu_model,
    discover,
    parse_bytes,
    select,
    supports,
    with_core_sets,
)

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


def test_one_device_for_each_usable_core() -> None:
    devices = [device for device in discover() if device.kind == "cpu"]
    assert [device.cores for device in devices] == [(core,) for core in sorted(os.sched_getaffinity(0))]
    assert [device.name for device in devices] == [f"cpu:{number}" for number in range(len(devices))]
    assert {device.memory for device in devices} == {"host"} and {device.threads for device in devices} == {1}


def test_a_missing_device_is_refused() -> None:
    devices = discover()
    assert select(["cpu:0"], devices) == [devices[0]]
    with pytest.raises(ValueError, match=r"no device 'tpu:0' here; there are cpu:0"):
        select(["cpu:0", "tpu:0"], devices)
    with pytest.raises(ValueError, match="twice"):
        select(["cpu:0", "cpu:0"], devices)


def test_cores_are_numbered_in_the_order_of_the_system_and_free_devices_after_them() -> None:
    cores: list[tuple[int, ...]] = [(5,), (), (2,), (2, 5), ()]
    devices = [Device(f"cpu:{i}", "cpu", each, 1, "host", "made up") for i, each in enumerate(cores)]
    assert core_numbers(devices) == [[1], [2], [0], [0, 1], [3]]


def test_processors_of_one_name_differ_by_their_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual machine says `AMD EPYC` of several, and code that is compiled for one stops the other."""
    here = cpu_model()
    assert torch.backends.cpu.get_cpu_capability() in here
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "OTHER")
    assert cpu_model.__wrapped__() != here


@pytest.mark.parametrize(("cores", "sets"), [(1, 0), (2, 1), (8, 7), (21, 19), (64, 63), (100, 48), (1024, 63)])
def test_all_devices_are_as_many_as_the_interpreter_runs(cores: int, sets: int) -> None:
    single = [Device(f"cpu:{core}", "cpu", (core,), 1, "host", "made up") for core in range(cores)]
    together = with_core_sets(single)
    assert together[:cores] == single and len(together) == cores + sets
    assert not sets or (supports(together) and together[-1].threads == cores)


def test_beside_an_accelerator_all_cores_are_one_device() -> None:
    """One thread computes what is on the CPU while graphs run."""
    cores = [Device(f"cpu:{core}", "cpu", (core,), 1, "host", "made up") for core in range(4)]
    gpu = Device("cuda:0", "cuda", (), 1, "cuda:0", "made up")
    together = with_core_sets([*cores, gpu])
    assert [device.name for device in together] == ["cpu:0-3", "cuda:0"] and together[0].threads == 4
    assert with_core_sets([cores[0], gpu]) == [cores[0], gpu] and with_core_sets([gpu]) == [gpu]


def test_of_a_machine_of_very_many_cores_as_many_are_taken_as_are_simulated() -> None:
    single = [Device(f"cpu:{core}", "cpu", (core,), 1, "host", "made up") for core in range(1_100)]
    gpus = [Device(f"cuda:{number}", "cuda", (), 1, f"cuda:{number}", "made up") for number in range(8)]
    assert with_core_sets(single)[:1024] == single[:1024] and with_core_sets(single)[1024].threads == 32
    beside = with_core_sets([*single, *gpus])
    assert beside[1:] == gpus and beside[0].cores == tuple(range(1016))
