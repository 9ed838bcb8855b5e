"""The `gst` command line: subcommands, exit status, and errors of the user as one line and exit status 2."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

from gst.training import TRAINING
from gst.util.addresses import Unreachable
from gst.util.imports import import_from_here, import_torchmetrics, imported
from gst.util.process import Stopped, stoppable, version, wait_briefly
from gst.util.progress import Verbosity, saying, verbosity
from gst.util.writing import directory_lock, write_json

EVERYWHERE = ("--debug", "--quiet", "--verbose")
COMMANDS = {
    "place": "place", "demo": "demo", "sweep": "training", "measure": "place", "prepare": "data", "data": "data",
    "rank": "training", "trace": "data", "devices": "doctor", "doctor": "doctor",
}  # fmt: skip
"""Module of `gst.cli` whose function `add` adds each subcommand."""
GO_ON = dict.fromkeys(("place", "demo", "measure", "sweep"), "the same command with --resume goes on") | {
    "prepare": "the same command goes on where this one stopped",
    "fit": "the same command with --ckpt_path last goes on from the last checkpoint, if there is one",
}


def main(arguments: Sequence[str] | None = None, parser: Callable[[], argparse.ArgumentParser] | None = None) -> int:
    """Run one command of `gst`, or of another `parser`; returns its exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    said = {flag for flag in EVERYWHERE if flag in arguments}
    arguments = [argument for argument in arguments if argument not in said]
    debug, module = "--debug" in said, COMMANDS.get(next(iter(arguments), ""), "training")
    if module != "doctor":  # which looks at the user's own environment
        wait_briefly(shares_cores=module in ("place", "demo"))  # before anything imports torch
    level: Verbosity = "quiet" if "--quiet" in said else "verbose" if "--verbose" in said else "normal"
    try:
        arguments = _with_imports(arguments)
        with stoppable(), saying(level):
            if parser is None and arguments and arguments[0] in TRAINING:
                return _train(arguments)
            return _run(arguments, _parser(arguments) if parser is None else parser())
    except Exception as error:
        is_of_wandb = type(error).__module__.startswith("wandb.")
        if debug or not (is_of_wandb or isinstance(error, ValueError | OSError | subprocess.CalledProcessError)):
            raise
        more = "; log in to W&B by `wandb login`, or set WANDB_MODE=offline" if is_of_wandb else ""
        print(f"gst: error: {_reason(error, arguments)}{more}", file=sys.stderr)
        return 2
    except Stopped as stop:
        print(f"gst: {stop}; every file is as it was last saved; {stop.advice or _advice(arguments)}", file=sys.stderr)
        return stop.status


def _with_imports(arguments: list[str]) -> list[str]:
    """Import the modules that `--import` names, which may register methods, and return the other arguments."""
    taken = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    taken.add_argument("--import", dest="modules", metavar="MODULE", action="append", default=[])
    if not any(each.startswith("--import") for each in arguments):
        return arguments
    ours, rest = taken.parse_known_args(arguments)
    for name in ours.modules:
        imported(name)
    return rest


def _reason(error: Exception, arguments: list[str]) -> str:
    words = " ".join(str(error).split())
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT) and "make room" not in words
    if isinstance(error, Unreachable):
        return f"{words}; {_advice(arguments)}"
    return f"{words}; make room, then {_advice(arguments)}" if full else words


def _advice(arguments: list[str]) -> str:
    return GO_ON.get(arguments[0] if arguments else "", "run it again")


def _run(arguments: list[str], parser: argparse.ArgumentParser) -> int:
    if not arguments:
        parser.print_help(sys.stderr)
        return 2
    options = parser.parse_args(arguments)
    options.command = shlex.join([*parser.prog.split(), *arguments])
    run: Callable[[argparse.Namespace], dict[str, Any]] = options.run
    if getattr(options, "usual_out", None) and options.out is None:
        options.out = options.usual_out(options)
    locks = hasattr(options, "resume") and options.out
    with directory_lock(options.out) if locks else nullcontext():
        result = run(options)
        if options.json:
            write_json(options.json, result)
        if getattr(options, "wandb", False):
            from gst.training.plan_run import log_plan

            log_plan(options, result)
    return int(result.get("exit_status", 0))


def _parser(arguments: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the parser of `gst` with the subcommand that the arguments name, or with all; others are not imported."""
    parser = argparse.ArgumentParser(
        prog="gst",
        description="Learn how fast giant computation graphs run, and place them on real devices.",
        epilog="First: gst doctor says what this machine lacks, gst demo shows training, ranking and placement "
        "(minutes), and gst place rnnlm --out runs/place/rnnlm places a bundled program. "
        f"Training: gst {'|'.join(TRAINING)} --config FILE.yaml (gst fit --help). To any command add "
        "--quiet (results and errors alone), --verbose (bars of what is done stay), --debug (tracebacks of errors) or "
        "--import MODULE (your module, which registers partitioners, encoders, losses, metrics or placement methods).",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {version()}")
    parser.add_argument(
        "--print-completion", choices=("bash", "zsh", "tcsh"), action=_Completion,
        help='for your shell, such as: eval "$(gst --print-completion bash)"',
    )  # fmt: skip
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, summary in TRAINING.items():
        commands.add_parser(name, help=summary, add_help=False)
    named = arguments[0] if arguments and arguments[0] in COMMANDS else None
    for name in COMMANDS if named is None else (named,):
        if name not in commands.choices:  # modules add several
            import_module(f"gst.cli.{COMMANDS[name]}").add(commands, add_command)
    return parser


class _Completion(argparse.Action):
    """Argparse action that prints a shell completion script."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, shell: Any, option: str | None = None) -> None:
        import shtab

        print(shtab.complete(parser, shell))
        parser.exit()


def add_command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], dict[str, Any]], summary: str, examples: str
) -> argparse.ArgumentParser:
    """Add a subcommand with `--help`, examples and `--json`; `run` takes its options and returns its result."""
    indented = "\n".join(f"  {line}" for line in examples.splitlines())
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=summary, epilog=f"examples:\n{indented}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    command.add_argument("--json", type=Path, help="write the result here, for programs")
    command.set_defaults(run=run)
    return command


def _train(arguments: list[str]) -> int:
    import_from_here()
    import_torchmetrics()
    from gst.training.cli import run

    taken = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    taken.add_argument("--json", type=Path)
    ours, rest = taken.parse_known_args(arguments)
    if verbosity() == "quiet":
        rest += ["--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"]
        for name in ("lightning.pytorch", "lightning.fabric"):
            logging.getLogger(name).setLevel(logging.ERROR)
        warnings.simplefilter("ignore")
        os.environ.setdefault("WANDB_SILENT", "true")
    result = run(rest)
    if ours.json:
        write_json(ours.json, result)
    return 0
