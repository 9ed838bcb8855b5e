"""`python -m experiments.reproductions.timm estimate`: its options, its run and its output."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.reproductions.graphnet.reader import FxSource
    from experiments.reproductions.timm.step_time.xla import XlaProgram
    from gst.programs import Program

PRECISIONS = {"fp32": "fp32", "amp": "amp", "half": "half", "fp16": "half", "bf16": "half"}
FILES = (".hlo", ".mlir", ".txt", ".pb")  # endings of names of XLA programs
NAME = "python -m experiments.reproductions.timm estimate"
SHOWN = 5  # classes of kernels of each machine


def add_estimate(commands: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the subcommand to the parser; `command` is `gst.cli.command_line.add_command`."""
    estimate = command(
        commands, "estimate", _estimate, "estimate the runtime of a program on machines that are not here",
        f"{NAME} inception --on rtx4090,h100\n"
        f"{NAME} mypackage.training:make_step --on a100 --compile --json estimate.json\n"
        f"{NAME} samples/resnet18 --on rtx3060,my_machine.json --batch 64 --precision amp\n"
        f"{NAME} step.hlo --on h100        # jax.jit(f).lower(x).as_text(dialect='hlo'), or of .compile()\n"
        f"{NAME} step.mlir --on a100,h100  # StableHLO, jax.jit(f).lower(x).as_text(); by jaxlib",
    )  # fmt: skip
    estimate.add_argument(
        "program", nargs="?",
        help="what `gst place` takes (a bundled program, transformers:MODEL or MODULE:FUNCTION), the folder of a "
        "GraphNet sample, or a file with an XLA program: HLO text or protobuf, or StableHLO text",
    )  # fmt: skip
    machines = "names with commas, or .json files with peak rates (default: %(default)s); `--on list` lists them"
    estimate.add_argument("--on", default="rtx4090,a100,h100", metavar="MACHINES", help=machines)
    estimate.add_argument("--batch", type=int, help="of a GraphNet sample (default: 1); a captured program has its own")
    estimate.add_argument("--compile", action="store_true", help="as compiled by TorchInductor")
    estimate.add_argument(
        "--precision", choices=PRECISIONS, default="fp32",
        help="fp32: as captured; half, fp16, bf16: weights and inputs of 16 bits; amp: autocast (default: %(default)s)",
    )  # fmt: skip


def _estimate(options: argparse.Namespace) -> dict[str, Any]:
    from experiments.reproductions.timm.step_time.estimate import estimate
    from experiments.reproductions.timm.step_time.machines import machine_of
    from experiments.reproductions.timm.step_time.xla import XlaProgram

    machines = [name.strip() for name in options.on.split(",") if name.strip()]
    if options.on == "list":
        return _list()
    if not machines:
        raise ValueError("--on names no machine; --on list lists them")
    if options.program is None:
        raise ValueError(f"give a program, such as inception ({NAME} --help)")
    for name in machines:  # before a program is captured
        machine_of(name)
    program = _program(options.program)
    _check(options, program)
    results = [
        estimate(program, (), name, PRECISIONS[options.precision], options.compile, options.batch or 1)  # type: ignore[arg-type]
        for name in machines
    ]
    first = results[0]
    print(f"{first.program}: {first.parameter_bytes / 2**20:,.1f} MiB of parameters, "
          f"at most {first.activation_bytes / 2**20:,.1f} MiB of other values")  # fmt: skip
    if isinstance(program, XlaProgram):
        fused = "fused by XLA" if program.is_compiled else "not compiled: fused by the rule of TorchInductor"
        loops = f"; {program.unknown_loops} loops of unknown trip count, each counted once"
        gflop = program.counts.flops / 1e9
        print(f"{gflop:,.4g} GFLOP as XLA counts them; {fused}{loops if program.unknown_loops else ''}")
    print(f"{'machine':<16}{'ms':>10}{'90 % of such programs':>26}   costliest")
    for each in results:
        least, most = each.interval
        costs = ", ".join(f"{cost.kind} {cost.milliseconds / each.milliseconds:.0%}" for cost in each.costs[:SHOWN])
        print(f"{each.machine:<16}{each.milliseconds:>10.4g}{f'{least:.4g} to {most:.4g}':>26}   {costs}")
    for basis in dict.fromkeys(each.basis for each in results):
        names = ", ".join(each.machine for each in results if each.basis == basis)
        print(f"{names}: {basis}.")
    return {"program": first.program, "estimates": [each.to_dict() for each in results]}


def _check(options: argparse.Namespace, program: Program | FxSource | XlaProgram) -> None:
    """Raises:
    ValueError: the program has no use for an option.
    """
    from experiments.reproductions.timm.step_time.xla import XlaProgram

    if options.batch is not None and (options.batch < 1 or not hasattr(program, "weights")):
        raise ValueError(
            f"--batch {options.batch} is for GraphNet samples, from 1; a captured step has its own batch, such as "
            "inception:batch=64"
        )
    if isinstance(program, XlaProgram) and (options.compile or options.precision != "fp32"):
        raise ValueError(
            f"{options.program} is an XLA program: it has its own types and is compiled by XLA; leave --compile and "
            "--precision out"
        )


def _list() -> dict[str, Any]:
    from experiments.reproductions.timm.step_time.machines import MACHINES

    print(f"{'machine':<18}{'16-bit TFLOP/s':>15}{'32-bit':>9}{'GB/s':>8}{'cache, MB':>11}{'cores':>7}")
    for name, each in MACHINES.items():
        print(f"{name:<18}{each.half:>15}{each.single:>9}{each.bandwidth:>8}{each.cache:>11}{each.cores:>7}")
    return {"machines": {name: each._asdict() for name, each in MACHINES.items()}}


def _program(name: str) -> Program | FxSource | XlaProgram:
    """Return a captured step, the one GraphNet sample of a folder, or the XLA program of a file."""
    if not Path(name).exists():
        if ":" not in name and (Path(name).suffix in FILES or "/" in name):
            raise ValueError(f"{name}: there is no such file or folder (what may be given: {NAME} --help)")
        from gst.programs.traces import traced

        return traced(name)
    if Path(name).is_file():
        from experiments.reproductions.timm.step_time.xla import read_xla

        return read_xla(name)
    from experiments.reproductions.graphnet.reader import read_sources

    sources = list(read_sources(Path(name))) if Path(name).is_dir() else []
    if not sources:
        raise ValueError(f"{name} holds no GraphNet sample: want a folder with model.py and weight_meta.py")
    if len(sources) != 1:
        names = ", ".join(each.name for each in sources[:5])
        raise ValueError(f"{name} holds {len(sources)} samples ({names}, ...); name the folder of one")
    return replace(sources[0], name=sources[0].name or Path(name).resolve().name)
