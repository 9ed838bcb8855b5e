"""The `gst` command line. Errors of the user print one line and exit 2."""

from __future__ import annotations

import argparse
import csv
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gst.bench.commands import add_benchmarks
from gst.progress import Bars

if TYPE_CHECKING:
    from gst.data.source import GraphSource

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

    demo = _command(
        commands,
        "demo",
        _demo,
        "the whole loop on the devices found: capture, measure, learn, place, report",
        "gst demo\ngst demo --program inception --json runs/demo.json",
    )
    demo.add_argument("--program", default="rnnlm", help="a bundled program or MODULE:FUNCTION (default: %(default)s)")
    demo.add_argument("--devices", help="names separated by commas, see gst devices (default: all of them)")
    demo.add_argument(
        "--separate-memory",
        action="store_true",
        help="give each CPU device a memory of its own: values are copied, as between accelerators",
    )
    demo.add_argument("--out", type=Path, default=Path("runs/demo"), help="directory of results (default: %(default)s)")
    demo.add_argument(
        "--budget", type=int, default=40, help="plans to measure during the search (default: %(default)s)"
    )
    demo.add_argument("--seed", type=int, default=0, help="of the search (default: %(default)s)")
    demo.add_argument("--resume", action="store_true", help="go on with the measurements in --out")

    prepare = _command(
        commands,
        "prepare",
        _prepare,
        "cut graphs into segments and write the segment store",
        "gst prepare 'data/layout/xla/random/train/*.npz' --max-nodes 2000\n"
        "gst prepare synthetic:200000 --method contiguous\n"
        "gst prepare elf --root /usr --label language\n"
        "gst prepare elf --root /usr/lib --label call_depth --limit 100\n"
        "gst prepare malnet data/malnet-graphs-tiny --part train --splits data/split_info_tiny/type\n"
        "gst prepare tpugraphs --root data/tpugraphs --collection layout/xla/random --part train\n"
        "gst prepare tpugraphs --root data/tpugraphs",
    )
    prepare.add_argument(
        "dataset",
        nargs="+",
        help="TpuGraphs npz files or patterns; synthetic:NODES; elf, the call graphs of this machine's binaries; "
        "malnet FOLDER; tpugraphs, its collections below --root, all that are there unless named",
    )
    prepare.add_argument(
        "--root", help="elf: folder to search (default: /usr); tpugraphs: its folder (default: ~/data/tpugraphs)"
    )
    elf = prepare.add_argument_group("elf")
    elf.add_argument(
        "--label",
        choices=("language", "section", "call_depth"),
        help="target: programming language, section of the Debian package, or depth of calls (default: language)",
    )
    elf.add_argument("--min-bytes", type=int, help="leave out smaller files (default: 100000)")
    elf.add_argument("--limit", type=int, metavar="N", help="at most N binaries, evenly from all (default: all)")
    elf.add_argument(
        "--min-groups", type=int, metavar="N", help="leave out classes of fewer groups of packages (default: 5)"
    )
    malnet = prepare.add_argument_group("malnet and tpugraphs")
    malnet.add_argument(
        "--part",
        choices=("all", "train", "val", "valid", "test"),
        help="as published: val of malnet, valid of tpugraphs",
    )
    malnet.add_argument("--splits", help="folder of train.txt, val.txt and test.txt, for --part")
    tpugraphs = prepare.add_argument_group("tpugraphs")
    tpugraphs.add_argument("--collection", metavar="NAME", help="layout/xla/random, tile/xla, ... (default: all there)")
    tpugraphs.add_argument("--eval-indices", metavar="JSON", help="only the configurations listed, as published")
    prepare.add_argument(
        "--store", type=Path, default=Path("runs/stores"), help="where stores live (default: %(default)s)"
    )
    prepare.add_argument("--max-nodes", type=int, default=1000, help="most nodes of a segment (default: %(default)s)")
    prepare.add_argument(
        "--method", default="metis", help="a partitioner, or auto: the smallest cut found (default: %(default)s)"
    )
    prepare.add_argument("--halo", type=int, default=0, help="hops of context around a segment (default: %(default)s)")
    prepare.add_argument("--seed", type=int, default=0, help="of the partitioner (default: %(default)s)")

    data = _command(
        commands,
        "data",
        _data,
        "which parts of a published dataset are here, and how to get them",
        "gst data tpugraphs --root data/tpugraphs\ngst data tpugraphs --print-download > download.sh",
    )
    data.add_argument("dataset", choices=("tpugraphs",))
    data.add_argument("--root", help="folder of the dataset (default: ~/data/tpugraphs)")
    data.add_argument("--print-download", action="store_true", help="print the commands that download all of it")

    rank = _command(
        commands,
        "rank",
        _rank,
        "order the configurations of a program with a trained model",
        "gst rank runs/alexnet_layout/checkpoints/best.ckpt program.npz --top 10 --out scores.csv",
    )
    rank.add_argument("checkpoint", type=Path)
    rank.add_argument("file", type=Path, help="a TpuGraphs npz file")
    rank.add_argument("--top", type=int, default=10, help="how many of the fastest to print (default: %(default)s)")
    rank.add_argument("--out", type=Path, help="CSV with config,score for every configuration of the file")

    trace = _command(
        commands,
        "trace",
        _trace,
        "capture a PyTorch training step, or read an XLA program, as a graph",
        "gst trace rnnlm\ngst trace mypackage.training:make_step --json step.json\n"
        "gst trace --hlo program.txt --out program.npz",
    )
    source = trace.add_mutually_exclusive_group(required=True)
    source.add_argument("program", nargs="?", help="a bundled program or MODULE:FUNCTION")
    source.add_argument(
        "--hlo", type=Path, metavar="FILE", help="an XLA program: HLO text, or the protobuf of a module or of TpuGraphs"
    )
    trace.add_argument(
        "--out", type=Path, metavar="FILE.npz", help="with --hlo: the graph as a TpuGraphs file, for gst rank"
    )

    bench = commands.add_parser("bench", help="measure this machine and this program on it")
    add_benchmarks(bench.add_subparsers(metavar="WHAT", required=True), _command)
    _command(commands, "devices", _devices, "the devices this process may use", "gst devices --json devices.json")
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


def _prepare(options: argparse.Namespace) -> dict[str, Any]:
    from gst.data.named import OPTIONS, datasets

    names = {name for taken in OPTIONS.values() for name in taken}
    given = {name: value for name in sorted(names) if (value := getattr(options, name)) is not None}
    results = [_prepare_one(source, options) for source in datasets(options.dataset, **given)]
    return results[0] if len(results) == 1 else {"stores": results}


def _prepare_one(source: GraphSource, options: argparse.Namespace) -> dict[str, Any]:
    from collections import Counter

    from tqdm import tqdm

    from gst.data import ElfBinaries, MalNet, TpuGraphsCollection
    from gst.data.named import expected_graphs
    from gst.store import open_store, prepare

    with tqdm(desc="searching", unit=" graphs") as bar:
        bar.reset(expected_graphs(source))
        bar.set_description("preparing")
        directory = prepare(
            source, options.store, options.max_nodes, options.method, options.halo, options.seed,
            lambda name: bar.update() and None,
        )  # fmt: skip
    graphs = open_store(directory)
    result: dict[str, Any] = {
        "store": str(directory),
        "graphs": len(graphs),
        "nodes": sum(graph.num_nodes for graph in graphs),
        "segments": sum(graph.num_segments for graph in graphs),
        "configs": sum(graph.num_configs for graph in graphs),
        "bytes": sum(graph.nbytes() for graph in graphs),
        "edge_cut": max(graph.edge_cut for graph in graphs),
        "balance": max(graph.balance for graph in graphs),
    }
    if isinstance(source, TpuGraphsCollection):
        result |= {"collection": source.collection, "part": source.part}
        print(f"{source.collection}, part {source.part}:")
    print(
        "{store}: {graphs} graphs, {nodes} nodes in {segments} segments, {configs} configurations; "
        "worst edge cut {edge_cut:.3f}, worst balance {balance:.2f}".format(**result)
    )
    if isinstance(source, ElfBinaries | MalNet):
        result["classes"] = list(source.classes)
        print("classes: " + (", ".join(f"{i} {name}" for i, name in enumerate(source.classes)) or "none, a regression"))
    if isinstance(source, ElfBinaries):
        result["skipped"] = dict(Counter(source.skipped.values()).most_common())
        print(
            "skipped: " + (", ".join(f"{count} {reason}" for reason, count in result["skipped"].items()) or "nothing")
        )
    return result


def _data(options: argparse.Namespace) -> dict[str, Any]:
    from gst.data.collections import USUAL_ROOT, download_commands, inventory

    root = options.root or USUAL_ROOT
    if options.print_download:
        print("\n".join(commands := download_commands(root)))
        return {"commands": commands}
    files = inventory(root)
    for name, count in files.items():
        print(f"{name:<26} {f'{count} files' if count else 'absent'}")
    print(f"below {root}; gst data tpugraphs --print-download tells how to get what is absent")
    return {"root": root, "files": files}


def _rank(options: argparse.Namespace) -> dict[str, Any]:
    from gst.training.rank import rank

    scores = rank(options.checkpoint, options.file)
    order = scores.argsort(kind="stable")
    print(f"{'config':>8}  score (lower = faster)")
    for config in order[: options.top]:
        print(f"{config:>8}  {scores[config]:.6g}")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        partial = options.out.with_name(options.out.name + ".partial")
        with partial.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["config", "score"])
            writer.writerows((config, repr(float(score))) for config, score in enumerate(scores))
        partial.replace(options.out)
    return {"file": str(options.file), "num_configs": len(scores), "top": order[: options.top].tolist()}


def _demo(options: argparse.Namespace) -> dict[str, Any]:
    # Read when torch is loaded: spinning OpenMP threads would steal the cores of other devices.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from gst.placement.demo import demo
    from gst.report import headline

    with Bars() as bars:
        names = options.devices.split(",") if options.devices else None
        result = demo(
            options.program,
            options.out,
            names,
            options.separate_memory,
            options.budget,
            options.seed,
            options.resume,
            options.command,
            bars.show,
        )
    width = max(len(name) for name in result["plans"])
    print(f"{'plan':<{width}}  median ms  95 % interval")
    ran = {name: plan for name, plan in result["plans"].items() if plan["median_ms"] is not None}
    for name, plan in sorted(ran.items(), key=lambda item: item[1]["median_ms"]):
        print(f"{name:<{width}}  {plan['median_ms']:9.2f}  {plan['low_ms']:.2f} .. {plan['high_ms']:.2f}")
    print(headline(result))
    print(f"Look at {options.out / 'report.html'}")
    return result


def _trace(options: argparse.Namespace) -> dict[str, Any]:
    if options.hlo:
        return _trace_hlo(options)
    if options.out:
        raise ValueError("--out goes with --hlo: a PyTorch program does not have the features of TpuGraphs")
    from collections import Counter

    from gst.programs import capture, resolve
    from gst.programs.features import flops

    program = capture(resolve(options.program))
    kinds = Counter(operation.name.rsplit("_", 1)[0] for operation in program.operations)
    result: dict[str, Any] = {
        "program": program.name,
        "num_nodes": program.num_nodes,
        "num_edges": program.graph.num_edges,
        "num_groups": program.num_groups,
        "flops": float(flops(program.operations).sum()),
        "operations": dict(kinds.most_common()),
    }
    print("{program}: {num_nodes} nodes, {num_edges} edges, {num_groups} groups, {flops:.3g} FLOPs".format(**result))
    print("most frequent: " + ", ".join(f"{name} {count}" for name, count in kinds.most_common(8)))
    return result


def _trace_hlo(options: argparse.Namespace) -> dict[str, Any]:
    from collections import Counter

    from gst.data.hlo import OPCODE_NAMES, read_hlo, write_npz

    graph = read_hlo(options.hlo, merge=False)
    kinds = Counter(OPCODE_NAMES[number] for number in graph.opcodes.tolist())
    configurable = Counter(OPCODE_NAMES[number] for number in graph.opcodes[graph.config_nodes].tolist())
    result: dict[str, Any] = {
        "program": graph.name,
        "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges,
        "num_configurable": len(graph.config_nodes),
        "num_configs": graph.num_configs,
        "opcodes": dict(kinds.most_common()),
        "configurable": dict(configurable.most_common()),
    }
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


def _devices(options: argparse.Namespace) -> dict[str, Any]:
    from dataclasses import asdict

    from gst.devices import discover

    devices = discover()
    for device in devices:
        print(f"{device.name:<8} {device.threads} thread(s), memory {device.memory}, {device.description}")
    return {"devices": [asdict(device) for device in devices]}


if __name__ == "__main__":
    sys.exit(main())
