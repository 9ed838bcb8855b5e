"""Plain PyTorch as a user would run it: the step itself, all threads, in a process of its own.

The process that runs plans keeps idle OpenMP threads from spinning, since they would steal the cores of other devices.
That slows PyTorch's own threads, so the line that every claim is held against is measured where it does not hold.

    python -m gst.devices.plain PROGRAM    # runs one step for each line on standard input, answers each with a line
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from types import TracebackType
from typing import Self

import torch

from gst.devices.executor import pytorch
from gst.programs import resolve
from gst.waiting import WAITING


class PlainPyTorch:
    """A child process that runs the training step `program_name` whenever this is called.

    Raises:
        ValueError: the child could not start or died; the message repeats its last words.
    """

    def __init__(self, program_name: str) -> None:
        self.program_name = program_name

    def __enter__(self) -> Self:
        self._words = tempfile.TemporaryFile("w+")
        environment = {key: value for key, value in os.environ.items() if key not in WAITING}
        self._child = subprocess.Popen(
            [sys.executable, "-m", "gst.devices.plain", self.program_name], env=environment, text=True,
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
    step = resolve(sys.argv[1])
    print("ready", file=answers)
    for _ in sys.stdin:
        pytorch(step)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        print("done", file=answers)


if __name__ == "__main__":
    main()
