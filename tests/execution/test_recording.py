"""A recording that fails gives its memory back, by the graph of a kind of accelerator and by that of any."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gst.execution.costs import Graphs, graph_maker, one_graph
from gst.util.recording import OTHER_THREADS, Graph, new_graph, recorded

POOL = (0, 7)


class Failing:
    """A graph whose recording is invalid at the end, if anything was launched."""

    failures = 1  # of the next recordings
    is_recording = False
    ends = 0

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        Failing.is_recording = True
        if pool is not None:
            self.settings = {"pool": pool, "capture_error_mode": capture_error_mode}

    def capture_end(self) -> None:
        Failing.ends += 1
        if Failing.failures:
            Failing.failures -= 1
            raise RuntimeError("operation failed due to a previous error during capture")
        Failing.is_recording = False  # as the generator of random numbers believes


def _no_graph(**settings: Any) -> None:
    raise RuntimeError("no implementation of a graph is registered for cuda")


@pytest.mark.parametrize("is_neutral", [True, False])
@pytest.mark.parametrize("is_ended", [True, False])
@pytest.mark.parametrize("raises", [True, False])
def test_memory_of_a_recording_that_fails_is_given_back_once(
    is_neutral: bool, is_ended: bool, raises: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, int, Any]] = []

    def end(index: int, memory: Any) -> None:
        if is_ended:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        calls.append(("end", index, memory))

    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end, raising=False)
    monkeypatch.setattr(
        torch._C, "_cuda_releasePool", lambda index, memory: calls.append(("release", index, memory)), raising=False
    )
    own = {} if is_neutral else {"CUDAGraph": Failing}
    monkeypatch.setattr(
        torch, "get_device_module", lambda device: SimpleNamespace(graph_pool_handle=lambda: POOL, **own)
    )
    monkeypatch.setattr(torch.accelerator, "Graph", Failing if is_neutral else _no_graph, raising=False)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 1)
    monkeypatch.setattr(Failing, "failures", 1)
    monkeypatch.setattr(Failing, "ends", 0)
    cleared: list[bool] = []
    clear = "_cuda_clearCublasWorkspaces"
    monkeypatch.setattr(torch._C, clear, lambda: cleared.append(Failing.is_recording), raising=False)
    graph: Any = new_graph(torch.device("cuda"))
    reason = ZeroDivisionError if raises else RuntimeError
    with pytest.raises(reason), recorded(graph):
        if raises:
            raise ZeroDivisionError
    assert graph.settings == {"pool": POOL, "capture_error_mode": OTHER_THREADS}
    assert cleared == [False, False] and Failing.ends == 2  # the second of an empty graph, for random numbers
    assert calls == ([] if is_ended else [("end", 1, POOL), ("release", 1, POOL)])


class Memory:
    """What PyTorch 2.11 keeps to: memory whose recording ended badly takes part in no other."""

    def __init__(self) -> None:
        self.in_use: set[Any] = set()
        self.is_bad = False

    def graph(self, device: torch.device, pool: Any = None) -> Graph:
        mine = pool or object()

        def begin() -> None:
            if mine in self.in_use:
                raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
            self.in_use.add(mine)

        def end() -> None:
            if self.is_bad:
                self.is_bad = False
                raise RuntimeError("operation failed due to a previous error during capture")
            self.in_use.discard(mine)

        graph: Any = SimpleNamespace(capture_begin=begin, capture_end=end, replay=lambda: None, pool=lambda: mine)
        return graph


def test_operations_behind_one_that_cannot_be_recorded_are_recorded() -> None:
    memory = Memory()
    graphs = Graphs(torch.device("cpu"), memory.graph)
    first = graphs.record(lambda: None)
    again = graphs.record(lambda: None)
    assert first is not None and again is not None and first.pool() is again.pool()
    memory.is_bad = True
    assert graphs.record(lambda: None) is None
    behind = [graphs.record(lambda: None) for _ in range(3)]
    assert all(each is not None and each.pool() is not first.pool() for each in behind)


def test_a_recording_that_cannot_begin_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[Any] = []
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", lambda *where: ends.append(where), raising=False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)

    def begin() -> None:
        raise RuntimeError("beginAllocateToPool: already recording to mempool_id")

    graph: Any = SimpleNamespace(capture_begin=begin, memory=POOL)
    with pytest.raises(RuntimeError, match="already recording"), recorded(graph):
        raise AssertionError("nothing runs")
    assert ends == [(0, POOL)]


def test_an_accelerator_without_graphs_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gst.execution.costs.is_here", lambda device: True)
    monkeypatch.setattr(torch, "get_device_module", lambda device: SimpleNamespace(graph_pool_handle=lambda: POOL))
    monkeypatch.setattr(torch.accelerator, "Graph", _no_graph, raising=False)
    with pytest.warns(UserWarning, match=r"^times on xpu:0 hold the launch of each operation: RuntimeError: no impl"):
        assert graph_maker(torch.device("xpu", 0)) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU of CUDA here")
def test_a_recording_that_fails_leaves_a_gpu_as_it_was() -> None:
    """Whether `releasePool` is to be called where `endAllocateToPool` raises is not known without a GPU: then this
    fails by memory that stays reserved, or by an error of a pool that was released twice."""
    device, x = torch.device("cuda"), torch.ones(2**20, device="cuda")
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    for _ in range(3):
        with torch.Stream(device):
            with pytest.raises(RuntimeError), recorded(new_graph(device)):
                float((torch.cat([x] * 64) * 2).sum())  # waits, which no recording can
            torch.nn.functional.dropout(x).sum()  # draws random numbers
            with recorded(new_graph(device)):  # memory of its own
                torch.nn.functional.dropout(x).sum()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before + 2**25


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU of CUDA here")
def test_the_workspace_of_a_graph_stays_its_own_on_a_gpu() -> None:
    device = torch.device("cuda")
    x = torch.randn(512, 512, device=device)
    replay = one_graph(lambda: x @ x, device)
    torch._C._cuda_clearCublasWorkspaces()
    others = [torch.zeros(2**20, device=device) for _ in range(64)]  # where a workspace may have been
    torch.testing.assert_close(replay(), x @ x)
    torch.cuda.synchronize()
    assert not any(each.any() for each in others)
