"""Commands of `gst` and their options, read from the parsers: docs/reference/commands.md."""

from __future__ import annotations

import argparse
from functools import cache, partial
from unittest.mock import patch

from experiments.figures.documents import table
from gst.cli.command_line import COMMANDS, TRAINING, _parser
from gst.placement.methods import METHODS


@cache
def _commands() -> argparse._SubParsersAction:
    """Return the commands, with the placement methods of the product alone in their help."""
    own = {name: method for name, method in METHODS.items() if method.make.__module__.startswith("gst.")}
    with patch.dict(METHODS, own, clear=True):
        (commands,) = [each for each in _parser()._actions if isinstance(each, argparse._SubParsersAction)]
    return commands


def summaries() -> str:
    """Return the table of all commands."""
    about = {each.dest: each.help or "" for each in _commands()._choices_actions}
    return table(("command", "purpose"), [(f"`gst {name}`", _cell(about[name])) for name in (*COMMANDS, *TRAINING)])


def options(name: str) -> str:
    """Return the table of arguments and options of one command, its subcommands included."""
    return table(("option", "meaning"), _rows(_commands().choices[name]))


def _rows(parser: argparse.ArgumentParser, before: str = "") -> list[tuple[str, str]]:
    rows = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, each in action.choices.items():
                rows += _rows(each, f"{name} ")
        elif not isinstance(action, argparse._HelpAction) and action.help != argparse.SUPPRESS:
            rows.append((f"`{before}{_usage(action)}`", _cell(_help(parser, action))))
    return rows


def _usage(action: argparse.Action) -> str:
    name = ", ".join(action.option_strings) or str(action.metavar or action.dest)
    if not action.option_strings or action.nargs == 0:
        return name
    choices = "\\|".join(map(str, action.choices)) if action.choices else None
    metavar = action.metavar if isinstance(action.metavar, str) else None
    return f"{name} {(metavar or choices or action.dest.upper()).replace('|', chr(92) + '|')}".replace("\\\\", "\\")


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return parser._get_formatter()._expand_help(action) if action.help else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


TABLES = {"commands": summaries, **{f"options of {name}": partial(options, name) for name in COMMANDS}}
