"""Clocks of accelerators, as NVML tells them: by recorded text of nvidia-smi, by a program of that name on the PATH,
and by a made-up package. Without both nothing is told."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gst.devices import Device, measure
from gst.devices.describe import clocks as module
from gst.devices.describe.clocks import Clocks, clocks_of, read_clocks
from gst.devices.describe.load import accelerators_of, clocks_now, own_processes
from gst.devices.describe.nvml import FIELDS, Reading, parsed, readings

from .test_load import Clock

ONE, TWO = "GPU-0d7a3c7e-6f1f-5f0a-9c38-1b2c3d4e5f60", "GPU-8d3c1a52-0001-0002-0003-4b5c6d7e8f90"
# A data-centre card at its power limit; one that idles; a card of a laptop, and one split by MIG, which tell little.
STATES = f"""\
{ONE}, 1410, 1980, 61, 97, 0x0000000000000004
{TWO}, 345, 1980, 34, 0, 0x0000000000000001
GPU-laptop, 300, [N/A], 45, [Not Supported], [N/A]
GPU-split, 1095, 1980, 39, [N/A], 0x0000000000000000
GPU-lost, [Unknown Error], [Unknown Error], [GPU requires reset], [GPU is lost], [Unknown Error]
"""
PROCESSES = f"{ONE}, 4711\n{ONE}, 4712\n{TWO}, [N/A]\n"


def test_what_nvidia_smi_says_is_read_and_what_is_not_told_is_none() -> None:
    found = parsed(STATES, PROCESSES)
    assert found[ONE] == Reading(1410.0, 1980.0, 61.0, 97.0, 4, frozenset({4711, 4712}))
    assert found[TWO] == Reading(345.0, 1980.0, 34.0, 0.0, 1, frozenset())
    assert found["GPU-laptop"] == Reading(300.0, None, 45.0, None, 0, frozenset())
    assert found["GPU-split"] == Reading(1095.0, 1980.0, 39.0, None, 0, frozenset())
    assert found["GPU-lost"] == Reading(None, None, None, None, 0, frozenset())
    assert list(found) == [ONE, TWO, "GPU-laptop", "GPU-split", "GPU-lost"]


@pytest.mark.parametrize(
    "text",
    ["", "No devices were found\n", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
     "uuid, 1, 2, 3, 4, 0x0\n", f"{ONE}, 1, 2\n", "\x1b[31m, , ,\x00\n"],
)  # fmt: skip
def test_what_is_no_state_says_nothing(text: str) -> None:
    assert parsed(text, text) == {}


def test_clocks_say_what_slows_them_and_how_much_others_use() -> None:
    busy = Reading(1200.0, 1980.0, 88.0, 60.0, 0x68, frozenset({1, 2}))
    assert clocks_of(busy, {1}) == Clocks(1200.0, 1980.0, 88.0, 0.6, ("hardware slowdown", "heat", "heat, by hardware"))
    assert clocks_of(busy, {1, 2, 3}).others == 0.0, "nobody else is there"
    idle = Reading(345.0, 1980.0, 34.0, None, 0x1, frozenset({9}))
    assert clocks_of(idle, {1}) == Clocks(345.0, 1980.0, 34.0, None, ()), "it idles, and tells no utilisation"


def nvidia_smi(folder: Path, script: str) -> None:
    """A program of this name."""
    path = folder / "nvidia-smi"
    path.write_text(f"#!{sys.executable}\nimport sys, time\nquery, form = sys.argv[1:]\n{script}")
    path.chmod(0o755)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the PATH, on a machine without the package."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pynvml", None)  # importing it fails
    return tmp_path


ANSWERS = f"""
assert form == "--format=csv,noheader,nounits", form
if query == "--query-compute-apps=gpu_uuid,pid":
    sys.exit(sys.stdout.write({PROCESSES!r}) * 0)
assert query.startswith("--query-gpu={",".join(FIELDS)},"), query
if not query.endswith(",NAME.active"):
    sys.exit("Field is not a valid field to query.")
sys.stdout.write({STATES!r})
"""


@pytest.mark.parametrize("name", ["clocks_event_reasons", "clocks_throttle_reasons"])
def test_the_program_is_asked_by_the_names_of_new_and_old_drivers(folder: Path, name: str) -> None:
    nvidia_smi(folder, ANSWERS.replace("NAME", name))
    assert readings([ONE, "GPU-none"]) == {ONE: parsed(STATES, PROCESSES)[ONE]}


def test_without_package_and_program_nothing_is_told(folder: Path) -> None:
    assert readings([ONE]) == {} == read_clocks(["cuda:0"], [])
    nvidia_smi(folder, "sys.exit('no driver')")
    assert readings([ONE]) == {}


def test_a_program_that_hangs_is_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gst.devices.describe.nvml.LIMIT_S", 0.2)
    nvidia_smi(folder, "time.sleep(60)")
    assert readings([ONE]) == {}


class Package(SimpleNamespace):
    """As much of `pynvml` as is used; the temperature fails."""

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0

    def nvmlInit(self) -> None:
        pass

    nvmlShutdown = nvmlInit

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != ONE:
            raise LookupError("Not Found")
        return uuid

    def nvmlDeviceGetClockInfo(self, handle: str, clock: int) -> int:
        return 1410

    def nvmlDeviceGetMaxClockInfo(self, handle: str, clock: int) -> int:
        return 1980

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        raise RuntimeError("Not Supported")

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(gpu=50, memory=3)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return 0x24

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=4711, usedGpuMemory=None)]


def test_the_package_is_asked_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(folder, "raise AssertionError")
    monkeypatch.setitem(sys.modules, "pynvml", Package())
    assert readings([ONE, TWO]) == {ONE: Reading(1410.0, 1980.0, None, 50.0, 0x24, frozenset({4711}))}


def test_accelerators_are_found_by_their_uuid(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(folder, ANSWERS.replace("NAME", "clocks_event_reasons"))
    monkeypatch.setattr(module, "_uuid", {"cuda:0": TWO, "cuda:1": ONE, "xpu:0": ""}.get)
    found = read_clocks(["cuda:1", "xpu:0"], [4711, 4712])
    assert found == {"cuda:1": Clocks(1410.0, 1980.0, 61.0, 0.0, ("power limit",))}
    assert read_clocks(["cuda:1"], [4711])["cuda:1"].others == 0.97


def told(others: list[float | None], asked: list[tuple[Sequence[str], Collection[int]]]) -> module.ReadClocks:
    """Clocks of xpu:0, which others use so much at each reading."""

    def read(names: Sequence[str], own: Collection[int]) -> dict[str, Clocks]:
        asked.append((names, own))
        return {"xpu:0": Clocks(1000.0, 2000.0, 50.0 + len(asked), others.pop(0), ("heat",) * (len(asked) == 2))}

    return read


LANES = [Device(f"xpu:0/stream:{lane}", "xpu", (), 1, "xpu:0", "test") for lane in range(2)]
CORE = Device("cpu:0", "cpu", (0,), 1, "host", "test")


def test_the_gate_waits_for_an_accelerator_that_others_use() -> None:
    words: list[str] = []
    asked: list[tuple[Sequence[str], Collection[int]]] = []
    gate = Clock([0.0] * 3).gate(10, lambda what, *_: words.append(what)).beside([CORE, *LANES])
    spent, quiet = replace(gate, clocks=told([0.8, 0.3, 0.1], asked)).wait()
    assert quiet and abs(spent - 0.3) < 1e-9
    assert words == [
        "waiting for xpu:0, 80% busy with other work, at most 10 s more",
        "waiting for xpu:0, 30% busy with other work, at most 10 s more",
    ]
    assert asked == [(("xpu:0",), own_processes())] * 3


def test_the_gate_waits_for_cores_and_nobody_is_asked_of_them() -> None:
    asked: list[tuple[Sequence[str], Collection[int]]] = []
    gate = Clock([0.9, 0.0]).gate(10).beside([CORE])
    assert replace(gate, clocks=told([], asked)).wait()[1] and not asked
    assert accelerators_of([CORE]) == () and clocks_now([]) == {}


def test_an_accelerator_that_does_not_tell_who_uses_it_is_not_waited_for() -> None:
    gate = Clock([0.0]).gate(10).beside(LANES)
    assert replace(gate, clocks=told([None], [])).wait()[1]


def test_a_measurement_says_the_worst_of_its_beginning_and_its_end() -> None:
    asked: list[tuple[Sequence[str], Collection[int]]] = []
    found = measure({"a": lambda: None}, 2, accelerators=["xpu:0"], clocks=told([0.1, None], asked))["a"]
    assert found.clocks == {
        "xpu:0": {"sm_mhz": 1000.0, "most_sm_mhz": 2000.0, "celsius": 52.0, "others": 0.1, "slowed_by": ["heat"]}
    }
    assert len(asked) == 2 and type(found).from_dict(found.to_dict()) == found
    without = measure({"a": lambda: None}, 2)["a"]
    assert "clocks" not in without.to_dict() and type(without).from_dict(without.to_dict()) == without
