"""`gst trace`: its options, its run and its output."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

KINDS = ("cpu", "cuda")  # of gst.programs.operation, which imports torch
ACCELERATOR = KINDS[1]


def add(commands: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the subcommand to the parser; `command` is `gst.cli.command_line.add_command`."""
    trace = command(
        commands, "trace", _trace,
        "capture a PyTorch step of training or inference, or read an XLA program, as a graph",
        "gst trace rnnlm\ngst trace rnnlm:layers=8,hidden=512\n"
        "gst trace mypackage.training:make_step --json step.json\n"
        f"gst trace gpt --for {ACCELERATOR}\n"
        "gst trace --hlo program.txt --out program.npz",
    )  # fmt: skip
    source = trace.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "program", nargs="?",
        help="a bundled program (rnnlm, gnmt, transformer_xl, wavenet, inception, gpt, moe; with "
        "sizes: rnnlm:layers=8,hidden=512), or MODULE:FUNCTION",
    )  # fmt: skip
    source.add_argument(
        "--hlo", type=Path, metavar="FILE", help="an XLA program: the protobuf of a module or of TpuGraphs, or HLO text"
    )
    trace.add_argument(
        "--for", dest="kind", choices=KINDS, default="cpu",
        help=f"kind of device whose operators are captured; {ACCELERATOR} needs no GPU (default: %(default)s)",
    )  # fmt: skip
    trace.add_argument(
        "--out", type=Path, metavar="FILE.npz", help="with --hlo: the graph as a TpuGraphs file, for gst rank"
    )


def _trace(options: argparse.Namespace) -> dict[str, Any]:
    if options.hlo:
        return _trace_hlo(options)
    if options.out:
        raise ValueError("--out goes with --hlo: a PyTorch program does not have the features of TpuGraphs")
    from collections import Counter

    from gst.programs.features import flops
    from gst.programs.traces import TRACES, trace_path, traced

    program = traced(options.program, kind=options.kind)
    path = trace_path(options.program, TRACES, options.kind)
    kinds = Counter(operation.name.rsplit("_", 1)[0] for operation in program.operations)
    result: dict[str, Any] = {
        "program": program.name, "kind": options.kind, "num_nodes": program.num_nodes,
        "num_edges": program.graph.num_edges, "num_groups": program.num_groups,
        "flops": float(flops(program.operations).sum()), "operations": dict(kinds.most_common()),
        "cached": str(path) if path.is_dir() else None,
    }  # fmt: skip
    print("{program}: {num_nodes} nodes, {num_edges} edges, {num_groups} groups, {flops:.3g} FLOPs".format(**result))
    print("most frequent: " + ", ".join(f"{name} {count}" for name, count in kinds.most_common(8)))
    if result["cached"]:
        print(f"Kept in {result['cached']}")
    return result


def _trace_hlo(options: argparse.Namespace) -> dict[str, Any]:
    if options.kind != "cpu":
        raise ValueError("--for goes with a PyTorch program: an XLA program is read as it is")
    from collections import Counter

    from gst.data.hlo import OPCODE_NAMES, read_hlo, write_npz

    graph = read_hlo(options.hlo, merge=False)
    kinds = Counter(OPCODE_NAMES[number] for number in graph.opcodes.tolist())
    configurable = Counter(OPCODE_NAMES[number] for number in graph.opcodes[graph.config_nodes].tolist())
    result: dict[str, Any] = {
        "program": graph.name, "num_nodes": graph.num_nodes, "num_edges": graph.num_edges,
        "num_configurable": len(graph.config_nodes), "num_configs": graph.num_configs,
        "opcodes": dict(kinds.most_common()), "configurable": dict(configurable.most_common()),
    }  # fmt: skip
    print(
        "{program}: {num_nodes} nodes, {num_edges} edges, {num_configurable} configurable nodes, "
        "{num_configs} configuration(s)".format(**result)
    )
    for label, counter in (("opcodes", kinds), ("configurable", configurable)):
        print(f"{label}: " + (", ".join(f"{name} {count}" for name, count in counter.most_common()) or "none"))
    if options.out:
        write_npz(graph, options.out)
        print(f"Look at {options.out}")
    return result
