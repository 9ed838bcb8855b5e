"""The `gst` command line. Errors of the user print one line and exit 2."""

from __future__ import annotations

import argparse
import csv
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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
        "gst prepare synthetic:200000 --method contiguous",
    )
    prepare.add_argument("dataset", nargs="+", help="TpuGraphs npz files or patterns, or synthetic:NODES")
    prepare.add_argument(
        "--store", type=Path, default=Path("runs/stores"), help="where stores live (default: %(default)s)"
    )
    prepare.add_argument("--max-nodes", type=int, default=1000, help="most nodes of a segment (default: %(default)s)")
    prepare.add_argument(
        "--method", default="metis", help="partitioner: metis, contiguous or random (default: %(default)s)"
    )
    prepare.add_argument("--halo", type=int, default=0, help="hops of context around a segment (default: %(default)s)")
    prepare.add_argument("--seed", type=int, default=0, help="of the partitioner (default: %(default)s)")

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
        "capture a PyTorch training step as a graph",
        "gst trace rnnlm\ngst trace mypackage.training:make_step --json step.json",
    )
    trace.add_argument("program", help="a bundled program or MODULE:FUNCTION")

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
    from tqdm import tqdm

    from gst.data import GraphSource, SyntheticPrograms, TpuGraphs
    from gst.store import open_store, prepare

    first = options.dataset[0]
    source: GraphSource
    if first.startswith("synthetic:"):
        if len(options.dataset) > 1:
            raise ValueError(f"{first} stands alone; prepare {options.dataset[1]} by a command of its own")
        source = SyntheticPrograms(num_nodes=int(first.removeprefix("synthetic:")))
    else:
        source = TpuGraphs(options.dataset)
    with tqdm(desc="preparing", unit=" graphs") as bar:
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
    print(
        "{store}: {graphs} graphs, {nodes} nodes in {segments} segments, {configs} configurations; "
        "worst edge cut {edge_cut:.3f}, worst balance {balance:.2f}".format(**result)
    )
    return result


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

    with _Bars() as bars:
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


def _devices(options: argparse.Namespace) -> dict[str, Any]:
    from dataclasses import asdict

    from gst.devices import discover

    devices = discover()
    for device in devices:
        print(f"{device.name:<8} {device.threads} thread(s), memory {device.memory}, {device.description}")
    return {"devices": [asdict(device) for device in devices]}


class _Bars:
    """One progress bar with time left for each thing that is going on, the last one on top of the others."""

    def __init__(self) -> None:
        self._bar: Any = None

    def __enter__(self) -> _Bars:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def show(self, what: str, done: int, total: int) -> None:
        from tqdm import tqdm

        if self._bar is None or self._bar.desc != f"{what}: ":
            self.__exit__()
            self._bar = tqdm(total=total, desc=what, leave=False, dynamic_ncols=True)
        self._bar.total = total
        self._bar.update(done - self._bar.n)


if __name__ == "__main__":
    sys.exit(main())
