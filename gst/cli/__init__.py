"""Command line of `gst`: files of related subcommands, with their options, runs and output.

Arguments go in; printed results, files and an exit status come out. Read `command_line.py` first.
"""

from gst.cli.command_line import main

__all__ = ["main"]
