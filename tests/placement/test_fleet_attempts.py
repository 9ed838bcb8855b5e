"""The fleet without Ray: plans of lost and slow workers, programs as bytes, kinds of hosts, and addresses."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch

from gst.cli import main
from gst.execution.measure import Log, Measurement
from gst.lowering.calls import Costs, profiled_costs
from gst.lowering.plan import Plan
from gst.machine.devices import Device
from gst.placement.fleet.cluster import Kind, kind_of_search, select_kinds
from gst.placement.fleet.host import (
    PROGRAM_FILES,
    Host,
    RemoteWorker,
    WorkerLost,
    cache_program,
    cached_program,
    digest_of,
    pack,
)
from gst.placement.fleet.workers import FleetWorkers, NoWorker, Pool, attempt
from gst.programs import Program, Step, capture
from gst.util.cluster import joined

NAN = float("nan")
Harm = Callable[[int, Plan], None]


def plans(count: int) -> list[Plan]:
    return [Plan(("cpu:0", "cpu:1"), np.array([number % 2, number // 2])) for number in range(count)]


def seen(plan: Plan, reason: str = "") -> Measurement:
    return Measurement("", plan.key, (1.0,), 1.0, 1.0, 1.0, "failed" if reason else "ok", reason)


class Numbered:
    """Workers in this process, numbered in the order they start; `harm` is called before each plan."""

    def __init__(self, harm: Harm, most: int = 100) -> None:
        self.harm, self.most, self.num_started, self.runs = harm, most, 0, []
        self._lock = threading.Lock()

    @contextmanager
    def worker(self) -> Iterator[int]:
        with self._lock:
            if self.num_started == self.most:
                raise NoWorker("no host is left")
            self.num_started += 1
            number = self.num_started
        yield number

    def measure(self, worker: int, few: Sequence[Plan]) -> list[Measurement]:
        for plan in few:
            self.runs.append((worker, plan.key))
            self.harm(worker, plan)
        return [seen(plan) for plan in few]

    def submit(self, pool: Pool[int], few: Sequence[Plan]) -> Future[list[Measurement]]:
        return pool.submit(partial(attempt, pool, self.measure, lambda plan, lost: seen(plan, str(lost)), few))


def outcomes(numbered: Numbered, several: Sequence[Sequence[Plan]], count: int = 2) -> list[list[Measurement]]:
    with Pool(numbered.worker, count) as pool:
        return [future.result(20) for future in [numbered.submit(pool, few) for few in several]]


def test_only_the_plan_that_ends_two_workers_fails_of_all_that_were_lost_with_it() -> None:
    four = plans(4)
    bad = four[2].key

    def end_worker(worker: int, plan: Plan) -> None:
        if plan.key == bad:
            raise WorkerLost(f"worker {worker} ended")

    numbered = Numbered(end_worker)
    (measured,) = outcomes(numbered, [four])
    assert [each.plan_key for each in measured] == [plan.key for plan in four]
    assert [each.outcome for each in measured] == ["ok", "ok", "failed", "ok"] and "ended" in measured[2].reason
    assert sum(key == bad for _, key in numbered.runs) == 2, "at most once more"


def test_what_a_plan_is_not_allowed_is_no_loss() -> None:
    def refuse(worker: int, plan: Plan) -> None:
        raise ValueError("no plan for this program")

    numbered = Numbered(refuse)
    with pytest.raises(ValueError, match="no plan for this program"):
        outcomes(numbered, [plans(2)])
    assert len(numbered.runs) == 1


def test_a_loss_goes_to_the_hosts_that_are_left_and_without_any_everything_ends() -> None:
    def end_first(worker: int, plan: Plan) -> None:
        if worker == 1:
            time.sleep(0.02)
            raise WorkerLost("worker 1 ended")

    measured = outcomes(Numbered(end_first, most=2), [[plan] for plan in plans(4)])
    assert [each.outcome for (each,) in measured] == 4 * ["ok"]
    with pytest.raises(ValueError, match="no host is left"):
        outcomes(Numbered(end_first, most=1), [[plan] for plan in plans(4)], count=1)


def test_a_place_that_has_no_worker_for_now_is_asked_again(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(kind: Kind, place: str) -> RemoteWorker:
        raise WorkerLost("host 1 is gone")

    monkeypatch.setattr("gst.placement.fleet.workers.replacement_worker", gone)
    kind = of_kind(2, 1)
    fleet = FleetWorkers(kind, program, kind.devices)
    fleet._free = ["a host where one was lost"]
    for _ in range(2):
        with pytest.raises(NoWorker, match="host 1 is gone; go on with --resume"), fleet._worker():
            pass


def test_a_pool_that_is_left_by_an_error_drops_what_has_not_begun() -> None:
    begun, go_on = Event(), Event()

    def wait(worker: int, plan: Plan) -> None:
        begun.set()
        go_on.wait(20)

    numbered = Numbered(wait)
    with pytest.raises(KeyboardInterrupt), Pool(numbered.worker, 1) as pool:
        answers = [numbered.submit(pool, [plan]) for plan in plans(3)]
        begun.wait(20)
        threading.Timer(1.0, go_on.set).start()
        raise KeyboardInterrupt
    assert [answer.cancelled() for answer in answers] == [False, True, True] and len(numbered.runs) == 1


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Program:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return capture(Step("sum", lambda x: [x.tanh().sum()], (torch.ones(3),)))


def test_a_program_travels_as_bytes_and_is_kept_by_its_content(program: Program) -> None:
    files = pack(program)
    digest = digest_of(files)
    assert cached_program(digest) is None
    directory = cache_program(files, digest)
    assert cached_program(digest) == directory and Program.load(directory).key == program.key
    assert cache_program(files, digest) == directory, "a second time"
    (directory / "graph.npz").write_bytes(b"damaged")
    assert cached_program(digest) is None
    assert cached_program(digest_of(pack(Program.load(cache_program(files, digest))))) == directory
    other = capture(Step("sum", lambda x: [x.tanh().sum()], (torch.zeros(3),)))
    assert other.key == program.key and digest_of(pack(other)) != digest, "its inputs are others"


def test_files_that_are_not_a_program_of_that_content_are_not_kept(program: Program, tmp_path: Path) -> None:
    files = pack(program)
    for wrong in (
        {**files, "graph.npz": b"other"},
        {**files, "../evil": b""},
        {PROGRAM_FILES[0]: files[PROGRAM_FILES[0]]},
    ):
        with pytest.raises(ValueError, match="not the saved program"):
            cache_program(wrong, digest_of(files))
        with pytest.raises(ValueError, match="not the saved program"):
            cache_program(wrong, digest_of(wrong) if set(wrong) != set(files) else "0" * 64)
    assert not list(tmp_path.rglob("program.json")) and not list(tmp_path.rglob("evil"))


def of_kind(cores: int, num_hosts: int) -> Kind:
    devices = tuple(Device(f"cpu:{core}", "cpu", (core,), 1, "host", "test") for core in range(cores))
    hosts = [RemoteWorker(None, f"{cores}-{number}", Event()) for number in range(num_hosts)]
    return Kind({"cpu": "test", "cores": cores}, devices, Event(), set(), hosts)


def test_kinds_of_hosts_are_those_with_the_devices() -> None:
    two, four, other = of_kind(2, 3), of_kind(4, 1), of_kind(2, 1)
    assert two.key == other.key != four.key
    assert select_kinds([four, two], None) == select_kinds([four, two], ["cpu:0-1"]) == [two, four]
    assert select_kinds([four, two], ["cpu:3"]) == [four]
    assert [each.name for each in four.selected(None, with_sets=True)][4:] == ["cpu:0-1", "cpu:2-3", "cpu:0-3"]
    with pytest.raises(
        ValueError, match=r"no host has all of the devices cuda:0; there are cpu:0, cpu:1 on 3 hosts of"
    ):
        select_kinds([two, four], ["cuda:0"])


class InThisProcess(RemoteWorker):
    """Asks a `Host` in this process instead of one of Ray, in the same words."""

    def __init__(self, isolated: Any) -> None:
        super().__init__(None, "here", Event())
        self._host = Host()
        self._host._isolated = isolated

    def _ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._host.answer(json.dumps(request)))
        return answer


def test_costs_come_back_from_a_host_as_they_were_measured(program: Program) -> None:
    devices = [Device(f"cuda:0{lane}", "cuda", (), 1, "cuda:0", "test") for lane in ("", "/stream:1")]
    devices.append(Device("cpu:0", "cpu", (0,), 1, "host", "test"))
    times = np.arange(3.0 * program.num_nodes).reshape(3, -1)
    times[2, 1] = np.inf  # the CPU cannot run it
    costs = replace(profiled_costs(program, devices, times), own_bytes=np.arange(times.size).reshape(times.shape))

    class Isolated:
        def costs(self, repetitions: int) -> Costs:
            return costs

    got = InThisProcess(Isolated()).costs(program, devices, 3, 0.0)
    assert got.devices == tuple(devices)
    for name in ("times_us", "own_bytes", "latency_us", "bytes_per_us"):
        np.testing.assert_array_equal(getattr(got, name), getattr(costs, name))


def test_a_search_stays_on_the_kind_of_host_it_began_on(tmp_path: Path) -> None:
    two, four = of_kind(2, 0), of_kind(4, 0)
    log = Log(tmp_path / "log.jsonl")
    assert kind_of_search([four, two], log.path) is four
    log.append({"measurement": {"machine": {"kind": two.key}}})
    assert kind_of_search([four, two], log.path) is two
    with pytest.raises(ValueError, match=f"was measured on kind {two.key}, there are 0 hosts of kind {four.key}"):
        kind_of_search([four], log.path)
    log.append({"measurement": {"machine": {}}})
    with pytest.raises(ValueError, match="this host"):
        kind_of_search([two], log.path)


def refused(capsys: pytest.CaptureFixture[str], address: str, words: str, out: Path) -> None:
    for command in ("measure", "place"):
        assert main([command, "rnnlm", "--workers", address, "--out", str(out)]) == 2
        last = capsys.readouterr().err.strip().splitlines()[-1]
        assert last.startswith("gst: error: ") and words in last, last
        assert not out.exists()


def test_addresses_that_are_none_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refused(capsys, "4", "want 'ray' or 'ray://HOST:PORT'", tmp_path / "out")
    refused(capsys, "http://x", "want 'ray' or 'ray://HOST:PORT'", tmp_path / "out")
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    refused(capsys, "ray", 'pip install "graph-segment-training[ray]"', tmp_path / "out")


@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed (extra ray)")
def test_clusters_that_cannot_be_reached_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"ray://127.0.0.1:{free.getsockname()[1]}"
        refused(capsys, nobody, f"no cluster answers at {nobody}", tmp_path / "out")
    refused(capsys, "ray://nowhere", "want ray://HOST:PORT", tmp_path / "out")
    with pytest.raises(ValueError, match="want 'ray'"), joined("auto"):
        pass
