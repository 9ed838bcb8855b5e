"""Benchmarks by name: `python -m experiments.bench NAME`.

A benchmark is a module with a function `run`, whose parameters are the options of its command and whose result is
written as JSON. `HELP` explains them, and `COLUMNS` names the figures that are printed of each workload.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from gst.util.process import wait_briefly
from gst.util.progress import Bars

BENCH = "python -m experiments.bench"
STUDIES = {
    "step": "a training step with the published network, or the time to the score of full-graph training",
    "score": "scoring many configurations of one giant program, in fp32 and in bf16",
    "memory": "peak memory of preparation, training and evaluation, by the size of the graph",
    "table": "pulls and pushes of the embedding table",
    "partition": "cuts and times of the partitioners",
    "distributed": "training with several processes compared with one: graphs a second, share of the table",
    "checkpoint": "saving and restoring a large table compared with a copy of the file, and how long training waits",
    "many_graphs": "stores of many graphs: to prepare, to open, memory",
    "remote": "epochs from an S3 server with 20 ms of latency compared with a local store, and the bytes fetched",
    "scale": "1 to 256 processes simulated from measured figures, and where communication takes over",
    "step_calls": "launches, copies and waits of a training step, counted on a described accelerator",
    "executor": "the cost of running a captured program beyond its operations, compared with plain PyTorch",
    "simulator": "simulated and measured runtimes of random plans",
    "unseen": "plans of a program that no model has seen, predicted by each model, and measured",
    "placement": "plans of the searches, measured with plain PyTorch, torch.compile, one device and the baselines",
    "placement_simulated": "every search on simulated machines",
    "gpu": "an accelerator: its tests, GST, workloads by streams",
    "chaos": "commands killed at random moments and resumed: is anything lost?",
    "fuzz": "damaged files for every reader: a clear error or a sound object",
    "fuzz_programs": "random programs and PyTorch's operators: gst computes what PyTorch does, or refuses in one line",
    "mutants": "changed lines of the product: do the nearest tests fail?",
}
TIMED_ON_CORES = {"executor", "simulator", "unseen", "placement", "distributed"}
"""Benchmarks whose threads must not spin for long, which OpenMP has to know before torch is loaded."""
SHARED_HELP = {
    "programs": "names separated by commas",
    "seeds": "searches or trainings of each kind",
    "seed": "of everything random",
    "repetitions": "of each plan or variant, alternately",
    "patience": "seconds to wait for quiet cores; 0 = do not look",
    "resume": "go on with what --json holds",
    "out": "folder of the files that it writes",
}
GIVEN = ("progress", "json", "command")
"""Parameters of `run` that are no options of their own."""


def add_benchmarks(bench: Any, add_command: Callable[..., argparse.ArgumentParser], chosen: str | None) -> None:
    """Add a subcommand for each benchmark; the module of the chosen one alone is imported, for its options."""
    for name, summary in STUDIES.items():
        if name != chosen:
            bench.add_parser(name, help=summary, add_help=False)
            continue
        if name in TIMED_ON_CORES:
            wait_briefly()
        module = import_module(f"experiments.bench.{'gpu.run' if name == 'gpu' else name}")
        parser = add_command(bench, name, partial(run_study, module), summary, examples(module, name))
        add_options(parser, module)


def examples(module: ModuleType, name: str) -> str:
    """Return the commands in the docstring of a module."""
    lines = [line.strip() for line in str(module.__doc__).splitlines()]
    return "\n".join(line for line in lines if line.startswith(BENCH)) or f"{BENCH} {name}"


def add_options(parser: argparse.ArgumentParser, module: ModuleType) -> None:
    """Add an option for each parameter of a benchmark's `run`."""
    types, words = get_type_hints(module.run), SHARED_HELP | getattr(module, "HELP", {})
    for name, parameter in inspect.signature(module.run).parameters.items():
        if name == "json" and parameter.default is not inspect.Parameter.empty:
            parser.set_defaults(json=parameter.default)
        if name in GIVEN:
            continue
        flag, default = f"--{name.replace('_', '-')}", parameter.default
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
        about = words[name].replace("%", "%%") + (f" (default: {shown})" if shown not in (None, "", False) else "")
        if types[name] is bool:
            parser.add_argument(flag, dest=_destination(name), action="store_true", help=words[name])
        else:
            kind, choices = _parsed_by(types[name])
            parser.add_argument(
                flag, dest=_destination(name), type=kind, default=default, choices=choices, help=about,
                metavar=None if choices else name.rpartition("_")[2].upper(),
            )  # fmt: skip


def _destination(name: str) -> str:
    return f"option_{name}"


def _parsed_by(hint: Any) -> tuple[Callable[[str], Any], tuple[str, ...] | None]:
    """Return the function that reads an option of a type, and the choices of a `Literal`; tuples are lists of words
    separated by commas."""
    parts = get_args(hint)
    kind = next(each for each in parts if each is not type(None)) if type(None) in parts else hint
    if get_origin(kind) is Literal:
        return str, get_args(kind)
    if get_origin(kind) is tuple:
        element = get_args(kind)[0]
        return lambda text: tuple(map(element, words_of(text))), None
    return kind, None


def words_of(text: str) -> list[str]:
    """Split a list at its commas, except those between the settings of a program.

    Examples:
        >>> words_of("rnnlm:layers=1,hidden=8,gpt")
        ['rnnlm:layers=1,hidden=8', 'gpt']
    """
    words: list[str] = []
    for part in filter(None, text.split(",")):
        if words and "=" in part and ":" not in part:
            words[-1] += f",{part}"
        else:
            words.append(part)
    return words


def run_study(module: ModuleType, options: argparse.Namespace) -> dict[str, Any]:
    """Run a benchmark with the options of its command, and print its figures; the rest of the result is for --json."""
    wanted = inspect.signature(module.run).parameters
    arguments = {name: getattr(options, _destination(name), None) for name in wanted if name not in GIVEN}
    arguments |= {name: getattr(options, name) for name in ("json", "command") if name in wanted}
    with Bars() as bars:
        result: dict[str, Any] = module.run(**arguments, **({"progress": bars.show} if "progress" in wanted else {}))
    show_workloads(result.get("workloads", {}), getattr(module, "COLUMNS", ()))
    show_figures(result)
    return {"command": options.command} | result


def show_workloads(rows: dict[str, dict[str, float]], columns: Iterable[str]) -> None:
    """Print a line for each workload."""
    if columns:
        print(f"{'program':<16}" + "".join(f"{column:>24}" for column in columns))
        for name, row in rows.items():
            print(f"{name:<16}" + "".join(f"{row[column]:>24.4g}" for column in columns if column in row))


def show_figures(result: dict[str, Any]) -> None:
    """Print the figures that stand alone."""
    for key, value in result.items():
        if isinstance(value, int | float):
            print(f"{key:<26} {value:.4g}")
        elif isinstance(value, list) and value and not isinstance(value[0], dict | list):
            print(f"{key:<26} {', '.join(str(entry) for entry in value)}")
        elif isinstance(value, dict) and all(isinstance(entry, int | float) for entry in value.values()):
            print(f"{key:<26} " + ", ".join(f"{name} {entry:.4g}" for name, entry in value.items()))
