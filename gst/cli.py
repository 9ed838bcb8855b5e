"""The `gst` command line. Errors of the user print one line and exit 2."""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gst.bench.commands import add_benchmarks
from gst.commands.data import add_data
from gst.commands.devices import add_devices
from gst.commands.measure import add_measure
from gst.commands.place import add_place
from gst.commands.programs import add_trace
from gst.commands.training import add_rank

TRAINING = ("fit", "validate", "test", "predict")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        if arguments and arguments[0] in TRAINING:
            return _train(arguments)
        options = _parser().parse_args(arguments)
        options.command = shlex.join(["gst", *arguments])
        run: Callable[[argparse.Namespace], dict[str, Any]] = options.run
        result = run(options)
        if options.json:
            _write_json(options.json, result)
        return 0
    except (ValueError, OSError) as error:
        if debug:
            raise
        print(f"gst: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        if debug:
            raise
        last = (error.stderr or b"").decode(errors="replace").strip().splitlines()[-1:]
        print(f"gst: error: a benchmark process failed: {' '.join(last)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("gst: interrupted; every file is as it was last saved", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gst",
        description="Learn how fast giant computation graphs run, and place them on real devices.",
        epilog=f"Training: gst {'|'.join(TRAINING)} --config FILE.yaml (gst fit --help). Add --debug to any command "
        "for the traceback of an error.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in TRAINING:
        commands.add_parser(name, help=_TRAINING_HELP[name], add_help=False)
    add_place(commands, _command)
    add_measure(commands, _command)
    add_data(commands, _command)
    add_rank(commands, _command)
    add_trace(commands, _command)
    bench = commands.add_parser("bench", help="measure this machine and this program on it")
    add_benchmarks(bench.add_subparsers(metavar="WHAT", required=True), _command)
    add_devices(commands, _command)
    return parser


_TRAINING_HELP = {
    "fit": "train a model (LightningCLI: every trainer flag works)",
    "validate": "evaluate on the validation part",
    "test": "evaluate on the test part",
    "predict": "score the test part",
}


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], dict[str, Any]], summary: str, examples: str
) -> argparse.ArgumentParser:
    indented = "\n".join(f"  {line}" for line in examples.splitlines())
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=summary, epilog=f"examples:\n{indented}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    command.add_argument("--json", type=Path, help="write the result here, for programs")
    command.set_defaults(run=run)
    return command


def _write_json(path: Path, result: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(_without_nan(result), indent=1, allow_nan=False) + "\n")
    partial.replace(path)


def _without_nan(value: Any) -> Any:
    """The same with None for NaN, which JSON does not know."""
    if isinstance(value, dict):
        return {key: _without_nan(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_without_nan(entry) for entry in value]
    return None if isinstance(value, float) and value != value else value


def _train(arguments: list[str]) -> int:
    from gst.training.cli import run

    taken = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    taken.add_argument("--json", type=Path)
    ours, rest = taken.parse_known_args(arguments)
    result = run(rest)
    if ours.json:
        _write_json(ours.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
