"""The ways to run a step whole on an accelerator, beside its plans: as written, in one graph, and compiled.

A user of a GPU compares a plan with these, and not with the step on the cores. Each is made and timed by a child, which
answers in milliseconds. As plans are, they are timed in calls with inputs in the accelerator's memory: graphs copy them
to where they read them, and outputs out of where they write them.

    python -m gst.whole_model.on_accelerator PROGRAM [--saved] DEVICE SECONDS SKIP_REASON WAY...
    # a line in: a way; out: its milliseconds
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from gst.execution.lane_graphs import DRAWS_ON_HOST, draws_on_host
from gst.execution.on_accelerator import Run, as_called, as_written, num_weights, one_graph, whole
from gst.execution.plain import COMPILED, PYTORCH, failing
from gst.lowering.calls import eager
from gst.programs import Program, differ_beyond_rounding, kind_for, resolve, traced
from gst.programs.seeded import unseeded
from gst.whole_model.child_process import asked, serve
from gst.whole_model.choosing import TimeIsUp, stopped_after
from gst.whole_model.device_copy import WAYS
from gst.whole_model.whole import ONE_GRAPH

MODULE = "gst.whole_model.on_accelerator"
MODE_OF = {way.name: way.mode or "default" for way in WAYS if way.compiles}
"""By name of a way, the mode in which `torch.compile` makes it."""


@contextmanager
def steps_on_accelerator(
    source: Path | str,
    device: torch.device,
    seconds: float,
    skip_reason: str = "",
    compiled: Sequence[str] = tuple(MODE_OF),
) -> Iterator[dict[str, Callable[[], float]]]:
    """By name, what runs a step once on an accelerator, whole, and returns its milliseconds: `pytorch`, as written,
    comes first. A way that is left out raises its reason (`ExecutionError`) whenever it is called.

    Args:
        source: name of a program, or the directory of a saved one, whose operations then run one by one `as written`.
        device: the accelerator.
        seconds: nothing is compiled beyond them.
        skip_reason: why nothing is compiled; it is if empty.
        compiled: names in `MODE_OF`.
    """
    with ExitStack() as stack:
        try:
            child = (MODULE, str(device), str(seconds), skip_reason, *compiled)
            runs, reasons = stack.enter_context(asked(source, seconds, child))
        except ValueError as error:  # it needs more memory than there is, say
            runs, reasons = {}, {PYTORCH: str(error), COMPILED: str(error)}
        yield runs | {name: partial(failing, reason) for name, reason in reasons.items()}


def made(
    source: Path | str, device: torch.device, seconds: float, skip_reason: str, compiled: Sequence[str] = tuple(MODE_OF)
) -> tuple[dict[str, Run], dict[str, str]]:
    """The ways that compute what the program does, and the reasons of the others."""
    if isinstance(source, Path):
        program = _moved(Program.load(source), device)
        written, inputs = whole(program, device), program.inputs
        is_seeded = draws_on_host(program)
    else:
        program, is_seeded = _moved(traced(source, kind=kind_for([device.type])), device), False
        step = resolve(source)
        step = replace(step, inputs=pytree.tree_map_only(Tensor, lambda each: each.detach().to(device), step.inputs))
        leaves = pytree.tree_leaves(step.inputs)
        seeded, inputs = as_written(step, device), tuple(each for each in leaves if isinstance(each, Tensor))

        def written() -> list[object]:
            with unseeded():  # as a user's step draws, whom nobody asked for plans
                return seeded()

    written()  # what it raises ends all
    others = inputs[num_weights(program) :]
    ways: dict[str, Callable[[], Run]] = {ONE_GRAPH: lambda: as_called(one_graph(written, device), others)}
    ways |= {name: partial(_compiled, program, device, MODE_OF[name]) for name in compiled}
    runs, reasons, ends = {PYTORCH: written}, {}, time.monotonic() + seconds
    for name, make in ways.items():
        left = ends - time.monotonic()
        if name in MODE_OF and (skip_reason or left <= 0):
            reasons[name] = skip_reason or "left out: no time to compile it"
            continue
        if name == ONE_GRAPH and is_seeded:
            reasons[name] = DRAWS_ON_HOST
            continue
        try:
            with stopped_after(left) if name in MODE_OF else nullcontext():
                runs[name] = make()
        except TimeIsUp:
            reasons[name] = f"left out: not compiled within {seconds:g} s"
        except Exception as error:  # whatever a compiler, or an operation in a graph, raises
            reasons[name] = " ".join(str(error).split())[:200] or type(error).__name__
    return runs, reasons


def _compiled(program: Program, device: torch.device, mode: str) -> Run:
    """Raises:
    ValueError: it gives other outputs than the program.
    """
    run, one_by_one = whole(program, device, mode), partial(eager, program, device=device)
    if difference := differ_beyond_rounding(run(), one_by_one(program.inputs), one_by_one, program.inputs):
        raise ValueError(f"wrong outputs: {difference}")
    return run if mode == "default" else as_called(run, program.inputs[num_weights(program) :])


def _moved(program: Program, device: torch.device) -> Program:
    """A program whose inputs lie on a device: every way reads them there."""
    return replace(program, inputs=tuple(value.detach().to(device) for value in program.inputs))


def main() -> None:
    source, *rest = sys.argv[1:]
    is_saved = rest[0] == "--saved"
    device, seconds, skip_reason, *compiled = rest[is_saved:]
    program = Path(source) if is_saved else source
    serve(lambda: made(program, torch.device(device), float(seconds), skip_reason, compiled))


if __name__ == "__main__":
    main()
