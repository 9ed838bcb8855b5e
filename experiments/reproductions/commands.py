"""Shared parts of the command lines of reproductions: a parser with commands, and errors of one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any


def parser_of(name: str, description: str | None) -> tuple[argparse.ArgumentParser, Any]:
    """The parser of `python -m experiments.reproductions.NAME`, and what its commands are added to."""
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments.reproductions.{name}", description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    return parser, parser.add_subparsers(required=True, metavar="COMMAND")


def run(parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> None:
    """Call `run` of the chosen command, on one thread; the caller has its threads back afterwards. A `ValueError` is a
    line on stderr and exit status 1."""
    import torch

    options = parser.parse_args(arguments)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        options.run(options)
    except ValueError as error:
        print(f"{parser.prog.rpartition('.')[2]}: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    finally:
        torch.set_num_threads(threads)
