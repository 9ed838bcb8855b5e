"""Whole-model variants of a captured program, made and timed in a child process, to be compared with plans.

The process that runs plans keeps idle OpenMP threads from spinning, which slows PyTorch's own threads. So a child makes
and times the variants: on cores frozen, channels last and on one thread, on an accelerator as written, in one graph and
compiled. The child receives the name of a variant and answers with its milliseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gst.execution.lane_graphs import DRAWS_ON_HOST, draws_on_host
from gst.execution.measure import timed
from gst.execution.on_accelerator import Run, as_called, as_written, module_on, num_weights, one_graph, whole
from gst.execution.plain import COMPILED, PYTORCH, START_LIMIT_S, PlainPyTorch, failing
from gst.kernels.recording import kernel_program
from gst.kernels.streams import StreamSearch
from gst.lowering.calls import eager
from gst.lowering.plan import ExecutionError
from gst.programs import Program, Reference, as_module, differ_beyond_rounding, kind_for
from gst.programs.seeded import unseeded
from gst.programs.traces import resolve, traced
from gst.util.child import connect
from gst.util.process import keep_freed_memory
from gst.whole_model.choosing import TimeIsUp, candidates, stopped_after
from gst.whole_model.variants import KERNELS, ONE_GRAPH, Bound

MODULE = "gst.whole_model.child_process"
MODE_OF = {
    "compiled": "default", "compiled, reduce-overhead": "reduce-overhead", "compiled, max-autotune": "max-autotune",
}  # fmt: skip
"""By name of a variant on an accelerator, the mode of `torch.compile`."""

COMPILE = ("compiled", KERNELS, "compiled, reduce-overhead", "compiled, max-autotune")
"""Variants on an accelerator that are compiled, those that take longer later."""

Runs = dict[str, Callable[[], Any]]
Timed = dict[str, Callable[[], float]]
"""By name, functions that run a variant once and return its milliseconds."""

Figures = dict[str, Any]
"""Of kernels on streams, see `gst.kernels.streams.OnStreams`; empty if there are none."""


@contextmanager
def variants_on_cores(source: Path | str, cores: int, seconds: float) -> Iterator[tuple[Timed, dict[str, str]]]:
    """Time the variants of a program on the CPU that may win, each when its function is called; yield also the reasons
    why others are left out.

    Args:
        source: name of a program, or the directory of a saved one.
        cores: number of cores of the devices.
        seconds: no variant is begun after half of them, and none is compiled beyond them.

    Raises:
        ValueError: the child could not start.
    """
    with _child(source, seconds, (MODULE, "cores", str(cores), str(seconds))) as (runs, reasons, _):
        yield runs, reasons


@contextmanager
def variants_on_accelerator(
    source: Path | str, device: torch.device, seconds: float, skip_reason: str = "", compiled: Sequence[str] = COMPILE
) -> Iterator[tuple[Timed, Figures]]:
    """Time the variants of a step on an accelerator; `pytorch`, as written, comes first. The function of a variant that
    is left out raises its reason (`ExecutionError`).

    Args:
        source: name of a program, or the directory of a saved one, whose operations then run one by one for `pytorch`.
        device: the accelerator.
        seconds: nothing is compiled beyond them.
        skip_reason: why nothing is compiled; everything is if empty.
        compiled: some of `COMPILE`.
    """
    with ExitStack() as stack:
        try:
            child = (MODULE, "accelerator", str(device), str(seconds), skip_reason, *compiled)
            runs, reasons, figures = stack.enter_context(_child(source, seconds, child))
        except ValueError as error:  # for example, memory is short
            runs, reasons, figures = {}, {PYTORCH: str(error), COMPILED: str(error)}, {}
        yield runs | {name: partial(failing, reason) for name, reason in reasons.items()}, figures


@contextmanager
def _child(
    source: Path | str, seconds: float, arguments: Sequence[str]
) -> Iterator[tuple[Timed, dict[str, str], Figures]]:
    with PlainPyTorch(source, start_limit_s=START_LIMIT_S + seconds, child=arguments) as process:
        names, reasons, figures = process.first
        yield {name: partial(process, name) for name in names}, reasons, figures


def serve(
    parent: Connection[Any, Any],
    make: Callable[[], tuple[Mapping[str, Callable[[], object]], Mapping[str, str], Figures]],
    keeps_memory: bool = True,
) -> None:
    """Make variants in the child, send their names and the reasons of others, and time each that is asked for.

    Args:
        parent: connection to the parent (`gst.util.child.connect`).
        make: returns functions that run a variant once, by name, the reasons of other variants, and figures.
        keeps_memory: True if memory of freed tensors is kept, as in the process that runs plans.
    """
    if keeps_memory:
        keep_freed_memory()
    runs, reasons, figures = make()
    parent.send((list(runs), dict(reasons), figures))
    with suppress(EOFError):
        while name := parent.recv():
            answer: object
            try:
                answer = timed(runs[name])
            except Exception as error:  # any exception of compiled code; other variants go on
                answer = ExecutionError(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
            parent.send(answer)


def bound(program: Program) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return a program as a module in evaluation mode, and the inputs of its call. Parameters become those of the
    module, unless the program renews one.

    Examples:
        >>> import torch
        >>> from gst.programs import capture_module
        >>> module, inputs = bound(capture_module(nn.Linear(2, 3), (torch.ones(1, 2),)))
        >>> len(list(module.buffers())), module(*inputs)[0].shape
        (2, torch.Size([1, 3]))
    """
    homes = program.parameter_home
    renews = any(isinstance(each, Reference) and homes[each.node] >= 0 for each in program.outputs)
    is_weight = [not renews and homes[number] >= 0 for number in range(len(program.inputs))]
    module = Bound(as_module(program), is_weight, program.inputs).eval()
    return module, tuple(value for value, each in zip(program.inputs, is_weight, strict=True) if not each)


def made_on_cores(source: Path | str, cores: int, seconds: float) -> tuple[Runs, dict[str, str], Figures]:
    """Make the variants on the CPU that may win and that agree with the program on its own and on random inputs."""
    program = Program.load(source) if isinstance(source, Path) else traced(source)
    module, inputs = bound(program)
    runs, reasons = candidates(module, inputs, cores, seconds, stops=True).serious()
    want = eager(program)
    for name in [name for name in runs if name != PYTORCH]:
        outputs = list(runs[name](*inputs))
        if difference := differ_beyond_rounding(outputs, want, partial(eager, program), program.inputs):
            reasons[name] = f"gives other outputs: {difference}"
    return {name: partial(run, *inputs) for name, run in runs.items() if name not in (PYTORCH, *reasons)}, reasons, {}


def made_on_accelerator(
    source: Path | str, device: torch.device, seconds: float, skip_reason: str, compiled: Sequence[str] = COMPILE
) -> tuple[Runs, dict[str, str], Figures]:
    """Make the variants on an accelerator that agree with the program; also return the reasons of the others, and the
    figures of kernels on streams."""
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
            with unseeded():  # draws as a step does without plans
                return seeded()

    written()  # raises what no variant can avoid
    others = inputs[num_weights(program) :]
    makers: dict[str, Callable[[], Run]] = {ONE_GRAPH: lambda: as_called(one_graph(written, device), others)}
    compilers = {name: partial(_compiled, program, device, mode) for name, mode in MODE_OF.items()}
    streams = StreamSearch(seconds / 4)
    compilers[KERNELS] = partial(_kernels, program, device, streams)
    makers |= {name: compilers[name] for name in compiled}
    runs, reasons, ends = {PYTORCH: written}, {}, time.monotonic() + seconds
    for name, make in makers.items():
        left = ends - time.monotonic()
        if name in COMPILE and (skip_reason or left <= 0):
            reasons[name] = skip_reason or "left out: no time to compile it"
            continue
        if name in (ONE_GRAPH, KERNELS) and is_seeded:
            reasons[name] = DRAWS_ON_HOST
            continue
        try:
            with stopped_after(left) if name in COMPILE else nullcontext():
                runs[name] = make()
        except TimeIsUp:
            reasons[name] = f"left out: not compiled within {seconds:g} s"
        except Exception as error:  # any exception of a compiler, or of an operation in a graph
            reasons[name] = " ".join(str(error).split())[:200] or type(error).__name__
    return runs, reasons, {} if streams.found is None else streams.found.figures


def _compiled(program: Program, device: torch.device, mode: str) -> Run:
    """Compile a program whole; raise ValueError if it gives other outputs."""
    run, one_by_one = whole(program, device, mode), partial(eager, program, device=device)
    if difference := differ_beyond_rounding(run(), one_by_one(program.inputs), one_by_one, program.inputs):
        raise ValueError(f"wrong outputs: {difference}")
    return run if mode == "default" else as_called(run, program.inputs[num_weights(program) :])


def _kernels(program: Program, device: torch.device, streams: StreamSearch) -> Run:
    """Put the kernels of a program that Inductor compiled on streams; raise ValueError if they give other outputs."""
    kernels = kernel_program(module_on(program, device), program.inputs, program.name).without_inputs()
    run, one_by_one = streams(kernels, program.inputs), partial(eager, program, device=device)
    if difference := differ_beyond_rounding(run(), one_by_one(program.inputs), one_by_one, program.inputs):
        raise ValueError(f"wrong outputs: {difference}")
    return as_called(run, program.inputs[num_weights(program) :])


def _moved(program: Program, device: torch.device) -> Program:
    """Return the program with its inputs on a device, where every variant reads them."""
    return replace(program, inputs=tuple(value.detach().to(device) for value in program.inputs))


def main() -> None:
    parent, (source, *rest) = connect()
    is_saved = rest[0] == "--saved"
    place, *arguments = rest[is_saved:]
    path = Path(source) if is_saved else source
    if place == "cores":
        cores, seconds = arguments
        serve(parent, lambda: made_on_cores(path, int(cores), float(seconds)))
    else:
        device, seconds, skip_reason, *compiled = arguments
        on = torch.device(device)
        serve(parent, lambda: made_on_accelerator(path, on, float(seconds), skip_reason, compiled))


if __name__ == "__main__":
    main()
