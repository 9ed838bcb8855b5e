"""The ways to run a step whole: as written, and all operations of its captured program compiled into one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from gst.execution.compiling import compiled_by_threads
from gst.execution.plain import COMPILED, PYTORCH
from gst.lowering.calls import laid_out
from gst.programs import Program, Step, as_module, differ_beyond_rounding
from gst.util.progress import Progress, no_progress
from gst.whole_model.choosing import Candidates, Subject, tried
from gst.whole_model.guards import Guard
from gst.whole_model.whole import Function, Way, as_written, on_threads, without_gradients


def step_candidates(
    step: Step, program: Program, inputs: Sequence[Any], cores: int, seconds: float = math.inf, compiled: bool = True,
    progress: Progress = no_progress,
) -> Candidates:  # fmt: skip
    """Make the ways to run a step whole and look at each; see `gst.whole_model.choosing.tried`.

    Args:
        step: as written.
        program: as captured.
        inputs: what it is called with. Outputs are compared for these: others would be no state of an optimiser.
        cores: of the devices that it may use.
    """
    want = pytree.tree_leaves(as_written(step, inputs))

    def wrong(run: Function) -> str | None:
        return differ_beyond_rounding(pytree.tree_leaves(run(*inputs)), want, partial(as_written, step), inputs)

    counts = [count for count in dict.fromkeys((cores, 1)) if count != torch.get_num_threads()]
    kinds = (PYTORCH, COMPILED)
    every = [Way(kind) for kind in kinds] + [Way(kind, count) for count in counts for kind in kinds]
    guard = Guard(None, inputs, weights=False)
    make = partial(step_run, step, program, inputs)
    return tried(Subject(step.function, inputs, every, make, wrong, lambda way: guard), seconds, compiled, progress)


def step_run(step: Step, program: Program, inputs: Sequence[Any], way: Way) -> Function:
    """What runs a step that way, called as the step is; compiled by a first call with `inputs`.

    Raises:
        Exception: whatever a compiler raises.
    """
    threads = way.threads or torch.get_num_threads()
    if way.kind == PYTORCH:
        return on_threads(lambda *given: as_written(step, given), way.threads)
    read, strides = Guard(None, inputs, weights=False).leaves, [value.stride() for value in program.inputs]
    module = torch.compile(as_module(program), options={"cpp.threads": threads}, dynamic=False)

    def whole(*given: Any) -> Any:
        tensors = list(read(given))
        for number, (got, stride) in enumerate(zip(tensors, strides, strict=True)):
            if got.requires_grad or got.stride() != stride:  # for few if any: each costs microseconds
                tensors[number] = laid_out(got.detach(), program.inputs[number])
        return program.unflatten(list(module(*tensors)))

    run = on_threads(without_gradients(whole), way.threads)
    with compiled_by_threads():
        run(*inputs)
    return run
