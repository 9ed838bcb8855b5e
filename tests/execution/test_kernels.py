"""Threads that kernels want: a driver is made up, and graphs are those of a CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gst.execution import pairs as pairs_module
from gst.execution.event_times import Graphs, can_be_recorded
from gst.execution.pairs import Kernels, kernels_of, measured_pairs, part_of_threads
from gst.programs import Program
from tests.execution.recorded import RecordedGraph, Recorder

CPU = torch.device("cpu")


class Result(Enum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1


class Type(Enum):
    CU_GRAPH_NODE_TYPE_KERNEL = 0
    CU_GRAPH_NODE_TYPE_MEMCPY = 1


@dataclass
class Driver:
    """Says of a graph the kernels that it is given, grids and blocks, behind a copy; 4 blocks run at once on each of
    its multiprocessors. It answers in the form of `cuda.bindings.driver`."""

    kernels: list[tuple[tuple[int, int, int], tuple[int, int, int]]]
    result: Result = Result.CUDA_SUCCESS
    asked: list[tuple[int, int, int]] = field(default_factory=list)
    CUresult: type = Result
    CUgraphNodeType: type = Type
    CUgraph: type = int
    CUfunction: type = int

    def cuGraphGetNodes(self, graph: int, count: int = 0) -> tuple[Result, list[int], int]:
        return self.result, list(range(count)), 1 + len(self.kernels)

    def cuGraphNodeGetType(self, node: int) -> tuple[Result, Type]:
        return self.result, Type(int(node == 0))

    def cuGraphKernelNodeGetParams(self, node: int) -> tuple[Result, Any]:
        grid, block = self.kernels[node - 1]
        sizes = {f"{name}Dim{axis}": each for name, three in (("grid", grid), ("block", block))
                 for axis, each in zip("XYZ", three, strict=True)}  # fmt: skip
        return self.result, SimpleNamespace(func=0, kern=9, sharedMemBytes=512, **sizes)

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(
        self, function: int, threads: int, shared: int
    ) -> tuple[Result, int]:
        self.asked.append((function, threads, shared))
        return self.result, 4


def test_the_largest_kernel_of_a_graph_counts_and_wants_no_more_than_all() -> None:
    driver = Driver([((2, 3, 1), (32, 4, 1)), ((5, 1, 1), (64, 1, 1))])
    assert part_of_threads(7, driver, num_multiprocessors=3) == 6 / 12
    assert driver.asked == [(9, 128, 512), (9, 64, 512)]
    assert part_of_threads(7, Driver([((1000, 1, 1), (32, 1, 1))]), 3) == 1
    assert part_of_threads(7, Driver([]), 3) == 0, "a copy is no kernel"


class Raw(RecordedGraph):
    def raw_cuda_graph(self) -> int:
        return 7


def kernels(driver: Driver) -> Kernels:
    return Kernels(Graphs(CPU, lambda *_: Raw()), driver, 3)


def test_a_driver_that_refuses_is_asked_once(caplog: pytest.LogCaptureFixture) -> None:
    driver = Driver([((6, 1, 1), (128, 1, 1))], Result.CUDA_ERROR_INVALID_VALUE)
    asking, call = kernels(driver), torch.ones(3).neg
    assert asking.part_of_threads(call) is None
    driver.result = Result.CUDA_SUCCESS
    assert asking.part_of_threads(call) is None and kernels(driver).part_of_threads(call) == 0.5
    assert caplog.text.count("threads of kernels are estimated from sizes of results") == 1


def test_what_the_driver_tells_of_kernels_stands_for_estimates(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = 10.0 * np.array([each.kind == "operation" for each in program.operations])
    estimated = measured_pairs(program, CPU, times, 1, 3, Recorder())
    asking: Callable[[torch.device], Kernels] = lambda device: kernels(Driver([((6, 1, 1), (128, 1, 1))]))  # noqa: E731
    monkeypatch.setattr(pairs_module, "kernels_of", asking)
    told = measured_pairs(program, CPU, times, 1, 3, Recorder())
    for node, each in enumerate(program.operations):
        is_told = each.kind == "operation" and can_be_recorded(program, node)
        assert told.threads[node] == (0.5 if is_told else estimated.threads[node])
    assert all(part[0] == 0.5 for each in told.pairs for part in each.parts)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_a_large_sum_fills_a_gpu_and_a_small_one_does_not() -> None:
    pytest.importorskip("cuda.bindings")
    device = torch.device("cuda", 0)
    with torch.cuda.stream(torch.cuda.Stream(device)):
        asking, parts = kernels_of(device), []
        for size in (8, 1 << 24):
            value = torch.zeros(size, device=device)
            value.add(1)
            torch.cuda.synchronize()
            parts.append(asking.part_of_threads(lambda value=value: value.add(1)))  # type: ignore[union-attr, misc]
    assert 0 < parts[0] < 0.05 and parts[1] == 1
