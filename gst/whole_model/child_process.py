"""The ways to run a captured program whole, beside its plans: made and timed in a process of their own.

The process that runs plans keeps idle OpenMP threads from spinning, which slows PyTorch's own (see
`gst.execution.plain`). So what `gst.place` tries of a model (frozen, channels last, one core, all cores) is tried
of a program by a child, which answers in milliseconds.

    python -m gst.whole_model.child_process PROGRAM [--saved] CORES SECONDS    # a line in: a way; out: its milliseconds
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from gst.execution.child import end_with_parent
from gst.execution.measure import timed
from gst.execution.plain import FAILED, PYTORCH, START_LIMIT_S, PlainPyTorch
from gst.lowering.calls import eager
from gst.programs import Program, Reference, as_module, differ_beyond_rounding, traced
from gst.util.tuning import keep_freed_memory
from gst.whole_model.choosing import candidates
from gst.whole_model.whole import Bound

MODULE = "gst.whole_model.child_process"
Ways = tuple[dict[str, Callable[[], float]], dict[str, str]]
"""By name, what runs each way once and returns its milliseconds; and why others are left out."""


@contextmanager
def ways_beside(source: Path | str, cores: int, seconds: float) -> Iterator[Ways]:
    """The ways to run a program whole that may win: by name, what runs each once and returns its milliseconds; and why
    others are left out.

    Args:
        source: name of a program, or the directory of a saved one.
        cores: of the devices that it may use.
        seconds: no way is begun after half of them, and none is compiled beyond them.

    Raises:
        ValueError: the child could not start.
    """
    with asked(source, seconds, (MODULE, str(cores), str(seconds))) as ways:
        yield ways


@contextmanager
def asked(source: Path | str, seconds: float, child: Sequence[str]) -> Iterator[Ways]:
    """Ways that a child makes and times, see `serve`.

    Args:
        source: name of a program, or the directory of a saved one.
        seconds: after which it stops what it compiles by itself.
        child: its module and arguments.

    Raises:
        ValueError: the child could not start.
    """
    with PlainPyTorch(source, start_limit_s=START_LIMIT_S + seconds, child=child) as process:
        said = json.loads(process.said)
        yield {name: partial(process, name) for name in said["ways"]}, said["reasons"]


def serve(
    make: Callable[[], tuple[Mapping[str, Callable[[], object]], Mapping[str, str]]], keeps_memory: bool = True
) -> None:
    """The child: make ways, say which there are and why others are not, and time those that are asked for.

    Args:
        make: what runs each way once, by name, and the reasons of others.
        keeps_memory: whether memory of freed tensors is kept, as the process that runs plans does.
    """
    end_with_parent(os.getppid())
    if keeps_memory:
        keep_freed_memory()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the program prints is no answer
    runs, reasons = make()
    print(json.dumps({"ways": list(runs), "reasons": dict(reasons)}), file=answers)
    for line in sys.stdin:
        try:
            answer: object = timed(runs[line.rstrip("\n")])
        except Exception as error:  # whatever compiled code raises; the other ways go on
            answer = f"{FAILED}{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        print(answer, file=answers)


def bound(program: Program) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A program as a module in evaluation mode, and what it is called with. If nothing renews a parameter, parameters
    are the module's, so that they may become constants.

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


def _serious(program: Program, cores: int, seconds: float) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """Ways that may win and that compute what the program does, on its own inputs as on random ones."""
    module, inputs = bound(program)
    found = candidates(module, inputs, cores, seconds, stops=True)
    runs, reasons = found.serious()
    want = eager(program)
    for name in [name for name in runs if name != PYTORCH]:
        got = list(runs[name](*inputs))
        if difference := differ_beyond_rounding(got, want, partial(eager, program), program.inputs):
            reasons[name] = f"gives other outputs: {difference}"
    return {name: partial(run, *inputs) for name, run in runs.items() if name not in (PYTORCH, *reasons)}, reasons


def main() -> None:
    source, *saved, cores, seconds = sys.argv[1:]

    def make() -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
        return _serious(Program.load(Path(source)) if saved else traced(source), int(cores), float(seconds))

    serve(make)


if __name__ == "__main__":
    main()
