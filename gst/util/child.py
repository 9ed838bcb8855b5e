"""A child process that answers messages, for work that may crash, hang or need other settings than this process.

The parent starts `python -m MODULE DESCRIPTOR PARENT ARGUMENT...` (`Child`); the module calls `connect`. Messages and
answers are pickled. The child ends with its parent, leaves Ctrl-C to it, and writes no core file.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from gst.util.process import end_with_parent


class ChildFailed(Exception):
    """Failure of a child process: it ended with a status and a last line of output, crashed, or took too long."""


class Child:
    """A running child process, and the connection to it.

    Args:
        module: that the child runs.
        arguments: further arguments of the child.
        environment: of the child.
    """

    def __init__(self, module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `end`)
        self._connection, its_end = Pipe()
        with its_end:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, str(its_end.fileno()), str(os.getpid()), *arguments],
                env=environment, pass_fds=[its_end.fileno()], stdin=subprocess.DEVNULL, stdout=self._output,
                stderr=self._output,
            )  # fmt: skip

    def ask(self, message: Any, limit_s: float | None = None) -> Any:
        """Send a message, if it is not None, and return the next answer.

        Args:
            message: for the child.
            limit_s: seconds to wait for the answer; None = as long as the child runs.

        Raises:
            ChildFailed: there is no answer; the message has the reason.
        """
        try:
            if message is not None:
                self._connection.send(message)
            if not self._connection.poll(limit_s):
                raise ChildFailed(f"timed out after {limit_s:g} s")
            return self._connection.recv()
        except (EOFError, ConnectionError):
            raise ChildFailed(self._end_words()) from None

    def end(self) -> None:
        """Kill the child, if it still runs, and close the connection."""
        self.process.kill()
        self.process.wait()
        self._connection.close()
        self._output.close()

    def _end_words(self) -> str:
        status = self.process.wait()
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        if status >= 0:
            return f"stopped with status {status}: {lines[-1] if lines else 'without output'}"
        cause = ", as the system does when memory runs out" if -status == signal.SIGKILL else ""
        return f"crashed: signal {-status} ({signal.strsignal(-status)}{cause})"


def connect() -> tuple[Connection[Any, Any], list[str]]:
    """Return the connection of this child process to its parent, and its further arguments."""
    descriptor, parent, *arguments = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (int(most != 0),) * 2)  # 1 byte: nor does Linux pipe one to a handler
    end_with_parent(int(parent), signal.SIGKILL)
    return Connection(int(descriptor)), arguments
