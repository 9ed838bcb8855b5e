"""Graphs of an accelerator: what is launched on a stream is recorded once, and launched again by one call."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Protocol

import torch

WARM_RUNS = 3  # eager ones before: libraries choose their kernels and take their workspaces


class Graph(Protocol):
    """What is launched between `capture_begin` and `capture_end` on the current stream, launched again by `replay`."""

    def capture_begin(self) -> None: ...

    def capture_end(self) -> None: ...

    def replay(self) -> None: ...

    def pool(self) -> Any:
        """The memory of its values, for the graphs behind it."""


def new_graph(device: torch.device, pool: Any = None) -> Graph:
    """An empty graph of an accelerator; releases of PyTorch before 2.13 call it by the kind (`XPUGraph`).

    Args:
        device: that records it.
        pool: memory of the graphs before it, which it may use again where they have freed it.
    """
    if (neutral := getattr(torch.accelerator, "Graph", None)) is not None:
        return neutral(pool=pool)
    graph = getattr(torch.get_device_module(device), f"{device.type.upper()}Graph")()
    if pool is not None:
        graph.capture_begin = partial(graph.capture_begin, pool=pool)
    return graph


@contextmanager
def recorded(graph: Graph) -> Iterator[None]:
    """What is launched inside on the current stream becomes the graph, which ends whatever happens."""
    graph.capture_begin()
    try:
        yield
    except BaseException:
        with suppress(RuntimeError):  # what was recorded is of no use
            graph.capture_end()
        raise
    graph.capture_end()


@contextmanager
def no_garbage() -> Iterator[None]:
    """What dies in a cycle while a graph is recorded would wait for the device, which is forbidden then."""
    gc.collect()
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()
