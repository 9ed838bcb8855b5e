"""Command line of `gst`: files of related subcommands, with their options, runs and output.

Arguments go in; printed results, files and an exit status come out. Read `command_line.py` first.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None, parser: Callable[[], ArgumentParser] | None = None) -> int:
    """Run one command of `gst`, or of another `parser`; returns its exit status."""
    try:
        from gst.cli import command_line

        return command_line.main(arguments, parser)
    except KeyboardInterrupt:  # before `command_line` catches signals, or after
        print("gst: stopped by SIGINT", file=sys.stderr)
        return 130
