"""A step run whole on an accelerator, without a plan: as written, recorded as one graph, and compiled in each mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gst.execution.lanes import is_here, synchronise
from gst.execution.recording import WARM_RUNS, no_garbage, recorded
from gst.execution.spans import NewGraph, graph_maker
from gst.lowering.calls import copied, unexpanded
from gst.programs import Program, Reference, Step, as_module

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
    with without_cached_casts(), torch.Stream(device) if is_here(device) else nullcontext():
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


@contextmanager
def without_cached_casts() -> Iterator[None]:
    """Within it autocast casts a weight wherever it is read. What it keeps otherwise lies in memory that goes with its
    context: a graph that was recorded there would read what others write."""
    was_enabled = torch.is_autocast_cache_enabled()
    torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(was_enabled)


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


def num_weights(program: Program) -> int:
    """How many inputs, the first ones, are weights that the program leaves as they are: calls need not copy them.

    Examples:
        >>> from gst.programs import capture_module
        >>> num_weights(capture_module(nn.Linear(2, 3), (torch.ones(1, 2),)))
        2
    """
    homes = program.parameter_home
    if any(isinstance(each, Reference) and homes[each.node] >= 0 for each in program.outputs):
        return 0  # it renews them
    return next((number for number in range(len(program.inputs)) if homes[number] < 0), len(program.inputs))


def as_called(run: Run, inputs: Sequence[Tensor]) -> Run:
    """A recorded run as a call takes it: inputs of the caller, which lie on the device, are copied to where its graph
    reads them, and outputs out of where the next run writes them.

    Args:
        run: reads `inputs` wherever it was recorded.
        inputs: that change from call to call.
    """
    given = [copied(value, value.device) for value in inputs]

    def call() -> list[Any]:
        with torch.no_grad():
            for old, new in zip(inputs, given, strict=True):
                unexpanded(old).copy_(unexpanded(new))
        outputs = run()
        with torch.no_grad():
            return [value.clone() if isinstance(value, Tensor) else value for value in outputs]

    return call


def module_on(program: Program, device: torch.device) -> nn.Module:
    """`as_module` with its constants, and the tensors that it makes, on a device."""
    operations = tuple(
        replace(each, kwargs={**each.kwargs, "device": device}) if "device" in each.kwargs else each
        for each in program.operations
    )
    return as_module(replace(program, operations=operations)).to(device)
