"""Whole-model variants of a step or a saved program, made and timed in child processes, to be compared with plans.

The process that runs plans keeps idle OpenMP threads from spinning, which slows PyTorch's own threads. So children make
and time the variants. On busy cores they spin as little: a barrier would wait for another process. A child receives the
name of a variant and answers with its milliseconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gst.execution.measure import failing, timed
from gst.lowering.calls import HOST, are_weights, module_on
from gst.lowering.plan import ExecutionError
from gst.machine.devices import Device, core_numbers
from gst.machine.load import SPOILT, present_load
from gst.programs import Program, Step, kind_for
from gst.programs.step import unseeded
from gst.programs.traces import resolve, traced
from gst.util.process import WAITING, Child, ChildFailed, connect, keep_freed_memory
from gst.whole_model.choosing import subject_on_cores, tried
from gst.whole_model.device_copy import first_accelerator, subject_on_accelerator
from gst.whole_model.variants import COMPILED, PYTORCH, Bound, ordinary_loop

START_LIMIT_S = 900.0  # to import, trace, and compile

Made = tuple[Mapping[str, Callable[[], object]], Mapping[str, str]]
"""By name, functions that run a variant once, and the reasons why others are left out."""

Run = Callable[[], list[Any]]

Timed = dict[str, Callable[[], float]]
"""By name, functions that run a variant once and return its milliseconds."""


class StepProcess:
    """Child process that runs variants of a step whenever this is called. Use it as a context manager.

    Args:
        source: name of a step, or the directory of a saved program.
        device: an accelerator, or the CPU.
        cores: number of cores of the devices.
        seconds: no variant is begun after half of them, and none is compiled beyond them.
        skip_reason: why nothing is compiled; everything is if empty.

    Attributes:
        names, reasons: of the variants, see `Made`.

    Raises:
        ValueError: the child could not start or died.
    """

    def __init__(
        self, source: Path | str, device: torch.device = HOST, cores: int = 1, seconds: float = 0.0,
        skip_reason: str = "left out, as asked",
    ) -> None:  # fmt: skip
        self._limit_s = START_LIMIT_S + seconds
        settings = (str(device), str(cores), str(seconds), skip_reason)
        self._arguments = [str(source), *["--saved"] * isinstance(source, Path), *settings]

    def __enter__(self) -> Self:
        hidden = () if present_load() > SPOILT else WAITING
        environment = {key: value for key, value in os.environ.items() if key not in hidden}
        self._child = Child("gst.whole_model.child_process", self._arguments, environment)
        try:
            self.names, self.reasons = self._answer(None, self._limit_s)
        except BaseException:
            self._child.end()
            raise
        return self

    def __call__(self, name: str = PYTORCH) -> float:
        """Run a variant once; return its milliseconds, by the clock of the child.

        Raises:
            ExecutionError: it failed; the child can be asked again.
            ValueError: the child died.
        """
        answer = self._answer(name)
        if isinstance(answer, ExecutionError):
            raise answer
        return float(answer)

    def __exit__(self, *error: object) -> None:
        self._child.end()

    def _answer(self, name: str | None, limit_s: float | None = None) -> Any:
        try:
            return self._child.ask(name, limit_s)
        except ChildFailed as failure:
            raise ValueError(f"plain PyTorch {failure}") from None


@contextmanager
def variants_beside(
    source: Path | str, devices: Sequence[Device], seconds: float, skip_reason: str = ""
) -> Iterator[Timed]:
    """Time the variants of a step that may win, to be compared with plans; `pytorch`, as written, comes first.

    They run on the first accelerator of the devices, or otherwise on their cores. The function of a variant that is
    left out raises its reason (`ExecutionError`). Other arguments are those of `StepProcess`.
    """
    place = first_accelerator(devices) or HOST
    cores = len({number for each in core_numbers(devices) for number in each})
    with ExitStack() as stack:
        try:
            process = stack.enter_context(StepProcess(source, place, cores, seconds, skip_reason))
            runs: Timed = {name: partial(process, name) for name in process.names}
            reasons = process.reasons
        except ValueError as error:  # for example, memory is short
            runs, reasons = {}, {PYTORCH: str(error), COMPILED: str(error)}
        yield runs | {name: partial(failing, reason) for name, reason in reasons.items()}


# In the child ---------------------------------------------------------------------------------------------------------


def made(source: Path | str, device: torch.device, cores: int, seconds: float, skip_reason: str) -> Made:
    """Make the variants of a program that may win and compute the same; of a named step, `pytorch` is the step itself.

    Without time to compile, and for a named step, that is all that runs. Arguments are those of `StepProcess`.
    """
    is_saved, on_host = isinstance(source, Path), device.type == "cpu"
    program = Program.load(source) if isinstance(source, Path) else traced(source, kind=kind_for([device.type]))
    module, inputs = bound(program, device)
    subject = (
        subject_on_cores(module, inputs, cores) if on_host else subject_on_accelerator(module, inputs, device, program)
    )
    variants, reasons = tried(subject, seconds, not skip_reason, stops=True).serious()
    runs: dict[str, Callable[[], object]] = {name: run.timed(inputs) for name, run in variants.items()}
    if not is_saved:  # it draws as a step does without plans
        step = resolve(str(source))
        runs[PYTORCH] = unseeded()(as_written(step, device))
        loops, no_loop = ordinary_loop(step, device)
        runs, reasons = runs | loops, reasons | no_loop
    return runs, reasons | ({COMPILED: skip_reason} if skip_reason else {})


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


def bound(program: Program, device: torch.device = HOST) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return a program as a module in evaluation mode, and the inputs of its call. Parameters become those of the
    module, unless the program renews one.

    Args:
        device: of tensors that the program makes; inputs and parameters stay where they are.

    Examples:
        >>> import torch
        >>> from gst.programs import capture_module
        >>> module, inputs = bound(capture_module(nn.Linear(2, 3), (torch.ones(1, 2),)))
        >>> len(list(module.buffers())), module(*inputs)[0].shape
        (2, torch.Size([1, 3]))
    """
    is_weight = are_weights(program)
    module = Bound(module_on(program, device), is_weight, program.inputs).eval()
    return module, tuple(value for value, each in zip(program.inputs, is_weight, strict=True) if not each)


def main() -> None:
    """Make variants in the child, send their names and reasons, and time each on request."""
    parent, (source, *arguments) = connect()
    is_saved = arguments[:1] == ["--saved"]
    device, cores, seconds, skip_reason = arguments[is_saved:]
    keep_freed_memory()  # as in the process that runs plans: else memory, and not placement, would be compared
    place = Path(source) if is_saved else source
    runs, reasons = made(place, torch.device(device), int(cores), float(seconds), skip_reason)
    parent.send((list(runs), dict(reasons)))
    with suppress(EOFError):
        while name := parent.recv():
            try:
                answer: object = timed(runs[name])
            except Exception as error:  # any exception of compiled code; other variants go on
                answer = ExecutionError(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
            parent.send(answer)


if __name__ == "__main__":
    main()
