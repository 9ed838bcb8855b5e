"""Command line of `gst`: one file for each subcommand, with its options, its run and its output.

Arguments go in; printed results, files and an exit status come out. Read `command_line.py` first.
"""

from gst.cli.command_line import main

__all__ = ["main"]
