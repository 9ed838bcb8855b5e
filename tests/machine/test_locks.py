"""Two processes never hold one core at once; other cores are not waited for; the dead hold nothing."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gst.machine.devices import Device
from gst.machine.load import lock_devices, physical

HOLD = """
import sys, time
from gst.machine.devices import Device
from gst.machine.load import lock_devices
with lock_devices([Device("x", "cpu", tuple(map(int, sys.argv[1].split(","))), 1, "host", "")]):
    print("held", flush=True)
    time.sleep(100)
"""


def core(*numbers: int) -> Device:
    return Device(f"cpu:{numbers}", "cpu", numbers, len(numbers), "host", "made")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_sets_are_their_cores_and_streams_their_gpu() -> None:
    stream = Device("cuda:1/stream:2", "cuda", (), 1, "cuda:1", "made")
    assert physical([core(3), core(0, 3), stream]) == ["core-0", "core-3", "cuda-1"]


@pytest.mark.slow
def test_a_core_is_waited_for_until_its_holder_dies() -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, "1,2"], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with lock_devices([core(0), core(3)]):
            pass  # nobody's
        got = threading.Event()

        def take() -> None:
            with lock_devices([core(0, 2)]):
                got.set()

        waiting = threading.Thread(target=take)
        waiting.start()
        time.sleep(0.3)
        assert not got.is_set()
        other.kill()
        waiting.join(timeout=30)
        assert got.is_set()


def test_threads_that_name_the_same_cores_in_another_order_do_not_wait_in_a_circle() -> None:
    inside: list[int] = []
    most = []

    def work(devices: list[Device]) -> None:
        for _ in range(30):
            with lock_devices(devices):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work, args=(each,)) for each in ([core(0), core(1)], [core(1), core(0)])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads) and max(most) == 1
