"""Graphs of an accelerator: work that is launched on a stream is recorded once, and launched again by one call."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from inspect import signature
from typing import Any, Final, Protocol

import torch

OTHER_THREADS: Final = "thread_local"  # may do what would spoil a recording, such as pin memory, while one is made
_invalid: list[Any] = []  # graphs whose recording failed: allocators of PyTorch 2.11 may still hold their addresses
WARM_RUNS = 3  # eager ones before: libraries choose their kernels and take their workspaces


class Graph(Protocol):
    """Record of the work launched between `capture_begin` and `capture_end` on the current stream; `replay` launches it
    again."""

    def capture_begin(self) -> None: ...

    def capture_end(self) -> None: ...

    def replay(self) -> None: ...

    def pool(self) -> Any:
        """Memory of its values, for the graphs after it."""


def is_here(device: torch.device) -> bool:
    """True if this process has an accelerator of the device's kind."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator is not None and accelerator.type == device.type


def new_graph(device: torch.device, pool: Any = None) -> Graph:
    """Return an empty graph of an accelerator: of its kind (`CUDAGraph`), or `torch.accelerator.Graph` (PyTorch 2.13)
    if the kind has none.

    Args:
        device: the device that records it.
        pool: memory of earlier graphs, which it may use again where they have freed it.
    """
    module = torch.get_device_module(device)
    memory = module.graph_pool_handle() if pool is None else pool  # known also where the recording fails
    if (own := getattr(module, f"{device.type.upper()}Graph", None)) is not None:
        graph = own()
        accepted = signature(graph.capture_begin).parameters
        mode = {"capture_error_mode": OTHER_THREADS} if "capture_error_mode" in accepted else {}
        graph.capture_begin = partial(graph.capture_begin, pool=memory, **mode)
    else:
        graph = torch.accelerator.Graph(pool=memory, capture_error_mode=OTHER_THREADS)
    graph.memory, graph.device = memory, device
    return graph


@contextmanager
def recorded(graph: Graph, gives_back: bool = True) -> Iterator[None]:
    """Record all work launched inside on the current stream into the graph, which ends whatever happens.

    Workspaces of cuBLAS are freed before and after, as `torch.compile` does, so that the graph takes its own from its
    own memory. After a failure, the graph's memory must not be given to another recording: PyTorch 2.11 keeps assuming
    that pinned memory is allocated for it.

    Args:
        graph: empty.
        gives_back: first release cached memory, which the graph's own memory cannot use. That takes milliseconds.
    """
    _clear_workspaces()
    if gives_back and torch.accelerator.is_available():
        torch.accelerator.empty_cache()
    try:
        with _undone_if_invalid(graph):  # it may begin in part
            graph.capture_begin()
        try:
            yield
        except BaseException:
            with suppress(RuntimeError), _undone_if_invalid(graph):  # what was recorded is of no use
                graph.capture_end()
            raise
        with _undone_if_invalid(graph):
            graph.capture_end()
    finally:
        _clear_workspaces()


def _clear_workspaces() -> None:
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)  # AMD's libraries go by the same name
    if clear is not None:
        clear()


@contextmanager
def _undone_if_invalid(graph: Graph) -> Iterator[None]:
    """Undo the parts of a recording that began, if it is invalid."""
    try:
        yield
    except RuntimeError:
        _invalid.append(graph)
        _end_allocation(graph)
        _end_random_numbers(graph)
        raise


def _end_allocation(graph: Graph) -> None:
    """End the allocation of the stream's memory for the graph, which `capture_end` omits after an invalid recording."""
    kind = torch.accelerator.current_accelerator()
    names = ("endAllocateToPool", "releasePool")
    calls = [None if kind is None else getattr(torch._C, f"_{kind.type}_{name}", None) for name in names]
    with suppress(RuntimeError):  # no allocation goes there any more: the graph gives its memory back itself
        for call in calls:
            if call is not None and hasattr(graph, "memory"):
                call(torch.accelerator.current_device_index(), graph.memory)


def _end_random_numbers(graph: Graph) -> None:
    """Reset the device's generator by an empty recording: after an invalid one it refuses to draw (PyTorch 2.11)."""
    if (device := getattr(graph, "device", None)) is None:  # it stands for a graph
        return
    with warnings.catch_warnings(), suppress(RuntimeError):
        warnings.filterwarnings("ignore", r".*Graph is empty")
        empty = new_graph(device)
        empty.capture_begin()
        empty.capture_end()


@contextmanager
def no_garbage() -> Iterator[None]:
    """Collect no garbage inside: an object that dies in a cycle during a recording would wait for the device, which is
    forbidden."""
    gc.collect()
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()
