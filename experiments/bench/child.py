"""Calls of a benchmark's functions in processes of their own.

python -m experiments.bench.child MODULE:FUNCTION ARGUMENTS.json    # out: the result as JSON
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def child_environment() -> dict[str, str]:
    """Return the environment of a child process, in which it finds this package wherever the command was given."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)}


def command_of(function: str, **arguments: Any) -> list[str]:
    """Return the command that calls a function, `module:name` below `experiments.bench`."""
    return [sys.executable, "-m", "experiments.bench.child", function, json.dumps(arguments)]


def call(function: str, **arguments: Any) -> Any:
    """Call a function in a process of its own and return its result; arguments and result pass as JSON.

    Raises:
        CalledProcessError: it failed.
    """
    command = command_of(function, **arguments)
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, env=child_environment()).stdout)


def say(**figures: Any) -> None:
    """Print an object as one line of JSON at once."""
    print(json.dumps(figures), flush=True)


def main() -> None:
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries that print are no answer
    module, _, name = sys.argv[1].partition(":")
    sys.stdout = answer
    result = getattr(import_module(f"experiments.bench.{module}"), name)(**json.loads(sys.argv[2]))
    print(json.dumps(result), file=answer, flush=True)


if __name__ == "__main__":
    main()
