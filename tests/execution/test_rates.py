"""What `gst devices` measures, remembers and prints; names of core sets and streams; sizes of memory."""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from gst.cli import main
from gst.execution.probes import PROBES, Probe, _classes, _inputs, measure_rates
from gst.machine.devices import Device, core_sets, discover, parse_bytes, select
from gst.machine.load import LoadGate
from gst.machine.rates import Rates, rates_path, save_rates, saved_rates

SMALL = {"cpu": Probe(96, 1, 16, 8, 1 << 14, 1 << 16)}
CPU = [Device(f"cpu:{number}", "cpu", (number,), 1, "host", "test") for number in range(5)]


@pytest.fixture(scope="module")
def rates() -> Rates:
    devices = discover()[:2]
    return measure_rates([*devices, *core_sets(devices)], devices, 2, SMALL)


@pytest.mark.parametrize("probe", [SMALL["cpu"], PROBES["cpu"]], ids=["small", "cpu"])
def test_counted_operations_are_those_that_pytorch_counts(probe: Probe) -> None:
    with FlopCounterMode(display=False) as counter, torch.device("meta"):
        _classes(*(value.to("meta") for value in _inputs(probe)))
    by_operation = {str(key): count for key, count in counter.get_flop_counts()["Global"].items()}
    assert by_operation == {"aten.mm": probe.matrix_flops, "aten.convolution": probe.convolution_flops}


def test_each_number_of_threads_and_each_pair_is_measured_once(rates: Rates) -> None:
    devices = discover()[:2]
    threads = [1, 2][: len(devices)]
    assert [each.threads for each in rates.operations] == threads
    for each in rates.operations:
        measured = {key: value for key, value in vars(each).items() if key not in ("device", "kind")}
        assert all(0 < value < np.inf for value in measured.values())
    names = [device.name for device in devices]
    pairs = {(link.source, link.destination) for link in rates.links}
    assert pairs == {(a, b) for a in names for b in names if a <= b} and len(pairs) == len(rates.links)
    assert all(link.copies is not None and link.copies.latency_us > 0 for link in rates.links)


def test_rates_are_those_of_devices_with_as_many_threads(rates: Rates) -> None:
    first = rates.operations[0]
    assert rates.of(dataclasses.replace(CPU[4], threads=1)) == first
    assert rates.of(dataclasses.replace(CPU[4], threads=7)) is None
    assert rates.of(Device("cuda:0", "cuda", (), 1, "cuda:0", "test")) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_a_gpu_is_measured() -> None:
    gpu = next(device for device in discover() if device.is_accelerator)
    seen = measure_rates([gpu], [discover()[0], gpu], 2, {**SMALL, "accelerator": SMALL["cpu"]})
    assert seen.of(gpu) is not None
    cpu, there, within, back = (link.copies for link in seen.links)
    assert cpu is not None and cpu.pinned_gb_per_s is None and within is None
    for link in (there, back):  # one direction and the other
        assert link is not None and link.pinned_gb_per_s is not None and link.pinned_gb_per_s > 0


def test_rates_are_remembered_for_this_machine_and_this_torch_alone(
    rates: Rates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert saved_rates(tmp_path) is None
    path = save_rates(rates, tmp_path)
    assert saved_rates(tmp_path) == rates and [each.name for each in tmp_path.iterdir()] == [path.name]
    written = path.read_text()
    path.write_text(json.dumps(json.loads(written) | {"schema": 3}))
    assert saved_rates(tmp_path) is None, "an earlier release measured links otherwise"
    path.write_text(written)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "9.9.9")
        assert rates_path(tmp_path) != path and saved_rates(tmp_path) is None
        path.rename(rates_path(tmp_path))  # even under the name that it would have
        assert saved_rates(tmp_path) is None
        rates_path(tmp_path).rename(path)
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["gst.machine.devices"], "cpu_model", lambda: "another processor")
        assert saved_rates(tmp_path) is None
    assert saved_rates(tmp_path) == rates
    for damage in ("", "[]", "{}", path.read_text()[:-30], path.read_text().replace("small_us", "tiny_us")):
        path.write_text(damage)
        with pytest.raises(ValueError, match=r"damaged rates .* run gst devices --measure"):
            saved_rates(tmp_path)


def test_the_command_prints_what_is_known(
    rates: Rates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["devices", "--json", str(tmp_path / "out.json")]) == 0
    printed = capsys.readouterr().out
    assert "cpu:0" in printed and "gst devices --measure" in printed
    assert json.loads((tmp_path / "out.json").read_text())["rates"] is None
    save_rates(dataclasses.replace(rates, load=0.5))
    assert main(["devices", "--sets", "--json", str(tmp_path / "out.json")]) == 0
    printed, found = capsys.readouterr().out, json.loads((tmp_path / "out.json").read_text())
    assert f"{rates.operations[0].matrix_gflops:.3g}" in printed and "50% of the cores" in printed
    assert found["rates"]["operations"][0]["small_us"] == rates.operations[0].small_us
    assert all(each["name"] in printed for each in [*found["devices"], *found["sets"]])


def test_the_command_measures(
    rates: Rates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # the interpreter is loaded already, for `rates`
    monkeypatch.setattr(LoadGate, "wait", lambda self, patience_s=None: (0.0, True))
    assert main(["devices", "--measure"]) == 0
    assert "copied" in capsys.readouterr().out and saved_rates() is not None


@pytest.mark.parametrize(("loads", "want"), [((0.5, 0.0), 0.0), ((0.5, 0.3, 0.4, 0.0), 0.3), ((0.1, 0.0), 0.1)])
def test_the_command_measures_again_while_others_are_busy_and_keeps_the_quietest(
    loads: tuple[float, ...], want: float, rates: Rates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(LoadGate, "wait", lambda self, patience_s=None: (0.0, True))
    attempts = iter(loads)
    monkeypatch.setattr(
        "gst.execution.probes.measure_rates", lambda *_, **__: dataclasses.replace(rates, load=next(attempts))
    )
    assert main(["devices", "--measure"]) == 0
    saved = saved_rates()
    assert saved is not None and saved.load == want
    assert ("Others took 30% of the cores while this was measured" in capsys.readouterr().out) == (want == 0.3)


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
