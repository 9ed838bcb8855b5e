"""Plain PyTorch as a user would run it: the step itself, all threads, in a process of its own.

The process that runs plans keeps idle OpenMP threads from spinning, since they would steal the cores of other devices.
That slows PyTorch's own threads, so the line that every claim is held against is measured where it does not hold.

    python -m gst.devices.execute.plain PROGRAM [--saved] [--compiled]    # one step for each line on standard input
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from gst.devices.execute.calls import eager, pytorch
from gst.process.tuning import WAITING
from gst.programs import Program, as_module, resolve, traced


class PlainPyTorch:
    """A child process that runs a step whenever this is called.

    Args:
        program: name of the step, which runs as written; or the directory of a saved program, whose operations run one
            by one in order.
        compiled: run it as `torch.compile` makes it, all of its operations at once. That takes minutes for thousands of
            them.

    Raises:
        ValueError: the child could not start or died; the message repeats its last words.
    """

    def __init__(self, program: Path | str, compiled: bool = False) -> None:
        self._arguments = [str(program), *["--saved"] * isinstance(program, Path), *["--compiled"] * compiled]

    def __enter__(self) -> Self:
        self._words = tempfile.TemporaryFile("w+")
        environment = {key: value for key, value in os.environ.items() if key not in WAITING}
        self._child = subprocess.Popen(
            [sys.executable, "-m", "gst.devices.execute.plain", *self._arguments], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._words,
        )  # fmt: skip
        try:
            self._answer()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __call__(self) -> None:
        """One step, from the request to its end."""
        assert self._child.stdin is not None
        self._child.stdin.write("step\n")
        self._child.stdin.flush()
        self._answer()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.kill()
        self._child.communicate()
        self._words.close()

    def _answer(self) -> None:
        assert self._child.stdout is not None
        if not self._child.stdout.readline():
            self._words.seek(0)
            words = self._words.read().strip().splitlines()
            raise ValueError(f"plain PyTorch stopped: {words[-1] if words else 'without a word'}")


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the program prints is no answer
    name, flags = sys.argv[1], sys.argv[2:]
    run = _runner(name, "--saved" in flags, "--compiled" in flags)
    if "--compiled" in flags:
        run()
    print("ready", file=answers)
    for _ in sys.stdin:
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        print("done", file=answers)


def _runner(name: str, saved: bool, compiled: bool) -> Callable[[], object]:
    if not saved and not compiled:
        return partial(pytorch, resolve(name))
    program = Program.load(Path(name)) if saved else traced(name)
    if not compiled:
        return partial(eager, program)
    from torch._inductor import config

    config.compile_threads = 1
    module = torch.compile(as_module(program))

    def run() -> object:
        with torch.no_grad():
            return module(*program.inputs)

    return run


if __name__ == "__main__":
    main()
