"""`gst rank` and `gst sweep`: their options, runs and output. `gst fit` and the like are in `gst.training.cli`."""

from __future__ import annotations

import argparse
import csv
import shlex
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gst.util.progress import Bars
from gst.util.writing import atomic_write

if TYPE_CHECKING:
    from gst.training.sweeps import Sweep, Trial

AS_IT_SHOULD_BE = (
    r"Attribute '(encoder|head|loss)' is an instance of `nn\.Module` and is already saved",  # built from settings
    r"Found keys that are not in the model state dict .*\['estimator\.table\._extra_state'\]",  # exact: reads no table
)
"""Warnings of Lightning about loading a checkpoint that do not apply here."""
USUAL_NUMBER = 20
SHOWN = 10  # trials of the table


def add(commands: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `rank` and `sweep` to the parser; `command` is `gst.cli.command_line.add_command`."""
    rank = command(
        commands, "rank", _rank, "order the configurations of a program with a trained model",
        "gst rank runs/alexnet_layout/checkpoints/best.ckpt program.npz --top 10 --out scores.csv\n"
        "gst rank runs/giant_synthetic/checkpoints/best.ckpt synthetic:50000 --explain",
    )  # fmt: skip
    rank.add_argument("checkpoint", help="what gst fit wrote, such as best.ckpt; a file or an address")
    rank.add_argument("file", help="a TpuGraphs npz file or the address of one, or synthetic:NODES")
    trust = "your package with the encoder of the checkpoint, which is imported (may be repeated)"
    rank.add_argument("--trust", action="append", default=[], metavar="PACKAGE", help=trust)
    rank.add_argument("--top", type=int, default=10, help="how many of the fastest to print (default: %(default)s)")
    rank.add_argument("--out", type=Path, help="CSV with config,score for every configuration of the file")
    explain = "print the segments and operations whose configuration separates the slowest from the fastest"
    rank.add_argument("--explain", action="store_true", help=explain)
    sweep = command(
        commands, "sweep", _sweep,
        "run the trials of a W&B sweep file here, without the service and without an account",
        "gst sweep --local experiments/sweeps/placement.yaml --trials 4\n"
        "gst sweep --local experiments/sweeps/placement.yaml --trials 8 --resume\n"
        "gst sweep --local experiments/sweeps/gst_variants.yaml --workers ray://HOST:10001\n"
        "gst sweep --local experiments/sweeps/cost_model.yaml --out runs/cost_model --json runs/cost_model.json",
    )  # fmt: skip
    sweep.add_argument("file", type=Path, help="YAML, as `wandb sweep` takes it")
    sweep.add_argument("--local", action="store_true", help="run the trials on this machine, by Optuna (extra `sweep`)")
    trials = f"number of trials (default: run_cap of the file, or all of a grid, or {USUAL_NUMBER})"
    sweep.add_argument("--trials", type=int, metavar="N", help=trials)
    at_once = "trials at a time (default: 1; with --workers as many as there are GPUs, else cores)"
    sweep.add_argument("--at-once", type=int, metavar="N", help=at_once)
    workers = "hosts that run the trials: ray, the cluster on this host, or ray://HOST:PORT (default: this host)"
    sweep.add_argument("--workers", metavar="ADDRESS", help=workers)
    sweep.add_argument("--seed", type=int, default=0, help="of what is drawn (default: %(default)s)")
    sweep.add_argument("--out", type=Path, metavar="DIR", help="directory of results (default: runs/sweeps/NAME)")
    sweep.add_argument("--resume", action="store_true", help="go on with what is in --out")
    sweep.set_defaults(usual_out=lambda options: Path("runs/sweeps") / options.file.stem)


def _rank(options: argparse.Namespace) -> dict[str, Any]:
    from gst.util.imports import import_torchmetrics

    import_torchmetrics()
    from gst.cli.data import dataset
    from gst.cost.explain import explain
    from gst.data.tpugraphs import OPCODE_NAMES
    from gst.training.rank import opened, score

    for expected in AS_IT_SHOULD_BE:
        warnings.filterwarnings("ignore", expected, module=r"lightning\.pytorch")
    made = next(iter(dataset([options.file]))) if options.file.startswith("synthetic:") else None
    with opened(options.checkpoint, made or options.file, options.trust) as (model, graph):
        scores = score(model, graph)
        why = explain(model.estimator, graph, scores, () if made else OPCODE_NAMES) if options.explain else None
    order = scores.argsort(kind="stable")
    print(f"{'config':>8}  score (lower = faster)")
    for config in order[: options.top]:
        print(f"{config:>8}  {scores[config]:.6g}")
    if options.out:
        with atomic_write(options.out) as file:
            writer = csv.writer(file)
            writer.writerow(["config", "score"])
            writer.writerows((config, repr(float(score))) for config, score in enumerate(scores))
        print(f"Look at {options.out}")
    if why:
        print(why["words"])
        for name, value in (*why["segments"], *why["operations"]):
            print(f"{name:<40} {value:>10.4g}  {value / (why['difference'] or float('nan')):>7.1%}")
    result = {"file": options.file, "num_configs": len(scores), "top": order[: options.top].tolist()}
    return result | ({"explained": why} if why else {})


def _sweep(options: argparse.Namespace) -> dict[str, Any]:
    if not options.local:
        raise ValueError(
            f"W&B's own sweeps need its service and an account: `wandb sweep {options.file}`, then `wandb agent "
            f"ENTITY/PROJECT/SWEEP` as that prints it; without them: `gst sweep --local {options.file}`"
        )
    from gst.training.sweeps import best_of, folder_of, read_sweep, run_sweep
    from gst.util.cluster import joined

    if options.at_once is not None and options.at_once < 1:
        raise ValueError(f"--at-once is {options.at_once}; want 1 or more")
    sweep = read_sweep(options.file)
    out, most = options.out, _number(sweep, options.trials)
    if sweep.early_terminate:
        print("early_terminate is for W&B's service; here every trial runs to its end")
    with Bars() as bars, joined(options.workers) if options.workers else nullcontext():
        told = partial(_tell, bars, most, sweep)
        at_once, begin = options.at_once or 1, None
        if options.workers:
            from gst.training.sweep_hosts import on_hosts

            at_once, begin = on_hosts(options.at_once or most)
        trials = run_sweep(sweep, out, most, options.seed, options.resume, told, at_once, begin)
    best = best_of(trials, sweep.goal)
    if not best:
        last = trials[-1]
        raise ValueError(
            f"no trial of {len(trials)} gave a value of {sweep.metric}, the last one with: {last.error}; see "
            f"{folder_of(out, last.number)}/output.log"
        )
    _print(sweep, trials, best)
    print(f"Look at {out}")
    return {
        "command": options.command, "sweep": sweep.name, "method": sweep.method, "metric": sweep.metric,
        "goal": sweep.goal, "best": asdict(best[0]), "trials": [asdict(each) for each in trials],
    }  # fmt: skip


def _number(sweep: Sweep, asked: int | None) -> int:
    """Return the number of trials: as given, else `run_cap` of the file, else the grid's, else `USUAL_NUMBER`."""
    if asked is not None and asked < 1:
        raise ValueError(f"--trials is {asked}; want 1 or more")
    everything = len(sweep.grid()) if sweep.method == "grid" else None
    wanted = asked or sweep.most or everything or USUAL_NUMBER
    return min(wanted, everything or wanted)


def _tell(bars: Bars, most: int, sweep: Sweep, ended: list[Trial]) -> None:
    from gst.training.sweeps import best_of

    best = best_of(ended, sweep.goal)
    bars.show(f"{sweep.name}, best {sweep.metric} {best[0].value:.4g}" if best else sweep.name, len(ended), most)


def _print(sweep: Sweep, trials: list[Trial], best: list[Trial]) -> None:
    varied = [name for name, each in sweep.parameters.items() if not each.single()]
    width = max(len(sweep.metric), 9)
    print(f"trial  {sweep.metric:>{width}}  seconds  {sweep.goal}, the best first")
    for each in best[:SHOWN]:
        values = {name: each.parameters[name] for name in varied}
        tried = " ".join(
            f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}" for name, value in values.items()
        )
        print(f"{each.number:>5}  {each.value:>{width}.4g}  {each.seconds:7.1f}  {tried}")
    for each in (each for each in trials if each.error):
        print(f"{each.number:>5}  failed: {each.error}")
    print(f"The best again: WANDB_MODE=offline {shlex.join(sweep.words(best[0].parameters))}")
