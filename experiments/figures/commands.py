"""Commands of `gst` and their options, read from the parsers: docs/reference/commands.md."""

from __future__ import annotations

import argparse
from functools import cache, partial

from experiments.figures.documents import table
from gst.cli.command_line import COMMANDS, TRAINING, _parser


@cache
def parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command that takes options of its own, without the trainings."""
    (commands,) = [each for each in _parser()._actions if isinstance(each, argparse._SubParsersAction)]
    return {name: commands.choices[name] for name in COMMANDS}


def summaries() -> str:
    """Return the table of all commands."""
    (commands,) = [each for each in _parser()._actions if isinstance(each, argparse._SubParsersAction)]
    about = {each.dest: each.help or "" for each in commands._choices_actions}
    return table(("command", "purpose"), [(f"`gst {name}`", _cell(about[name])) for name in (*COMMANDS, *TRAINING)])


def options(name: str) -> str:
    """Return the table of arguments and options of one command, its subcommands included."""
    return table(("option", "meaning"), _rows(parsers()[name]))


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
