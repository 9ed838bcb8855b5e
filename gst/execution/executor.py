"""Choice of the executor that runs plans on given devices. Read this file first, then `native.py`, then `lanes.py`."""

from __future__ import annotations

from collections.abc import Sequence

from gst.execution.graph_executor import GraphExecutor
from gst.execution.native import NativeExecutor
from gst.machine.devices import Device, supports
from gst.programs import Program
from gst.util.recording import is_here

AnyExecutor = GraphExecutor | NativeExecutor


def executor(program: Program, devices: Sequence[Device]) -> AnyExecutor:
    """Return the executor of plans of a program: `NativeExecutor` for CPU devices of one memory, otherwise
    `GraphExecutor`.

    Raises:
        ValueError: an accelerator is not here, or there is no C++ compiler for CPU devices.

    Examples:
        >>> import numpy as np
        >>> import torch
        >>> from gst.lowering.plan import Plan
        >>> from gst.machine.devices import discover
        >>> from gst.programs import capture_module
        >>> program, core = capture_module(torch.nn.ReLU(), (torch.tensor([-1.0, 2.0]),)), discover()[0]
        >>> with executor(program, [core]) as run:
        ...     run.run(Plan((core.name,), np.zeros(program.num_nodes, np.int64)))
        [tensor([0., 2.])]
    """
    if supports(devices):
        return NativeExecutor(program, devices)
    if missing := [each.name for each in devices if each.is_accelerator and not is_here(each.torch_device)]:
        raise ValueError(f"this process has no accelerator {missing[0]!r}; run plans on its own devices (gst devices)")
    return GraphExecutor(program, devices)
