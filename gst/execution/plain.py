"""Run a step by PyTorch itself, as written or compiled, with all threads, in a process of its own.

The process that runs plans keeps idle OpenMP threads from spinning, since they would steal the cores of other devices.
That slows PyTorch's own threads, so the baselines of every plan are measured in a process without this setting."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, Self
from unittest.mock import patch

import torch
from torch import Tensor

from gst.execution.measure import timed
from gst.lowering.calls import eager, pytorch
from gst.lowering.plan import ExecutionError
from gst.machine.devices import usable_cores
from gst.programs import Program, TrainingStep, as_module, differ_beyond_rounding
from gst.programs.seeded import unseeded
from gst.programs.traces import resolve, traced
from gst.util.child import Child, ChildFailed, connect
from gst.util.process import WAITING, keep_freed_memory


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


START_LIMIT_S = 900.0  # to import, trace, and compile
SPIN_S = 0.01  # for which idle OpenMP threads of this process may go on spinning, at the cost of whatever runs next
LONG_MS = 500.0  # of a step for which the caches and threads that it finds matter little
PYTORCH, COMPILED = "pytorch", "compiled"  # the step as written, and as torch.compile makes it


@contextmanager
def steps_beside(
    program: Path | str,
    skip_reason: str = "",
    here: Mapping[str, Callable[[], object]] = MappingProxyType({}),
    compile_s: float = START_LIMIT_S,
) -> Iterator[dict[str, Callable[[], float]]]:
    """Yield the step without a plan, to be timed alternately with plans: a call of `pytorch`, `compiled` or a given
    function runs one step and returns its milliseconds. A step that does not compile, or has other outputs, raises the
    reason (`ExecutionError`).

    Args:
        program: see `PlainPyTorch`.
        skip_reason: why the step is not compiled; it is if empty.
        here: by name, functions that run the step in this process; `pytorch` and `compiled` otherwise have processes of
            their own.
        compile_s: seconds after which compiling is given up.
    """
    with ExitStack() as stack:
        runs: dict[str, Callable[[], float]] = {}
        if PYTORCH not in here:
            runs[PYTORCH] = stack.enter_context(PlainPyTorch(program)).__call__
        runs |= {name: partial(rested, step) for name, step in here.items()}
        try:
            if COMPILED not in here:
                if skip_reason:
                    raise ValueError(skip_reason)
                child = PlainPyTorch(program, compiled=True, start_limit_s=min(compile_s, START_LIMIT_S))
                runs[COMPILED] = stack.enter_context(child).__call__
        except ValueError as error:
            runs[COMPILED] = partial(failing, str(error))
        yield runs


def rested(step: Callable[[], object]) -> float:
    """Return the milliseconds of a step in this process, after an untimed one unless it is long. Then sleep until its
    idle threads sleep."""
    elapsed_ms = timed(step)
    if elapsed_ms < LONG_MS:
        elapsed_ms = timed(step)
    time.sleep(SPIN_S)
    return elapsed_ms


def failing(reason: str) -> NoReturn:
    """Raise `ExecutionError` with the reason why a step cannot run."""
    raise ExecutionError(reason)


def compiled_step(program: Program) -> Callable[[Sequence[Tensor]], list[Any]]:
    """Return a program compiled whole by `torch.compile`, in the first call: flat inputs to flat outputs."""
    module = torch.compile(as_module(program))
    compiling: AbstractContextManager[None] = compiled_by_threads()

    def run(inputs: Sequence[Tensor]) -> list[Any]:
        nonlocal compiling
        with torch.no_grad(), compiling:
            compiling = nullcontext()
            return list(module(*inputs))

    return run


class PlainPyTorch:
    """Child process that runs a step whenever this is called. Use it as a context manager.

    Args:
        program: name of the step, which runs as written; or the directory of a saved program, whose operations run in
            order.
        compiled: run all operations at once, compiled by `torch.compile`; that takes minutes for thousands of them.
        start_limit_s: seconds until it is ready, compiled included.
        child: module of another child that answers each message by milliseconds, and its arguments after the program;
            `compiled` then has no effect.

    Attributes:
        first: the answer by which the child reported that it is ready.

    Raises:
        ValueError: the child could not start or died, or compiled code gives other outputs.
    """

    def __init__(
        self, program: Path | str, compiled: bool = False, start_limit_s: float = START_LIMIT_S,
        child: Sequence[str] = (),
    ) -> None:  # fmt: skip
        module, flags = (child[0], child[1:]) if child else ("gst.execution.plain", ["--compiled"] * compiled)
        self._arguments = [module, str(program), *["--saved"] * isinstance(program, Path), *flags]
        self._what, self._start_limit_s = "torch.compile" if compiled else "plain PyTorch", start_limit_s

    def __enter__(self) -> Self:
        environment = {key: value for key, value in os.environ.items() if key not in WAITING}
        module, *arguments = self._arguments
        self._child = Child(module, arguments, environment)
        try:
            self.first = self._answer(None, self._start_limit_s)
        except BaseException:
            self._child.end()
            raise
        return self

    def __call__(self, name: str = "step") -> float:
        """Run one step; return its milliseconds, by the clock of the child.

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
            raise ValueError(f"{self._what} {failure}") from None


def main() -> None:
    parent, (name, *flags) = connect()
    keep_freed_memory()  # as the process that runs plans does: else memory, and not placement, would be compared
    run = _runner(name, "--saved" in flags, "--compiled" in flags)
    parent.send("ready")
    with suppress(EOFError):
        while parent.recv():
            parent.send(timed(run))


def _runner(name: str, saved: bool, compiled: bool) -> Callable[[], object]:
    if not saved and not compiled:
        return partial(_as_written, resolve(name))
    program = Program.load(Path(name)) if saved else traced(name)
    if not compiled:
        return partial(eager, program)
    run = partial(compiled_step(program), program.inputs)
    if difference := differ_beyond_rounding(run(), eager(program), partial(eager, program), program.inputs):
        raise ValueError(f"wrong outputs: {difference}")
    return run


def _as_written(step: TrainingStep) -> None:
    with unseeded():
        pytorch(step)


if __name__ == "__main__":
    main()
