"""A training step never makes the host wait for an accelerator: shown on a described one, where there is no value that
the host could read, and on a real one where there is one."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from embedding_cache import EmbeddingTable
from gst.method.estimator import GraphSegmentTraining
from tests.method.host_waits import CASES, ROOT, Messages, graphs

BAD = ("rows found on the device", "waiting for a number", "waiting for a copy")
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: nothing warns of a wait for it")


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """Of all cases, from a process that has no threads for gradients yet."""
    command = [sys.executable, "-m", "tests.method.host_waits"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.e2e
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device: the test marked gpu says more")
@pytest.mark.parametrize("name", [name for name in CASES if name not in BAD])
def test_no_host_waits_in_a_step_on_a_described_device(found: dict[str, Any], name: str) -> None:
    assert found[name]["failure"] is None and found[name]["waits"] == []
    if name not in ("fresh segments alone", "all segments", "SAGE, maxima") and not name.startswith("padded"):
        assert found[name]["known"] > 5  # rows of the table


@pytest.mark.e2e
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device: the test marked gpu says more")
def test_an_encoder_that_waits_is_found(found: dict[str, Any]) -> None:
    """Rows that are found on the device are counted there, unless a step is padded: the host asks how many."""
    for name in ("rows found on the device", "waiting for a number"):
        assert found[name]["failure"].startswith("DataDependentOutputException: aten._local_scalar_dense")
    (wait,) = found["waiting for a copy"]["waits"]
    assert wait.startswith("aten._to_copy.default at ")


@contextmanager
def waits_are_errors() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@NO_GPU
@pytest.mark.parametrize("estimate", [None, "dropout", "difference", "composite"])
def test_no_host_waits_in_a_step_on_a_gpu(estimate: str | None) -> None:
    options: dict[str, Any] = {"estimate": "fresh"}
    if estimate is not None:
        options = {"table": EmbeddingTable(1, 16, device="cuda"), "estimate": estimate}
    model = GraphSegmentTraining(Messages(), nn.Linear(16, 1), "mean", **options).to("cuda")
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)
    data, configs = graphs(), torch.tensor([[0, 1, 2], [1, 2, 3]])
    for number in range(6):
        draw = model.draw(data, configs)
        assert draw is not None
        prefetched = model.load(draw)
        assert prefetched.arrived is not None
        torch.cuda.synchronize()
        with waits_are_errors() if number > 2 else torch.enable_grad():
            model(prefetched=prefetched).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert model.step == 6
