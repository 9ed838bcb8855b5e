"""A step run whole on an accelerator, without a plan: as written, recorded as one graph, and compiled in each mode."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gst.devices.execute.lanes import is_here, synchronise
from gst.devices.execute.recording import WARM_RUNS, no_garbage, recorded
from gst.devices.execute.spans import NewGraph, graph_maker
from gst.programs import Program, Step, as_module

Run = Callable[[], list[Any]]


def as_written(step: Step, device: torch.device) -> Run:
    """The step with its inputs on a device; the tensors that it makes too, where it does not see to that itself."""
    inputs = pytree.tree_map_only(Tensor, lambda value: value.detach().to(device), step.inputs)

    def run() -> list[Any]:
        return pytree.tree_leaves(step.function(*inputs))

    def run_there() -> list[Any]:
        with device:  # each call of it goes through Python
            return run()

    try:
        run()
    except (RuntimeError, ValueError, TypeError):
        return run_there
    return run


def one_graph(run: Callable[[], Any], device: torch.device, graph: NewGraph | None = None) -> Callable[[], Any]:
    """What runs, recorded on one stream as one graph of an accelerator, as PyTorch's users record a training step.

    Args:
        run: computes; what it returns lies where each replay overwrites it.
        device: of what it computes.
        graph: makes an empty graph, see `graph_maker`.

    Raises:
        ValueError: there is no such accelerator here.
        RuntimeError: it does something that a graph cannot.
    """
    make = graph_maker(device, graph)
    if make is None:
        raise ValueError(f"graphs are recorded on an accelerator; this runs on {device}")
    made = make(device, None)
    synchronise([device])
    with torch.Stream(device) if is_here(device) else nullcontext():
        for _ in range(WARM_RUNS):
            run()
        synchronise([device])
        with no_garbage(), recorded(made):
            outputs = run()
        synchronise([device])

    def replay() -> Any:
        made.replay()
        return outputs

    return replay


def whole(program: Program, device: torch.device, mode: str | None = None) -> Run:
    """All operations of a program, one after the other or compiled together.

    Args:
        program: its operations that name a device are given this one.
        device: where inputs and constants are brought.
        mode: of `torch.compile`, which the first run does: 'default', 'reduce-overhead' or 'max-autotune'. None: they
            run one by one.
    """
    module = module_on(program, device)
    function = module if mode is None else torch.compile(module, mode=mode)
    inputs = [value.detach().to(device) for value in program.inputs]
    if mode is not None:
        for value in inputs:  # else modes that record graphs copy all of them in every run
            torch._dynamo.mark_static_address(value)

    def run() -> list[Any]:
        with torch.no_grad():
            return list(function(*inputs))

    return run


def module_on(program: Program, device: torch.device) -> nn.Module:
    """`as_module` with its constants, and the tensors that it makes, on a device."""
    operations = tuple(
        replace(each, kwargs={**each.kwargs, "device": device}) if "device" in each.kwargs else each
        for each in program.operations
    )
    return as_module(replace(program, operations=operations)).to(device)
