"""Parts of an accelerator's threads that operations want: the blocks of their kernels over the blocks that it holds at
once, as the driver of CUDA tells them of recorded graphs.

A call goes in, a part from 0 to 1 comes out, or None where nobody tells: the size of a result is then all there is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch

from gst.execution.lanes import is_here
from gst.execution.recording import new_graph
from gst.execution.spans import Graphs, first_line

log = logging.getLogger("gst")


class Kernels:
    """Asks for the kernels of calls, one after the other, until one question fails; the log says why.

    Args:
        graphs: records calls on the current stream of an accelerator of CUDA, as graphs that can be asked for what they
            hold (`new_graph` with `is_kept`).
        driver: `cuda.bindings.driver`.
        num_multiprocessors: of the accelerator.
    """

    def __init__(self, graphs: Graphs, driver: Any, num_multiprocessors: int) -> None:
        self._graphs, self._driver, self._num_multiprocessors = graphs, driver, num_multiprocessors
        self._is_asked = True

    def part_of_threads(self, call: Callable[[], object]) -> float | None:
        """Of the largest kernel of a call that was made before."""
        if not self._is_asked or (graph := self._graphs.record(call)) is None:
            return None
        try:
            return part_of_threads(graph.raw_cuda_graph(), self._driver, self._num_multiprocessors)  # type: ignore[attr-defined]
        except Exception as error:  # whatever the bindings raise
            log.warning("threads of kernels are estimated from sizes of results: %s", first_line(error))
            self._is_asked = False
            return None


def kernels_of(device: torch.device) -> Kernels | None:
    """Who tells of kernels on a device; None where it is not of CUDA and here, or `cuda.bindings` are not installed.

    Examples:
        >>> kernels_of(torch.device("cpu")) is None
        True
    """
    if device.type != "cuda" or not is_here(device):
        return None
    try:
        driver = import_module("cuda.bindings.driver")
    except ImportError:
        return None
    count = torch.cuda.get_device_properties(device).multi_processor_count
    return Kernels(Graphs(device, partial(new_graph, is_kept=True)), driver, count)


def part_of_threads(graph: int, driver: Any, num_multiprocessors: int) -> float:
    """The greatest part of an accelerator's blocks that a kernel of a graph wants, at most 1; 0 without a kernel.

    Args:
        graph: address of a `CUgraph`.
        driver: `cuda.bindings.driver`.
        num_multiprocessors: of the accelerator.

    Raises:
        RuntimeError: the driver refuses to tell.
    """

    def told(result: Any, *values: Any) -> Any:
        if result != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"the driver of CUDA says {result}")
        return values[0] if len(values) == 1 else values

    handle = driver.CUgraph(graph)
    _, count = told(*driver.cuGraphGetNodes(handle))
    nodes = told(*driver.cuGraphGetNodes(handle, count))[0] if count else []
    most = 0.0
    for node in nodes[:count]:
        if told(*driver.cuGraphNodeGetType(node)) != driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL:
            continue
        kernel = told(*driver.cuGraphKernelNodeGetParams(node))
        blocks = kernel.gridDimX * kernel.gridDimY * kernel.gridDimZ
        threads = kernel.blockDimX * kernel.blockDimY * kernel.blockDimZ
        function = driver.CUfunction(int(kernel.func) or int(kernel.kern))  # the driver takes either here
        at_once = told(*driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, kernel.sharedMemBytes))
        most = max(most, blocks / max(at_once * num_multiprocessors, 1))
    return min(most, 1.0)
