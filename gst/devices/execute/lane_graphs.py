"""A stream program recorded once as a graph of one accelerator, all lanes in it, and launched as a whole.

Launching operations one by one costs microseconds each; a recorded graph is launched at once. Lanes fork from the
stream that records and join it again by events. Where recording is impossible lanes go on eagerly, and say why.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from gst.devices.execute.calls import laid_out
from gst.devices.execute.lanes import LaneExecutor, is_here

WARM_RUNS = 3  # eager ones before: libraries choose their kernels and take their workspaces


class LaneGraph:
    """Runs a stream program as one graph, or eagerly.

    Args:
        executor: of the stream program.

    Attributes:
        reason: why it runs eagerly; empty if it runs as a graph.

    Examples:
        >>> import numpy as np
        >>> from gst.devices import Device, Plan
        >>> from gst.devices.execute.lowering import stream_program
        >>> from gst.programs import capture_module
        >>> program = capture_module(torch.nn.ReLU(), (torch.tensor([-1.0, 2.0]),))
        >>> core = Device("cpu:0", "cpu", (), 1, "host", "example")
        >>> streams = stream_program(program, Plan(("cpu:0",), np.zeros(2, np.int64)), [core])
        >>> graph = LaneGraph(LaneExecutor(program, streams, [core]))
        >>> graph.run(), graph.reason
        ([tensor([0., 2.])], 'graphs are recorded on an accelerator; this runs on cpu')
    """

    def __init__(self, executor: LaneExecutor) -> None:
        self.executor = executor
        self._graph: Any = None
        self._memories: list[dict[int, Any]] = []
        self._holds_examples = True
        self.reason = _obstacle(executor)
        if not self.reason:
            try:
                self._record()
            except Exception as error:  # whatever an operator does that a graph cannot
                self._graph, self._memories = None, []
                self.reason = f"{type(error).__name__}: {error}".splitlines()[0]

    def run(self, inputs: Sequence[Tensor] | None = None) -> list[Any]:
        """Run the program once, and wait until it is done.

        Args:
            inputs: flat inputs; the examples if None. They are not changed.

        Returns:
            Flat outputs. Those of a graph lie where its next run overwrites them.

        Raises:
            ValueError: the inputs do not fit the program.
            ExecutionError: a step of an eager run failed.
        """
        if self._graph is None:
            return self.executor.run(inputs)
        if inputs is not None or not self._holds_examples:
            given = self.executor.program.check_inputs(inputs)
            for node, memory in self.executor.streams.residents.T.tolist():
                if node < len(given):
                    self._memories[memory][node].copy_(given[node])
        self._holds_examples = inputs is None
        self._graph.replay()
        self.executor.synchronise()
        return self.executor.outputs(self._memories)

    def _record(self) -> None:
        executor, device = self.executor, self.executor.devices[0]
        for _ in range(WARM_RUNS):
            executor.run()
        self._memories = [{node: _own(value) for node, value in values.items()} for values in executor.residents()]
        gc.collect()  # what dies while a graph is recorded may wait for the device, which is forbidden then
        executor.synchronise()
        origin, graph = torch.Stream(device), new_graph(device)
        with origin:
            graph.capture_begin()
            try:
                began = origin.record_event()
                for stream in executor.lane_streams:
                    stream.wait_event(began)
                executor.issue(self._memories)
                for stream in executor.lane_streams:
                    origin.wait_event(stream.record_event())
            except BaseException:
                with suppress(RuntimeError):  # what was recorded is of no use
                    graph.capture_end()
                raise
            graph.capture_end()
        self._graph = graph


def _obstacle(executor: LaneExecutor) -> str:
    """Why the lanes cannot be one graph; empty if they may."""
    devices = list(dict.fromkeys(executor.devices))
    if len(devices) > 1:
        return f"graphs are recorded on one accelerator; this runs on {', '.join(map(str, devices))}"
    return "" if is_here(devices[0]) else f"graphs are recorded on an accelerator; this runs on {devices[0]}"


def _own(value: Tensor) -> Tensor:
    """A copy that a graph may overwrite, laid out like the value."""
    return laid_out(value.clone(), value)


def new_graph(device: torch.device) -> Any:
    """An empty graph of an accelerator; releases of PyTorch before 2.13 call it by the kind (`XPUGraph`)."""
    neutral = getattr(torch.accelerator, "Graph", None)
    return getattr(torch.get_device_module(device), f"{device.type.upper()}Graph")() if neutral is None else neutral()
