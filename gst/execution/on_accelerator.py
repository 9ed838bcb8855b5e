"""A step run whole, without a plan: as written, recorded as one graph, and as the reference of plans.

cuDNN rounds the factors of convolutions to TF32 (11 of 24 bits) by default, so plans are compared with outputs of the
same accelerator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from gst.execution.costs import NewGraph, graph_maker
from gst.execution.lanes import synchronise
from gst.lowering.calls import HOST, eager
from gst.machine.devices import Device, usable_cores
from gst.programs import Program, Reference, Step, as_module, differ_beyond_rounding, outputs_differ
from gst.programs.program import distances
from gst.util.recording import WARM_RUNS, is_here, no_garbage, recorded

Run = Callable[[], list[Any]]


def as_written(step: Step, device: torch.device) -> Run:
    """Return a function that runs the step with its inputs on a device, where it also makes its tensors."""
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
    """Record a function on one stream as one graph of an accelerator.

    Args:
        run: computes; each replay overwrites its results.
        device: of the computation.
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
    """Disable the cache of autocast, whose memory ends with its context, while a graph may still read it."""
    was_enabled = torch.is_autocast_cache_enabled()
    torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(was_enabled)


@contextmanager
def compiled_by_threads() -> Iterator[None]:
    """Let Inductor run as many C++ compilers as this process has cores, without a pool of processes. Jobs that still
    wait at the end, as after Ctrl-C, are dropped."""
    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile

    count = len(usable_cores())
    threads = ThreadPoolExecutor(count)
    pool = patch.object(AsyncCompile, "pool", staticmethod(lambda: threads))
    no_processes = patch.object(AsyncCompile, "use_process_pool", classmethod(lambda cls: False))
    try:
        with config.patch(compile_threads=count), pool, no_processes:
            yield
    finally:
        threads.shutdown(cancel_futures=True)


def are_weights(program: Program) -> list[bool]:
    """Return for each input True if it is a weight that the program does not renew."""
    homes = program.parameter_home
    renews = any(isinstance(each, Reference) and homes[each.node] >= 0 for each in program.outputs)
    return [not renews and homes[number] >= 0 for number in range(len(program.inputs))]


def num_weights(program: Program) -> int:
    """Return the number of first inputs that are weights which the program does not renew: calls need not copy them.

    Examples:
        >>> from gst.programs import capture_module
        >>> num_weights(capture_module(torch.nn.Linear(2, 3), (torch.ones(1, 2),)))
        2
    """
    return [*are_weights(program), False].index(False)


def module_on(program: Program, device: torch.device) -> fx.GraphModule:
    """Return `as_module` with its constants, and the tensors that it makes, on a device."""
    operations = tuple(
        replace(each, kwargs={**each.kwargs, "device": device}) if "device" in each.kwargs else each
        for each in program.operations
    )
    return as_module(replace(program, operations=operations)).to(device)


BETWEEN = 2.0  # times the distance between the host and the accelerator: a plan on both may be off by it


@dataclass(frozen=True)
class ReferenceOutputs:
    """Reference outputs of a program, for comparison with those of plans.

    Args:
        want: flat outputs, on the host.
        again: outputs for other inputs, computed alike; None where plans round as these do.
        least: allowed error of each output; empty where plans round as these do.
    """

    program: Program
    want: Sequence[Any]
    again: Callable[[Sequence[Tensor]], list[Any]] | None = None
    least: Sequence[float] = ()

    def difference(self, got: Sequence[Any]) -> str | None:
        """Return the first difference between flat outputs and these, beyond rounding; None if they agree."""
        if self.again is None:
            return outputs_differ(got, self.want)
        return differ_beyond_rounding(got, self.want, self.again, self.program.inputs, self.least)


def reference(program: Program, devices: Sequence[Device]) -> ReferenceOutputs:
    """Run all operations in order on the first accelerator of some devices; on the host if it cannot run them."""

    def run(inputs: Sequence[Tensor] | None, device: torch.device) -> list[Any]:
        return pytree.tree_map_only(Tensor, Tensor.cpu, eager(program, inputs, device))

    home, on_host = next((each.torch_device for each in devices if each.is_accelerator), HOST), run(None, HOST)
    if home != HOST:
        try:
            want = run(None, home)
        except RuntimeError:  # an operation, or memory, that it lacks
            return ReferenceOutputs(program, on_host, partial(run, device=HOST))
        least = [BETWEEN * each for each in distances(want, on_host)]
        return ReferenceOutputs(program, want, partial(run, device=home), least)
    return ReferenceOutputs(program, on_host)
