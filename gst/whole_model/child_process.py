"""Whole-model variants of a step or a saved program, made and timed in child processes, to be compared with plans.

The process that runs plans keeps idle OpenMP threads from spinning, which slows PyTorch's own threads. So children make
and time the variants. A child receives the name of a variant and answers with its milliseconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gst.execution.lane_graphs import DRAWS_ON_HOST, draws_on_host
from gst.execution.measure import failing, rested, timed
from gst.execution.on_accelerator import (
    Run,
    are_weights,
    as_called,
    as_written,
    module_on,
    num_weights,
    one_graph,
    whole,
)
from gst.kernels.recording import kernel_program
from gst.kernels.streams import StreamSearch
from gst.lowering.calls import HOST, eager, pytorch
from gst.lowering.plan import ExecutionError
from gst.programs import Program, TrainingStep, as_module, differ_beyond_rounding, kind_for
from gst.programs.seeded import unseeded
from gst.programs.traces import resolve, traced
from gst.util.child import Child, ChildFailed, connect
from gst.util.process import WAITING, keep_freed_memory
from gst.whole_model.choosing import TimeIsUp, candidates, stopped_after
from gst.whole_model.variants import COMPILED, KERNELS, MODES, ONE_GRAPH, PYTORCH, Bound, Variant, tensors_of

START_LIMIT_S = 900.0  # to import, trace, and compile
MODE_OF = {Variant(COMPILED, mode=mode).name: mode or "default" for mode in ("", *MODES)}
"""By name of a variant on an accelerator, the mode of `torch.compile`."""

COMPILE = (COMPILED, KERNELS, *list(MODE_OF)[1:])
"""Variants on an accelerator that are compiled, those that take longer later."""

Figures = dict[str, Any]
"""Of kernels on streams, see `gst.kernels.streams.OnStreams`; empty if there are none."""

Made = tuple[Mapping[str, Callable[[], object]], Mapping[str, str], Figures]
"""By name, functions that run a variant once, and the reasons why others are left out."""

Timed = dict[str, Callable[[], float]]
"""By name, functions that run a variant once and return its milliseconds."""


class StepProcess:
    """Child process that runs variants of a step whenever this is called. Use it as a context manager.

    Args:
        source: name of a step, or the directory of a saved program.
        arguments: `PYTORCH`, the step as written, operation by operation for a saved program; `COMPILED`, all
            operations compiled as one, which takes minutes for thousands of them; or see `made_by`.
        start_limit_s: seconds until it is ready, compilation included.

    Attributes:
        names, reasons, figures: of the variants, see `Made`.

    Raises:
        ValueError: the child could not start or died, or compiled code gives other outputs.
    """

    def __init__(self, source: Path | str, *arguments: str, start_limit_s: float = START_LIMIT_S) -> None:
        self._start_limit_s = start_limit_s
        self._arguments = [str(source), *["--saved"] * isinstance(source, Path), *(arguments or [PYTORCH])]
        self._words = "torch.compile" if arguments == (COMPILED,) else "plain PyTorch"

    def __enter__(self) -> Self:
        environment = {key: value for key, value in os.environ.items() if key not in WAITING}
        self._child = Child("gst.whole_model.child_process", self._arguments, environment)
        try:
            self.names, self.reasons, self.figures = self._answer(None, self._start_limit_s)
        except BaseException:
            self._child.end()
            raise
        return self

    def __call__(self, name: str = "") -> float:
        """Run a variant once, the first if it has no name; return its milliseconds, by the clock of the child.

        Raises:
            ExecutionError: it failed; the child can be asked again.
            ValueError: the child died.
        """
        answer = self._answer(name or self.names[0])
        if isinstance(answer, ExecutionError):
            raise answer
        return float(answer)

    def __exit__(self, *error: object) -> None:
        self._child.end()

    def _answer(self, name: str | None, limit_s: float | None = None) -> Any:
        try:
            return self._child.ask(name, limit_s)
        except ChildFailed as failure:
            raise ValueError(f"{self._words} {failure}") from None


@contextmanager
def steps_beside(
    source: Path | str, skip_reason: str = "", here: Mapping[str, Callable[[], object]] = MappingProxyType({}),
    compile_s: float = START_LIMIT_S,
) -> Iterator[Timed]:  # fmt: skip
    """Time the step without a plan on the CPU, to be compared with plans: `pytorch` as written, and `compiled`. A step
    that does not compile, or has other outputs, raises the reason (`ExecutionError`).

    Args:
        source: name of a step, or the directory of a saved program.
        skip_reason: why the step is not compiled; it is if empty.
        here: by name, functions that run the step in this process; `pytorch` and `compiled` otherwise have processes of
            their own.
        compile_s: seconds after which compiling is given up.
    """
    with ExitStack() as stack:
        runs: Timed = {}
        if PYTORCH not in here:
            runs[PYTORCH] = stack.enter_context(StepProcess(source, PYTORCH)).__call__
        runs |= {name: partial(rested, step) for name, step in here.items()}
        if COMPILED not in here:
            try:
                if skip_reason:
                    raise ValueError(skip_reason)
                child = StepProcess(source, COMPILED, start_limit_s=min(compile_s, START_LIMIT_S))
                runs[COMPILED] = stack.enter_context(child).__call__
            except ValueError as error:
                runs[COMPILED] = partial(failing, str(error))
        yield runs


@contextmanager
def variants_on_cores(source: Path | str, cores: int, seconds: float) -> Iterator[tuple[Timed, dict[str, str]]]:
    """Time the variants of a program on the CPU that may win; yield also the reasons why others are left out.

    Args:
        source: name of a program, or the directory of a saved one.
        cores: number of cores of the devices.
        seconds: no variant is begun after half of them, and none is compiled beyond them.

    Raises:
        ValueError: the child could not start.
    """
    with StepProcess(source, "cores", str(cores), str(seconds), start_limit_s=START_LIMIT_S + seconds) as process:
        yield {name: partial(process, name) for name in process.names}, process.reasons


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
    arguments, limit_s = ("accelerator", str(device), str(seconds), skip_reason, *compiled), START_LIMIT_S + seconds
    with ExitStack() as stack:
        try:
            process = stack.enter_context(StepProcess(source, *arguments, start_limit_s=limit_s))
            runs: Timed = {name: partial(process, name) for name in process.names}
            reasons, figures = process.reasons, process.figures
        except ValueError as error:  # for example, memory is short
            runs, reasons, figures = {}, {PYTORCH: str(error), COMPILED: str(error)}, {}
        yield runs | {name: partial(failing, reason) for name, reason in reasons.items()}, figures


# In the child ---------------------------------------------------------------------------------------------------------


def serve(parent: Connection[Any, Any], make: Callable[[], Made]) -> None:
    """Make variants in the child, send their names, reasons and figures, and time each on request.

    Args:
        parent: connection to the parent (`gst.util.child.connect`).
        make: returns the variants.
    """
    keep_freed_memory()  # as in the process that runs plans: else memory, and not placement, would be compared
    runs, reasons, figures = make()
    parent.send((list(runs), dict(reasons), figures))
    with suppress(EOFError):
        while name := parent.recv():
            try:
                answer: object = timed(runs[name])
            except Exception as error:  # any exception of compiled code; other variants go on
                answer = ExecutionError(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
            parent.send(answer)


def made_by(source: Path | str, kind: str, *arguments: str) -> Made:
    """Make the variants that a parent requests: `PYTORCH`, `COMPILED`, 'cores' (their number, seconds) or 'accelerator'
    (device, seconds, skip reason, names of compiled variants)."""
    if kind == "cores":
        return made_on_cores(source, int(arguments[0]), float(arguments[1]))
    if kind == "accelerator":
        device, seconds, skip_reason, *compiled = arguments
        return made_on_accelerator(source, torch.device(device), float(seconds), skip_reason, compiled)
    if kind == PYTORCH and isinstance(source, str):
        return {kind: partial(_as_written, resolve(source))}, {}, {}
    program = _program(source)
    run: Run = partial(eager, program) if kind == PYTORCH else checked(whole(program, HOST, "default"), program)
    return {kind: run}, {}, {}


def made_on_cores(source: Path | str, cores: int, seconds: float) -> Made:
    """Make the variants on the CPU that may win and that agree with the program on its own and on random inputs."""
    program = _program(source)
    module, inputs = bound(program)
    variants, reasons = candidates(module, inputs, cores, seconds, stops=True).serious()
    runs: dict[str, Run] = {}
    for name in [name for name in variants if name != PYTORCH]:
        try:
            runs[name] = checked(partial(variants[name], *inputs), program)
        except ValueError as error:
            reasons[name] = str(error)
    return runs, reasons, {}


def made_on_accelerator(
    source: Path | str, device: torch.device, seconds: float, skip_reason: str, compiled: Sequence[str] = COMPILE
) -> Made:
    """Make the variants on an accelerator that agree with the program; also return the reasons of the others, and the
    figures of kernels on streams."""
    program = _program(source, kind_for([device.type]))
    program = replace(program, inputs=tuple(value.detach().to(device) for value in program.inputs))
    inputs, is_seeded = program.inputs, isinstance(source, Path) and draws_on_host(program)
    if isinstance(source, Path):
        written = whole(program, device)
    else:
        step = resolve(source)
        step = replace(step, inputs=pytree.tree_map_only(Tensor, lambda each: each.detach().to(device), step.inputs))
        inputs = tuple(tensors_of(step.inputs))
        written = unseeded()(as_written(step, device))  # draws as a step does without plans
    written()  # raises what no variant can avoid
    steady, streams = num_weights(program), StreamSearch(seconds / 4)

    def make(name: str) -> Run:
        if name == ONE_GRAPH:
            return as_called(one_graph(written, device), inputs[steady:])
        if name == KERNELS:
            kernels = kernel_program(module_on(program, device), program.inputs, program.name).without_inputs()
            run = checked(streams(kernels, program.inputs), program, device)
        else:
            run = checked(whole(program, device, MODE_OF[name]), program, device)
        return run if name == COMPILED else as_called(run, program.inputs[steady:])

    runs, reasons, ends = {PYTORCH: written}, dict[str, str](), time.monotonic() + seconds
    for name in (ONE_GRAPH, *compiled):
        left, compiles = ends - time.monotonic(), name != ONE_GRAPH
        if compiles and (skip_reason or left <= 0):
            reasons[name] = skip_reason or "left out: no time to compile it"
        elif is_seeded and name in (ONE_GRAPH, KERNELS):
            reasons[name] = DRAWS_ON_HOST
        else:
            try:
                with stopped_after(left) if compiles else nullcontext():
                    runs[name] = make(name)
            except TimeIsUp:
                reasons[name] = f"left out: not compiled within {seconds:g} s"
            except Exception as error:  # any exception of a compiler, or of an operation in a graph
                reasons[name] = " ".join(str(error).split())[:200] or type(error).__name__
    return runs, reasons, {} if streams.found is None else streams.found.figures


def checked(run: Run, program: Program, device: torch.device = HOST) -> Run:
    """Return a run of a program whose outputs are those of its operations one by one; raise ValueError otherwise."""
    one_by_one = partial(eager, program, device=device)
    if difference := differ_beyond_rounding(list(run()), one_by_one(program.inputs), one_by_one, program.inputs):
        raise ValueError(f"wrong outputs: {difference}")
    return run


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
    is_weight = are_weights(program)
    module = Bound(as_module(program), is_weight, program.inputs).eval()
    return module, tuple(value for value, each in zip(program.inputs, is_weight, strict=True) if not each)


def _program(source: Path | str, kind: str = "cpu") -> Program:
    return Program.load(source) if isinstance(source, Path) else traced(source, kind=kind)


def _as_written(step: TrainingStep) -> None:
    with unseeded():
        pytorch(step)


def main() -> None:
    parent, (source, *rest) = connect()
    is_saved = rest[0] == "--saved"
    serve(parent, partial(made_by, Path(source) if is_saved else source, *rest[is_saved:]))


if __name__ == "__main__":
    main()
