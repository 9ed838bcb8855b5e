"""Run the code of a page, block after block, in this directory, as a reader would who copies them all.

    python run_page.py PAGE.md

Python blocks share their names; one with a title is a file, and is written. What a block prints must hold the lines of
the `Output` that follows it, in that order, numbers aside; `...` stands for any lines, or for any end of a line.
"""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, TextIO

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.docs.pages import OUTPUT, Fence, Page

NUMBER = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?")


def run_page(page: Page) -> None:
    """Raises whatever a block raises, and AssertionError where one does not print what is said."""
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    for fence in page.fences:
        place = f"{page.path}:{fence.line}"
        if fence.title == OUTPUT:
            check_output(fence.source, printed, place)
        elif fence.title:
            Path(fence.title).write_text(fence.source)
        elif fence.runs:
            print(f"== {place}", flush=True)
            printed = run(fence, place, names)


def run(fence: Fence, place: str, names: dict[str, Any]) -> str:
    """Run one block; returns what it printed."""
    if fence.language == "bash":
        command = ["bash", "-euo", "pipefail", "-c", fence.source]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        print(done.stdout, flush=True)
        assert done.returncode == 0, f"{place}: exit status {done.returncode}"
        return done.stdout
    printed = _Tee(sys.stdout)
    with contextlib.redirect_stdout(printed):
        code = "\n" * (fence.line - 1) + fence.source
        exec(compile(code, place.rpartition(":")[0], "exec", dont_inherit=True), names)
    return printed.getvalue()


def check_output(wanted: str, printed: str, place: str) -> None:
    """Raises AssertionError where a line of `wanted` does not come, numbers aside, after the one before it."""
    lines = iter([_shape(line) for line in printed.splitlines()])
    for line in wanted.splitlines():
        if line.strip() not in ("", "..."):
            start, _, rest = _shape(line).partition("...")
            alike = (each.startswith(start) if line.endswith("...") else each == start + rest for each in lines)
            assert any(alike), f"{place} promises {line!r}, printed was:\n{printed}"


class _Tee(io.StringIO):
    """Keeps what is printed and lets it through."""

    def __init__(self, through: TextIO) -> None:
        super().__init__()
        self.through = through

    def write(self, text: str) -> int:
        self.through.write(text)
        return super().write(text)


def _shape(line: str) -> str:
    return " ".join(NUMBER.sub("#", line).split())


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    run_page(Page(Path(sys.argv[1])))
