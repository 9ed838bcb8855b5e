"""A recording that fails gives its memory back, in releases of PyTorch with and without a graph of any accelerator."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gst.devices.execute.recording import OTHER_THREADS, new_graph, recorded

POOL = (0, 7)


class Failing:
    """A graph whose recording is invalid at the end."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        if pool is not None:
            self.settings = {"pool": pool, "capture_error_mode": capture_error_mode}

    def capture_end(self) -> None:
        raise RuntimeError("operation failed due to a previous error during capture")


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
    monkeypatch.setattr(
        torch, "get_device_module", lambda device: SimpleNamespace(graph_pool_handle=lambda: POOL, CUDAGraph=Failing)
    )
    monkeypatch.setattr(torch.accelerator, "Graph", Failing if is_neutral else None, raising=False)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 1)
    graph: Any = new_graph(torch.device("cuda"))
    reason = ZeroDivisionError if raises else RuntimeError
    with pytest.raises(reason), recorded(graph):
        if raises:
            raise ZeroDivisionError
    assert graph.settings == {"pool": POOL, "capture_error_mode": OTHER_THREADS}
    assert calls == ([] if is_ended else [("end", 1, POOL), ("release", 1, POOL)])
