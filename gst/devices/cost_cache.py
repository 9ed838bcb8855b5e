"""Times of operations that this machine has measured before, whatever program they were in."""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from gst.devices.remembered import machine_file, this_machine
from gst.files.untrusted import plain, read_object, shown
from gst.programs import Program, Reference

SCHEMA = 1


class CostCache:
    """Median microseconds and bytes of operations, by what they compute and by the threads they had.

    One JSON file for each kind of machine and version of torch: what was measured elsewhere is never found.

    Args:
        directory: where it lies; `$XDG_CACHE_HOME/gst/costs` (`~/.cache/gst/costs`) if None.

    Raises:
        ValueError: the file is damaged; the message names it.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.path = machine_file("costs", directory)
        self._machine = this_machine()
        self._known = self._read()

    def times(
        self, program: Program, threads: int
    ) -> tuple[Float64[np.ndarray, " nodes"], Int64[np.ndarray, " nodes"]] | None:
        """Microseconds and bytes of each node, 0 for inputs and constants; None if an operation was never measured."""
        keys = signatures(program)
        rows = [self._known.get(f"{threads} {key}") if key else [0.0, 0] for key in keys]
        if any(row is None for row in rows):
            return None
        found = np.array(rows, np.float64).reshape(-1, 2)
        return found[:, 0].copy(), found[:, 1].astype(np.int64)

    def learn(
        self, program: Program, threads: int, times_us: Float64[np.ndarray, " nodes"], own: Int64[np.ndarray, " nodes"]
    ) -> None:
        """Take over what was measured: the median of the operations that are alike. Written at once or not at all."""
        alike: dict[str, list[int]] = {}
        for node, key in enumerate(signatures(program)):
            if key:
                alike.setdefault(f"{threads} {key}", []).append(node)
        known = self._read()  # another process may have learned meanwhile
        for key, nodes in alike.items():
            known[key] = [float(np.median(times_us[nodes])), int(own[nodes].max())]
        self._known = known
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(f".{os.getpid()}.partial")
        partial.write_text(json.dumps({"schema": SCHEMA, "machine": self._machine, "operations": known}))
        partial.replace(self.path)

    def _read(self) -> dict[str, list[Any]]:
        if not self.path.exists():
            return {}
        try:
            record = read_object(self.path)
            fits = record["schema"] == SCHEMA and record["machine"] == self._machine
            known = dict(record["operations"]) if fits else {}
            for time_us, own in known.values():
                if not (0 <= time_us < math.inf and type(own) is int and 0 <= own < 2**63):
                    raise ValueError(f"an operation took {shown(time_us)} us and {shown(own)} bytes")
            return known
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{self.path}: damaged cache of operation times ({plain(error)}); delete the file"
            ) from error


def signatures(program: Program) -> list[str | None]:
    """What each operation computes: its operator, with the shapes and dtypes of what it reads; None for the others."""
    found: list[str | None] = []
    for operation in program.operations:
        if operation.kind != "operation":
            found.append(None)
            continue
        arguments = [_text(value, program) for value in (operation.args, sorted(operation.kwargs.items()))]
        text = f"{operation.target} {' '.join(arguments)}"
        found.append(hashlib.sha256(text.encode()).hexdigest()[:20])
    return found


def _text(value: Any, program: Program) -> str:
    if isinstance(value, Reference):
        read = program.operations[value.node]
        return f"{list(map(tuple, read.shapes))}{list(map(str, read.dtypes))}"
    if isinstance(value, list | tuple):
        return f"[{','.join(_text(each, program) for each in value)}]"
    return repr(value)
