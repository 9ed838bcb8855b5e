"""A real fleet of two hosts of different kinds on this machine; workers and the controller end in the midst of it."""

from __future__ import annotations

import json
import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from gst.cli import main
from gst.execution.measure import Log
from gst.machine.devices import this_machine, usable_cores
from gst.placement.api.measuring import MeasuringSettings, measure_on_fleet
from gst.placement.measured_plans import LOG, read_measured
from gst.util.cluster import joined
from gst.util.progress import Progress
from tests.clusters import ROOT, begun

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed (extra ray)"),
    pytest.mark.skipif(len(usable_cores()) < 2, reason="two kinds of hosts need two cores, this machine has one"),
]
PROGRAM = "rnnlm:layers=1,hidden=8,steps=2,batch=2,vocabulary=10"
MARK = "GST_TEST_FLEET"  # a variable that the processes of this fleet have
NUMBER = 16
LISTENING = "0A"  # Documentation/networking/proc_net_tcp.rst
LOOPBACK = ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")


@pytest.fixture(scope="module")
def mark() -> Iterator[str]:
    """A fleet of two hosts, of which the second sees one core; the value of `MARK` in its processes."""
    from ray._private.authentication_test_utils import reset_auth_token_state

    with pytest.MonkeyPatch.context() as patch:
        mark = uuid4().hex
        for name, value in {
            MARK: mark, "PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
        }.items():  # fmt: skip
            patch.setenv(name, value)
        from ray._private import ray_constants
        from ray.cluster_utils import Cluster

        reset_auth_token_state()  # whoever imported Ray before us made it read the variables
        patch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", False)  # listen on the loopback address
        light = {"object_store_memory": 80 * 2**20, "resources": {"gst": 1.0}, "include_log_monitor": False}
        cluster = Cluster()
        begun(partial(cluster.add_node, **light, no_monitor=True, include_dashboard=False))
        patch.setenv("RAY_ADDRESS", cluster.address)
        cores = usable_cores()
        try:
            os.sched_setaffinity(0, cores[:1])
            begun(partial(cluster.add_node, **light))
        finally:
            os.sched_setaffinity(0, cores)
        with joined("ray"):
            yield mark
        cluster.shutdown()
    reset_auth_token_state()  # the next cluster of this process has another token


def processes(mark: str, title: str = "") -> list[int]:
    """Those of the fleet whose command begins with `title`."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = f"{MARK}={mark}".encode() in (path / "environ").read_bytes().split(b"\0")
            if is_ours and (path / "cmdline").read_bytes().startswith(title.encode()):
                found.append(int(path.name))
        except OSError:
            continue
    return found


class Interrupted(Exception):
    """Ends the controller."""


def rows(out: Path) -> dict[int, list[dict[str, Any]]]:
    """Return the log of each kind of host without the header, by number of cores."""
    logs = [Log(path).read() for path in sorted(out.glob(f"*/{LOG}"))]
    return {header["machine"]["cores"]: rest for header, *rest in logs}


def measure(out: Path, progress: Progress, resume: bool = False) -> dict[str, Any]:
    settings = MeasuringSettings(
        PROGRAM, out, ["cpu:0"], num_random=NUMBER, repetitions=60, patience_s=0.0, resume=resume
    )  # fmt: skip
    return measure_on_fleet(settings, "ray", progress)


def test_nothing_listens_but_on_the_loopback_address(mark: str) -> None:
    numbers = set()
    for pid in processes(mark):
        with suppress(OSError):  # it ends, or closes a file, meanwhile
            numbers |= {file.stat().st_ino for file in Path(f"/proc/{pid}/fd").iterdir() if file.exists()}
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    listening = [line[1] for line in lines if line[3] == LISTENING and int(line[9]) in numbers]
    assert len(listening) > 4 and all(each.partition(":")[0] in LOOPBACK for each in listening), listening


@pytest.mark.slow
def test_hosts_are_kept_apart_and_nothing_is_lost_with_a_worker_or_the_controller(mark: str, tmp_path: Path) -> None:
    def stop(what: str, done: int, total: int) -> None:
        if what == "measuring" and done:
            raise Interrupted

    with pytest.raises(Interrupted):
        measure(tmp_path, stop)
    before = {path: path.read_text() for path in tmp_path.glob(f"*/{LOG}")}
    assert len(before) == 2 and 0 < sum(map(len, rows(tmp_path).values())) < 2 * NUMBER
    with pytest.raises(ValueError, match=r"is there already; add --resume"):
        measure(tmp_path, stop)

    killed = []

    def kill(what: str, done: int, total: int) -> None:
        if what != "measuring" or not done or killed:
            return
        left = {cores: NUMBER - len(known) for cores, known in rows(tmp_path).items()}
        for pid in processes(mark, "ray::Host"):
            with suppress(ProcessLookupError):  # one of before
                if left[len(os.sched_getaffinity(pid))] > 4:
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
                    return

    result = measure(tmp_path, kill, resume=True)
    assert killed and all(path.read_text().startswith(text) for path, text in before.items())
    found = rows(tmp_path)
    assert set(found) == {1, len(usable_cores())}
    for path in before:
        measured = read_measured(path.parent)
        assert len({plan.key for plan in measured.plans}) == len(measured.plans) == NUMBER
        assert {each.outcome for each in measured.measurements} == {"ok"}
        assert {each.machine["kind"] for each in measured.measurements} == {path.parent.name}
        assert {each.machine["cores"] for each in measured.measurements} == {measured.header["machine"]["cores"]}
        assert len({each.machine["host"] for each in measured.measurements}) == 1, "its worker is replaced there"
        settings = {"name", "program", "seed", "memory_limit", "time_limit_s", "machine"}
        assert measured.header.keys() == settings | {"profile_load", "devices", "times_us"}
        kind = result["kinds"][path.parent.name]
        assert kind["hosts"] == 1 and kind["plans"] == {"measured": NUMBER, "ran": NUMBER, "failed": {}}
    assert {row["machine"]["cores"] for row in result["kinds"].values()} == set(found)
    assert this_machine() in [kind["machine"] for kind in result["kinds"].values()]


@pytest.mark.slow
def test_gst_place_searches_on_hosts_of_one_kind(mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["place", PROGRAM, "--workers", "ray", "--devices", "cpu:0,cpu:1", "--budget", "5", "--patience", "0"]
    arguments += ["--no-compile"]
    arguments += ["--evaluations", "30", "--methods", "annealing", "--out", "out", "--json", "result.json"]
    assert main(arguments) == 0
    result = json.loads(Path("result.json").read_text())
    here = {name: result["machine"][name] for name in this_machine()}
    assert here == this_machine() and result["hosts"] == 1 and result["plans"]["loop"]["measurements"] == 5
    seen = [row["measurement"] for row in Log(Path("out/measurements.jsonl")).read()]
    assert len(seen) == 5 and {each["machine"]["kind"] for each in seen} == {result["machine"]["kind"]}
    assert {each["outcome"] for each in seen} == {"ok"} and result["pytorch_ms"] > 0
    assert main([*arguments[:2], "--workers", "ray", "--machine", "gpus:2", "--out", "other"]) == 2
    assert main([*arguments, "--resume", "--budget", "6"]) == 0
    assert len(Log(Path("out/measurements.jsonl")).read()) == 6
