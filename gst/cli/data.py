"""Commands `gst prepare`, `gst data` and `gst trace`: graphs of datasets, by name or by class, and of programs."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gst.data.source import GraphSource

CLASS = re.compile(r"(?!synthetic:)([^\W\d][\w.]*):([^\W\d]\w*)")
DATASETS = "synthetic:NODES, tpugraphs, TpuGraphs npz files and patterns of them, or the MODULE:CLASS of a GraphSource"
OPTIONS = ("collection", "eval_indices", "part", "root")  # of tpugraphs alone
KINDS = ("cpu", "cuda")  # of gst.programs.operation, which imports torch
ACCELERATOR = KINDS[1]


def add(commands: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `prepare`, `data` and `trace` to the parser; `command` is `gst.cli.command_line.add_command`."""
    prepare = command(
        commands, "prepare", _prepare, "cut graphs into segments and write the segment store",
        "gst prepare 'data/layout/xla/random/train/*.npz' --max-nodes 2000\n"
        "gst prepare synthetic:200000 --method contiguous\n"
        "gst prepare gst.data:MalNet --arg root=malnet-graphs-tiny --arg part=train --arg splits=split_info_tiny/type\n"
        "gst prepare tpugraphs --root data/tpugraphs --collection layout/xla/random --part train\n"
        "gst prepare gst.placement:MeasuredPlans --arg 'directories=[runs/measured/*]'\n"
        "gst prepare mypackage.graphs:Circuits --arg root=data --arg limit=100\n"
        "gst prepare 's3://bucket/programs/*.npz' --store s3://bucket/stores --workers ray://HOST:PORT",
    )  # fmt: skip
    prepare.add_argument(
        "dataset", nargs="+",
        help="TpuGraphs npz files or patterns; synthetic:NODES; tpugraphs, all its collections below --root unless one "
        "is named; or MODULE:CLASS, a subclass of gst.data.GraphSource that Python can import from here",
    )  # fmt: skip
    prepare.add_argument(
        "--arg", action="append", default=[], metavar="NAME=VALUE",
        help="argument of the constructor of MODULE:CLASS, as YAML; repeat it for each",
    )  # fmt: skip
    prepare.add_argument("--root", help="tpugraphs: its folder (default: ~/data/tpugraphs)")
    prepare.add_argument("--collection", metavar="NAME", help="tpugraphs: layout/xla/random, ... (default: all)")
    prepare.add_argument("--eval-indices", metavar="JSON", help="tpugraphs: file of the configurations to take")
    prepare.add_argument("--part", choices=("all", "train", "valid", "test"), help="tpugraphs: published part")
    prepare.add_argument("--store", default="runs/stores", help="folder or address (default: %(default)s)")
    prepare.add_argument("--max-nodes", type=int, default=1000, help="most nodes of a segment (default: %(default)s)")
    prepare.add_argument(
        "--method", default="metis", metavar="NAME", choices=Partitioners(),
        help="partitioner: %(choices)s (default: %(default)s)",
    )  # fmt: skip
    prepare.add_argument("--halo", type=int, default=0, help="hops of context around a segment (default: %(default)s)")
    prepare.add_argument("--seed", type=int, default=0, help="seed of the partitioner (default: %(default)s)")
    prepare.add_argument(
        "--workers", metavar="ADDRESS",
        help="hosts that read and cut: ray, the cluster on this host, or ray://HOST:PORT (default: this host)",
    )  # fmt: skip
    data = command(
        commands, "data", _data, "print the commands that download a published dataset",
        "gst data tpugraphs --root data/tpugraphs > download.sh",
    )  # fmt: skip
    data.add_argument("dataset", choices=("tpugraphs",))
    data.add_argument("--root", help="folder of the dataset (default: ~/data/tpugraphs)")
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


class Partitioners:
    """Names of partitioners, which are imported when the names are read."""

    def __iter__(self) -> Iterator[str]:
        from partitioners import METHODS

        return iter(METHODS)


def _prepare(options: argparse.Namespace) -> dict[str, Any]:
    values = {name: value for name in OPTIONS if (value := getattr(options, name)) is not None}
    results = [_prepare_one(source, options) for source in datasets(options.dataset, options.arg, **values)]
    return results[0] if len(results) == 1 else {"stores": results}


def _prepare_one(source: GraphSource, options: argparse.Namespace) -> dict[str, Any]:
    from collections import Counter

    from gst.data import TpuGraphsCollection
    from gst.graphs.store import open_store, prepare
    from gst.util.progress import bar

    with bar(desc="searching", unit=" graphs") as shown:
        shown.reset(len(source) if hasattr(source, "__len__") else None)
        shown.set_description("preparing")
        directory = prepare(
            source, options.store, options.max_nodes, options.method, options.halo, options.seed,
            lambda name: shown.update() and None, workers=options.workers,
        )  # fmt: skip
    graphs = open_store(directory)
    totals = {name: sum(getattr(graph, f"num_{name}") for graph in graphs) for name in ("nodes", "segments", "configs")}
    result: dict[str, Any] = {
        "store": str(directory), "graphs": len(graphs), **totals, "bytes": sum(graph.nbytes() for graph in graphs),
        "edge_cut": max(graph.edge_cut for graph in graphs), "balance": max(graph.balance for graph in graphs),
    }  # fmt: skip
    if isinstance(source, TpuGraphsCollection):
        result |= {"collection": source.collection, "part": source.part}
        print(f"{source.collection}, part {source.part}:")
    print(
        "{store}: {graphs} graphs, {nodes} nodes in {segments} segments, {configs} configurations; "
        "worst edge cut {edge_cut:.3f}, worst balance {balance:.2f}".format(**result)
    )
    if hasattr(source, "classes"):
        result["classes"] = list(source.classes)
        print("classes: " + (", ".join(f"{i} {name}" for i, name in enumerate(source.classes)) or "none, a regression"))
    if hasattr(source, "skipped"):
        counts = source.skipped if isinstance(source.skipped, Counter) else Counter(source.skipped.values())
        result["skipped"] = dict((+counts).most_common())
        print(
            "skipped: " + (", ".join(f"{number} {reason}" for reason, number in result["skipped"].items()) or "nothing")
        )
    return result


def _data(options: argparse.Namespace) -> dict[str, Any]:
    from gst.data.collections import COLLECTIONS, PARTS, USUAL_ROOT, download_command

    root = options.root or USUAL_ROOT
    commands = [download_command(name, part, root) for name in COLLECTIONS for part in PARTS]
    print("\n".join(commands))
    return {"commands": commands}


def datasets(words: Sequence[str], arguments: Sequence[str] = (), **options: Any) -> Sequence[GraphSource]:
    """Return the datasets that the words of a command name, as `dataset`; `tpugraphs` names all its parts."""
    from gst.data.collections import USUAL_ROOT, parts_below

    if words[0] != "tpugraphs":
        return [dataset(words, arguments, **options)]
    _check("tpugraphs", words[1:], arguments, options)
    return parts_below(**{"root": USUAL_ROOT} | options)


def dataset(words: Sequence[str], arguments: Sequence[str] = (), **options: Any) -> GraphSource:
    """Return the dataset that the words of a command name: one of `DATASETS`.

    Examples:
        >>> dataset(["synthetic:500"]).num_nodes
        500
        >>> dataset(["gst.data:SyntheticPrograms"], ["num_nodes=500"]).num_nodes
        500

    Args:
        arguments: `NAME=VALUE` of the constructor of a class.
        options: of a dataset by name, see `OPTIONS`.

    Raises:
        ValueError: there is no such dataset, module or class, or it does not take these words, arguments or options.
    """
    from gst.data import SyntheticPrograms, TpuGraphs

    name, rest = words[0], list(words[1:])
    if match := CLASS.fullmatch(name):
        _check(name, rest, (), options)
        return _of_class(name, match[1], match[2], arguments)
    if name.startswith("synthetic:") or name == "synthetic":
        _check(name, rest, arguments, options)
        number = name.partition(":")[2]
        if not number.isascii() or not number.isdigit() or not int(number):
            raise ValueError(f"{name}: want the number of nodes, such as synthetic:200000")
        return SyntheticPrograms(num_nodes=int(number))
    for word in words:
        if not (word.endswith(".npz") or set(word) & set("*?[/") or Path(word).exists()):
            raise ValueError(f"there is no dataset {word!r}; there are {DATASETS}")
    _check(name, (), arguments, options)
    return TpuGraphs(words)


def _of_class(name: str, module_name: str, class_name: str, arguments: Sequence[str]) -> GraphSource:
    """Import a class and call it with arguments of the types in its signature."""
    from inspect import signature

    from jsonargparse import ArgumentError, ArgumentParser

    from gst.data.source import GraphSource
    from gst.util.imports import imported

    kind = getattr(imported(module_name, repr(name)), class_name, None)
    if not (isinstance(kind, type) and issubclass(kind, GraphSource)):
        raise ValueError(f"module {module_name!r} has no subclass {class_name!r} of gst.data.GraphSource")
    parser = ArgumentParser(exit_on_error=False, add_help=False, allow_abbrev=False)
    parser.add_class_arguments(kind)
    try:
        values = parser.parse_args([f"--{each}" for each in arguments])
        values = getattr(parser, "instantiate", parser.instantiate_classes)(values)  # arguments that are objects
        return kind(**values.as_dict())
    except (ArgumentError, TypeError) as error:
        names = ", ".join(signature(kind).parameters) or "nothing"
        raise ValueError(f"{name}: {error}; give --arg NAME=VALUE for {names}") from error


def _check(name: str, rest: Sequence[str], arguments: Sequence[str], options: dict[str, Any]) -> None:
    """Refuse words after the name of a dataset, and arguments and options that it does not take."""
    if rest:
        raise ValueError(f"{name} stands alone; prepare {rest[0]} by a command of its own")
    if arguments:
        raise ValueError(f"{name} takes no --arg; only MODULE:CLASS does")
    for option in options:
        if name != "tpugraphs" or option not in OPTIONS:
            taker = "tpugraphs" if option in OPTIONS else "no dataset"
            raise ValueError(f"{name} takes no option {option}; {taker} does")


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
