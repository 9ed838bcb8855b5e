"""The arguments of every benchmark and what it prints: `python -m experiments.bench NAME`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from gst.util.process import wait_briefly
from gst.util.progress import Bars

RESULTS = Path("experiments/results")
BENCH = "python -m experiments.bench"
Command = Callable[..., argparse.ArgumentParser]


def add_benchmarks(bench: Any, command: Command, names: Sequence[str] | None = None) -> None:
    """Add a subcommand for each of `names` (every benchmark if not given); `command(bench, name, run, summary,
    examples)` makes one as all of `gst` are."""
    for name in names or _ADD:
        _ADD[name](bench, command)


def _add_step(bench: Any, command: Command) -> None:
    parser = command(
        bench,
        "step",
        _step,
        "a training step with the published network, on graphs of TpuGraphs' size; or against full-graph training",
        f"{BENCH} step --json step.json\n{BENCH} step --data data/layout/xla/random/train --configs 32\n"
        f"{BENCH} step --against full",
    )
    parser.add_argument("--data", type=Path, help="folder of TpuGraphs layout files (default: six made graphs)")
    parser.add_argument("--against", choices=("full",), help="train to the same score on whole graphs of 100,000 nodes")
    for name, default, what in (
        ("batch-graphs", 4, "graphs in a step"),
        ("configs", 32, "configurations of each"),
        ("layers", 3, "SAGE layers"),
        ("channels", 256, "their width"),
        ("max-nodes", 1000, "most nodes of a segment"),
        ("steps", 16, "steps to time"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{what} (default: %(default)s)")


def _add_score(bench: Any, command: Command) -> None:
    parser = command(
        bench,
        "score",
        _score,
        "scoring many configurations of one giant program, in fp32 and in bf16",
        f"{BENCH} score --json score.json\n{BENCH} score --nodes 8000 --configurable 400 --configs 256",
    )
    parser.add_argument("--nodes", type=int, default=40_000, help="of the program (default: %(default)s)")
    parser.add_argument("--configurable", type=int, default=2_000, help="nodes of these (default: %(default)s)")
    parser.add_argument("--configs", type=int, default=1_000, help="to score (default: %(default)s)")


def _add_memory(bench: Any, command: Command) -> None:
    parser = command(
        bench,
        "memory",
        _memory,
        "peak memory of preparation, training and evaluation, by the size of the graph",
        f"{BENCH} memory --nodes 10000,1000000",
    )
    parser.add_argument("--nodes", default="10000,100000,1000000,10000000", help="sizes (default: %(default)s)")


def _add_table(bench: Any, command: Command) -> None:
    command(bench, "table", _table, "pulls and pushes of the embedding table", f"{BENCH} table --json table.json")


def _add_backends(bench: Any, command: Command) -> None:
    command(bench, "backends", _backends, "sparse products, native and torch-sparse", f"{BENCH} backends")


def _add_partition(bench: Any, command: Command) -> None:
    parser = command(
        bench, "partition", _partition, "cuts and times of the partitioners", f"{BENCH} partition --nodes 100000"
    )
    parser.add_argument("--nodes", type=int, default=1_000_000, help="of each graph (default: %(default)s)")
    parser.add_argument("--parts", type=int, default=200, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of graphs and partitioners (default: %(default)s)")


def _add_rescore(bench: Any, command: Command) -> None:
    parser = command(
        bench, "rescore", _rescore, "scoring local moves of a giant plan again", f"{BENCH} rescore --json rescore.json"
    )
    parser.add_argument("--nodes", type=int, default=80_000, help="of the program (default: %(default)s)")
    parser.add_argument("--moves", type=int, default=30, help="to score (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")


def _add_windows(bench: Any, command: Command) -> None:
    parser = command(
        bench, "windows", _windows, "annealing of giant tasks: windows of the schedule against whole plans",
        f"{BENCH} windows --json experiments/results/windows.json\n{BENCH} windows --nodes 2000 --devices 2,4",
    )  # fmt: skip
    parser.add_argument("--nodes", type=int, default=10_000, help="of each task, about (default: %(default)s)")
    parser.add_argument("--devices", default="2,4,6,8", help="of each task (default: %(default)s)")
    parser.add_argument("--budget", type=int, default=200, help="simulated plans with windows (default: %(default)s)")


def _add_allocator(bench: Any, command: Command) -> None:
    parser = command(
        bench,
        "allocator",
        _allocator,
        "what a step as written gains where the memory of freed tensors is kept",
        f"{BENCH} allocator --json experiments/results/allocator.json\n{BENCH} allocator --programs rnnlm",
    )
    _add_programs(parser)


def _add_executor(bench: Any, command: Command) -> None:
    parser = command(
        bench,
        "executor",
        _executor,
        "what running a captured program costs beyond its operations, against plain PyTorch",
        f"{BENCH} executor --json executor.json\n{BENCH} executor --programs rnnlm,inception",
    )
    _add_programs(parser)


def _add_simulator(bench: Any, command: Command) -> None:
    parser = command(
        bench,
        "simulator",
        _simulator,
        "simulated against measured runtimes of random plans",
        f"{BENCH} simulator --json simulator.json\n{BENCH} simulator --programs rnnlm --plans 30",
    )
    parser.add_argument("--plans", type=int, default=100, help="of each program (default: %(default)s)")
    _add_programs(parser)


def _add_unseen(bench: Any, command: Command) -> None:
    parser = command(
        bench, "unseen", _unseen, "plans of a program that no model has seen, predicted by each, against measured ones",
        f"{BENCH} unseen --json unseen.json\n{BENCH} unseen --programs rnnlm,gpt --plans 20",
    )  # fmt: skip
    parser.add_argument("--plans", type=int, default=40, help="of each program (default: %(default)s)")
    parser.add_argument("--repetitions", type=int, default=15, help="of each plan (default: %(default)s)")
    _add_programs(parser)


def _add_placement(bench: Any, command: Command) -> None:
    parser = command(
        bench,
        "placement",
        _placement,
        "what searches find, measured beside plain PyTorch, torch.compile, one device and the baselines",
        f"{BENCH} placement --json placement.json\n{BENCH} placement --programs rnnlm --budget 30 --seeds 1",
    )
    for name, default, what in (
        ("budget", 50, "measurements of each search"),
        ("evaluations", 5_000, "simulated plans of each method"),
        ("seeds", 3, "searches of each kind"),
        ("repetitions", 25, "of each plan at the end"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{what} (default: %(default)s)")
    parser.add_argument("--without-compile", action="store_true", help="leave torch.compile out: it takes minutes")
    parser.add_argument(
        "--patience", type=float, default=20.0, metavar="S",
        help="seconds to wait for quiet cores before plans are measured; 0 = do not look (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, default=Path("runs/bench/placement"),
        help="where searches write what they measure, and go on from (default: %(default)s)",
    )  # fmt: skip
    _add_programs(parser)


def _add_distributed(bench: Any, command: Command) -> None:
    parser = command(
        bench,
        "distributed",
        _distributed,
        "training with several processes beside one: graphs a second, share of steps that goes to the table",
        f"{BENCH} distributed --json distributed.json\n{BENCH} distributed --processes 4 --steps 20",
    )
    for name, default, what in (
        ("processes", 2, "of one thread each"),
        ("steps", 12, "to time in each turn"),
        ("rounds", 3, "turns of one process and of several"),
        ("nodes", 16_000, "of each graph"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{what} (default: %(default)s)")


def _add_checkpoint(bench: Any, command: Command) -> None:
    parser = command(
        bench,
        "checkpoint",
        _checkpoint,
        "saving and restoring a large table beside a copy of the file, and how long training waits",
        f"{BENCH} checkpoint --json checkpoint.json\n{BENCH} checkpoint --size 1GiB --out /mnt/fast",
    )
    parser.add_argument("--size", default="1GiB", help="of the table (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="folder on the disk to measure (default: the system's temporary)")


def _add_scale(bench: Any, command: Command) -> None:
    parser = command(
        bench,
        "scale",
        _scale,
        "1 to 256 processes simulated from measured figures, and where communication takes over",
        f"{BENCH} scale --measured experiments/results/distributed.json --plot scale.png\n"
        f"{BENCH} scale --measured distributed.json --link wifi:2000:0.1",
    )
    parser.add_argument(
        "--measured", type=Path, help=f"result of {BENCH} distributed (default: measure now, on this machine)"
    )
    parser.add_argument(
        "--link", action="append", default=[], metavar="NAME:MICROSECONDS:GIGABYTES",
        help="another link than 10 GbE, 100 GbE and NVLink: latency and 10^9 bytes a second; may be repeated",
    )  # fmt: skip
    parser.add_argument("--compute-ms", type=float, help="of a step on your accelerator, in place of the measured one")
    parser.add_argument("--plot", type=Path, help="where to draw it: a PNG or SVG file")


def _add_alexnet(bench: Any, command: Command) -> None:
    parser = command(
        bench, "alexnet", _run_of("alexnet"), "Kendall's tau on held-out layouts of AlexNet, beside ridge and an MLP",
        f"{BENCH} alexnet --seeds 3 --json experiments/results/alexnet.json",
    )  # fmt: skip
    file = "../shared/data/tpugraphs/layout/xla/random/train/alexnet_train_batch_32.npz"
    parser.add_argument("--seeds", type=int, default=3, help="trainings (default: %(default)s)")
    parser.add_argument("--file", default=file, help="layouts of AlexNet (default: %(default)s)")


def _add_chaos(bench: Any, command: Command) -> None:
    parser = command(
        bench, "chaos", _run_of("chaos"), "commands killed at random moments and resumed: is anything lost?",
        f"{BENCH} chaos --kills 50 --json experiments/results/chaos.json\n{BENCH} chaos --kills 2 --small",
    )  # fmt: skip
    parser.set_defaults(json=RESULTS / "chaos.json")
    parser.add_argument("--kills", type=int, default=50, help="of each command, at least (default: %(default)s)")
    parser.add_argument("--commands", default="prepare,fit,measure,place", help="and giant (default: %(default)s)")
    parser.add_argument("--small", action="store_true", help="the smallest inputs")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: %(default)s)")
    parser.add_argument("--work", type=Path, default=Path("runs/chaos"), help="where they run (default: %(default)s)")
    parser.add_argument(
        "--resume", action="store_true", dest="go_on", help="go on with what --json holds of these commands"
    )


def _add_fuzz(bench: Any, command: Command) -> None:
    parser = command(
        bench, "fuzz", _run_of("fuzz"), "damaged files for every reader: a clear error or a sound object",
        f"{BENCH} fuzz --cases 10000 --json experiments/results/fuzz.json",
    )  # fmt: skip
    parser.set_defaults(json=RESULTS / "fuzz.json")
    parser.add_argument("--cases", type=int, default=10_000, help="for each reader (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the damage (default: %(default)s)")
    parser.add_argument("--readers", nargs="+", default=[], metavar="NAME", help="only these (default: all)")
    parser.add_argument("--coverage", action="store_true", help="also run the readers' tests and count their lines")


def _add_fuzz_programs(bench: Any, command: Command) -> None:
    parser = command(
        bench, "fuzz_programs", _run_of("fuzz_programs"),
        "random programs and PyTorch's operators, run by gst and by PyTorch: equal, or refused in one line",
        f"{BENCH} fuzz_programs --programs 2000 --operators 300 --json experiments/results/fuzz_programs.json",
    )  # fmt: skip
    parser.set_defaults(json=RESULTS / "fuzz_programs.json")
    parser.add_argument("--programs", type=int, default=2000, help="by each runner (default: %(default)s)")
    parser.add_argument("--operators", type=int, default=300, help="of PyTorch (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the programs (default: %(default)s)")
    parser.add_argument("--runners", nargs="+", default=[], metavar="NAME", help="only these (default: all)")


def _add_stream_programs(bench: Any, command: Command) -> None:
    parser = command(
        bench, "stream_programs", _run_of("stream_programs"),
        "random plans with random delays, and mistakes that the race check must find",
        f"{BENCH} stream_programs --plans 1000 --json experiments/results/stream_program.json",
    )  # fmt: skip
    parser.add_argument("--plans", type=int, default=1_000, help="that the hostile interpreter runs (%(default)s)")
    parser.add_argument("--programs", type=int, default=100, help="of which mutants are judged (default: %(default)s)")
    parser.add_argument("--operations", type=int, default=80_000, help="of a program to time (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of plans and programs (default: %(default)s)")


def _add_fusion(bench: Any, command: Command) -> None:
    parser = command(
        bench, "fusion", _run_of("fusion"), "what fusing element-wise operations costs and saves",
        f"{BENCH} fusion\n{BENCH} fusion --programs rnnlm:layers=4 --device cpu:0-1 --cache runs/fusion",
    )  # fmt: skip
    parser.set_defaults(json=RESULTS / "fusion.json")
    programs = ["rnnlm:layers=2,steps=4", "transformer_xl:layers=2,segments=2", "gnmt:layers=2,steps=4"]
    parser.add_argument("--programs", nargs="+", default=programs, help="as for gst trace (default: %(default)s)")
    parser.add_argument("--device", default="cpu:0", help="a CPU device (default: %(default)s)")
    parser.add_argument("--repetitions", type=int, default=30, help="steps of each plan (default: %(default)s)")
    parser.add_argument("--cache", type=Path, help="directory of compiled code (default: as for gst)")


def _add_placement_simulated(bench: Any, command: Command) -> None:
    parser = command(
        bench, "placement_simulated", _run_of("placement_simulated"), "every search on simulated machines",
        f"{BENCH} placement_simulated --programs rnnlm,inception,gpt --machines cores:2,gpus:4",
    )  # fmt: skip
    parser.set_defaults(json=RESULTS / "placement_simulated.json")
    parser.add_argument("--programs", default="rnnlm,gnmt,wavenet,inception,gpt", help="(default: %(default)s)")
    parser.add_argument("--machines", default="cores:2,cores:4,gpus:2,gpus:4", help="(default: %(default)s)")
    learned = [f"experiments.reproductions.{name}.method:{name}" for name in ("colocrl", "hdp")]
    methods = ",".join(["annealing", *learned, "go"])
    parser.add_argument("--methods", default=methods, help="(default: %(default)s)")
    parser.add_argument("--evaluations", type=int, default=2_000, help="of each search (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="searches of each kind (default: %(default)s)")


def _add_search_loop(bench: Any, command: Command) -> None:
    parser = command(
        bench, "search_loop", _run_of("search_loop"), "the search loop, without measurements, without a screen",
        f"{BENCH} search_loop\n{BENCH} search_loop --machines cores:4,gpus:4 --seeds 5",
    )  # fmt: skip
    parser.add_argument("--programs", default="rnnlm,inception,wavenet", help="(default: %(default)s)")
    parser.add_argument("--machines", default="", help="simulated ones, such as cores:4,gpus:4 (default: this one)")
    parser.add_argument("--budget", type=int, default=50, help="measurements (default: %(default)s)")
    parser.add_argument(
        "--more", type=int, default=10, help="times as many on the hardware alone; 1 = no more (default: %(default)s)"
    )
    parser.add_argument("--repetitions", type=int, default=25, help="of each plan at the end, on this machine")
    parser.add_argument("--seeds", type=int, default=1, help="searches (default: %(default)s)")


def _add_ablation(bench: Any, command: Command) -> None:
    parser = command(
        bench, "ablation", _run_of("ablation"), "the placement loop without each of its parts",
        f"{BENCH} ablation\n{BENCH} ablation --programs rnnlm,bert --seeds 5 --seconds 20 --resume",
    )  # fmt: skip
    parser.set_defaults(json=RESULTS / "ablation.json")
    programs = "rnnlm,bert,inception,t5,gpt,vit,moe,mamba,gnmt,llama,wavenet,electra,transformer_xl,distilbert"
    parser.add_argument("--programs", default=programs, help="of gst trace or of strangers (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="loops of each kind (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each loop in simulation (default: %(default)g)")
    parser.add_argument("--repetitions", type=int, default=15, help="of each plan at the end (default: %(default)s)")
    parser.add_argument(
        "--patience", type=float, default=20.0, help="seconds to wait for quiet cores (default: %(default)g)"
    )
    parser.add_argument("--resume", dest="goes_on", action="store_true", help="keep the programs that --json holds")


def _add_timeline(bench: Any, command: Command) -> None:
    parser = command(
        bench, "timeline", _run_of("timeline"), "one plan, run for real and simulated, as a picture and a trace",
        f"{BENCH} timeline --program rnnlm\n"
        f"{BENCH} timeline --program rnnlm --devices cpu:0,cpu:1 --plan runs/demo/plan.json",
    )  # fmt: skip
    parser.add_argument("--program", default="rnnlm", help="as for gst trace (default: %(default)s)")
    parser.add_argument("--devices", default="cpu:0,cpu:1,cpu:0-1", help="CPU devices (default: %(default)s)")
    parser.add_argument("--plan", type=Path, help="a plan that was saved for this program")
    parser.add_argument("--repetitions", type=int, default=15, help="runs of the plan (default: %(default)s)")
    parser.add_argument("--trace", type=Path, default=Path("runs/timeline.trace.json"), help="(default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("docs/timeline.png"), help="(default: %(default)s)")


def _add_strangers(bench: Any, command: Command) -> None:
    parser = command(
        bench, "strangers", _run_of("strangers"), "programs of others under gst.place, beside eager, compiled, frozen",
        f"{BENCH} strangers --names mnasnet1_0,resnet18\n{BENCH} strangers --data FOLDER --plot strangers.png\n"
        f"{BENCH} strangers --steps --names bert,t5",
    )  # fmt: skip
    data = Path("../shared/data/graphnet.tar.xz")
    parser.add_argument("--data", type=Path, default=data, help="GraphNet samples (default: %(default)s)")
    parser.add_argument("--steps", action="store_true", help="training steps of transformers instead of samples")
    parser.add_argument("--names", help="of samples or steps, separated by commas (default: all)")
    parser.add_argument(
        "--ways",
        help="that a user has without gst; what is not installed says so (default: eager,compiled, and for samples "
        "frozen,onnxruntime,openvino)",
    )
    parser.add_argument("--threads", default="1,2", help="that each runs on, in turn (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="to plan each; 0 = as long as it takes (default: %(default)g)"
    )
    parser.add_argument(
        "--tasks", default="placement,schedule", help="that are decided, with fusion or without (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=25, help="of timing, in turns (default: %(default)s)")
    parser.add_argument(
        "--time-limit", type=float, default=900.0, metavar="S", help="of each sample (default: %(default)g)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/bench/strangers"),
        help="where rows are kept, which the same command goes on from (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--plot", type=Path, help="where to draw it: a PNG or SVG file")


def _add_gpu(bench: Any, command: Command) -> None:
    parser = command(
        bench, "gpu", _run_of("gpu.run"),
        "an accelerator: its tests, GST, workloads by lanes; without one, checks on fake tensors",
        f"{BENCH} gpu --json experiments/results/gpu/h100.json\n"
        f"{BENCH} gpu --total-limit 540 --json gpu.json\n{BENCH} gpu --total-limit 540 --json gpu.json --resume\n"
        f"{BENCH} gpu --programs gpt,inception --without-tests",
    )  # fmt: skip
    parser.add_argument(
        "--programs",
        help="workloads, step, recorded, table, score, place, capped, separated by commas (default: all of them)",
    )
    parser.add_argument("--lanes", default="1,2,4", help="streams of the accelerator (default: %(default)s)")
    parser.add_argument(
        "--modes", default="default,reduce-overhead,max-autotune",
        help="of torch.compile on the accelerator, max-autotune at the end of all and only if there is time; "
        "'' = not compiled (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--repetitions", type=int, default=25, help="of each way, in turns (default: %(default)s)")
    parser.add_argument(
        "--plans", type=int, default=100, help="simulated and measured too, as far as time goes (default: %(default)s)"
    )
    parser.add_argument("--without-tests", action="store_true", help="leave out the tests marked gpu")
    parser.add_argument("--samples", type=Path, help="without an accelerator: GraphNet samples too")
    parser.add_argument("--full", action="store_true", help="without an accelerator: programs at full size (minutes)")
    parser.add_argument(
        "--time-limit", type=float, default=300.0, metavar="S", help="of each row at most (default: %(default)g)"
    )
    parser.add_argument(
        "--total-limit", type=float, default=1140.0, metavar="S",
        help="of all together, of which each row has a share (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument("--resume", dest="goes_on", action="store_true", help="keep what --json holds and ended well")


def _run_of(name: str) -> Callable[[argparse.Namespace], dict[str, Any]]:
    """`run` of the benchmark's module, which is imported when it is called."""
    return lambda options: import_module(f"experiments.bench.{name}").run(options)


def _add_programs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--programs", help="names separated by commas (default: every bundled one)")


def _step(options: argparse.Namespace) -> dict[str, Any]:
    with Bars() as bars:
        if options.against:
            from experiments.bench.against_full import run as against_full

            return _told(against_full(bars.show), options)
        from experiments.bench.step import Setting
        from experiments.bench.step import run as run_step

        names = ("batch_graphs", "configs", "layers", "channels", "max_nodes", "steps")
        setting = Setting(str(options.data or ""), **{name: getattr(options, name) for name in names})
        return _told(run_step(setting, bars.show), options)


def _score(options: argparse.Namespace) -> dict[str, Any]:
    from experiments.bench.score import Setting
    from experiments.bench.score import run as run_score

    with Bars() as bars:
        setting = Setting(options.nodes, options.configurable, options.configs)
        return _told(run_score(setting, bars.show), options)


def _memory(options: argparse.Namespace) -> dict[str, Any]:
    from experiments.bench.memory import run as run_memory

    with Bars() as bars:
        return _told(run_memory([int(nodes) for nodes in options.nodes.split(",")], bars.show), options)


def _table(options: argparse.Namespace) -> dict[str, Any]:
    from experiments.bench.table import run as run_table

    with Bars() as bars:
        return _told(run_table(bars.show), options)


def _backends(options: argparse.Namespace) -> dict[str, Any]:
    from experiments.bench.backends import run as run_backends

    with Bars() as bars:
        return _told(run_backends(bars.show), options)


def _partition(options: argparse.Namespace) -> dict[str, Any]:
    from experiments.bench.partition import run as run_partition

    with Bars() as bars:
        return _told(run_partition(options.nodes, options.parts, options.seed, bars.show), options)


def _rescore(options: argparse.Namespace) -> dict[str, Any]:
    from experiments.bench.rescore import run as run_rescore

    with Bars() as bars:
        return _told(run_rescore(options.nodes, options.moves, options.seed, bars.show), options)


def _windows(options: argparse.Namespace) -> dict[str, Any]:
    from experiments.bench.windows import run as run_windows

    devices = tuple(int(count) for count in options.devices.split(","))
    with Bars() as bars:
        return _told(run_windows(options.nodes, devices, options.budget, bars.show), options)


def _allocator(options: argparse.Namespace) -> dict[str, Any]:
    from experiments.bench.allocator import bench

    with Bars() as bars:
        result = bench(_programs(options), progress=bars.show)
    return _rows(result, options, "ratio")


def _executor(options: argparse.Namespace) -> dict[str, Any]:
    wait_briefly()
    from experiments.bench.executor import bench

    with Bars() as bars:
        return _rows(bench(_programs(options), progress=bars.show), options, "overhead", "one_core_ms", "pytorch_ms")


def _simulator(options: argparse.Namespace) -> dict[str, Any]:
    wait_briefly()
    from experiments.bench.simulator import bench

    with Bars() as bars:
        result = bench(_programs(options), options.plans, progress=bars.show)
    return _rows(result, options, "spearman", "mape", "peak_error_worst", "evaluations_per_second")


def _unseen(options: argparse.Namespace) -> dict[str, Any]:
    wait_briefly()
    from experiments.bench.unseen import bench

    with Bars() as bars:
        result = bench(_programs(options), options.plans, options.repetitions, progress=bars.show)
    return _told(result | {name: mean for name, (mean, *_) in result["compared"].items()}, options)


def _placement(options: argparse.Namespace) -> dict[str, Any]:
    wait_briefly()
    from experiments.bench.placement import bench

    with Bars() as bars:
        result = bench(
            _programs(options), options.out, options.budget, options.evaluations, options.seeds, options.repetitions,
            not options.without_compile, options.patience, bars.show,
        )  # fmt: skip
    return _rows(result, options, "one_device_ms", "heft_ms", "best_ms", "moldable_ms", "pytorch_ms", "over_pytorch")


def _distributed(options: argparse.Namespace) -> dict[str, Any]:
    from experiments.bench.distributed import run as run_distributed

    wait_briefly()
    with Bars() as bars:
        return _told(
            run_distributed(options.processes, options.steps, options.rounds, options.nodes, bars.show), options
        )


def _checkpoint(options: argparse.Namespace) -> dict[str, Any]:
    from experiments.bench.checkpoint import run as run_checkpoint
    from gst.machine.devices import parse_bytes

    with Bars() as bars:
        size = parse_bytes(options.size)
        return _told(run_checkpoint(size, folder=options.out, progress=bars.show), options)


def _scale(options: argparse.Namespace) -> dict[str, Any]:
    from experiments.bench import scale

    if options.measured is None:
        from experiments.bench.distributed import run as run_distributed

        with Bars() as bars:
            figures = run_distributed(progress=bars.show)
    else:
        figures = scale.figures_in(options.measured)
    links = scale.LINKS | dict(scale.link(text) for text in options.link)
    result = scale.run(scale.measured(figures, options.compute_ms), links)
    if options.plot:
        scale.plot(result, options.plot)
    for name, over in result["takes_over"].items():
        where = (
            "communication never takes as long as computing" if over is None else f"takes over with {over} processes"
        )
        print(f"{name:<12} {where}; most of it: {result['first'][name]}")
    return _told({key: result[key] for key in ("efficiency", "step")}, options) | result


def _programs(options: argparse.Namespace) -> list[str]:
    from gst.programs import WORKLOADS

    return options.programs.split(",") if options.programs else list(WORKLOADS)


def _rows(result: dict[str, Any], options: argparse.Namespace, *columns: str) -> dict[str, Any]:
    """Print a line for each workload."""
    print(f"{'program':<16}" + "".join(f"{column:>24}" for column in columns))
    for name, row in result["workloads"].items():
        print(f"{name:<16}" + "".join(f"{row[column]:>24.4g}" for column in columns))
    return _told(result, options)


def _told(result: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Print the figures of a benchmark that stand alone; the rest is for --json."""
    for key, value in result.items():
        if isinstance(value, int | float):
            print(f"{key:<26} {value:.4g}")
        elif isinstance(value, list) and value and not isinstance(value[0], dict | list):
            print(f"{key:<26} {', '.join(str(entry) for entry in value)}")
        elif isinstance(value, dict) and all(isinstance(entry, int | float) for entry in value.values()):
            print(f"{key:<26} " + ", ".join(f"{name} {entry:.4g}" for name, entry in value.items()))
    return result | {"command": options.command}


_ADD = {
    "step": _add_step,
    "score": _add_score,
    "memory": _add_memory,
    "table": _add_table,
    "backends": _add_backends,
    "partition": _add_partition,
    "rescore": _add_rescore,
    "windows": _add_windows,
    "allocator": _add_allocator,
    "executor": _add_executor,
    "simulator": _add_simulator,
    "unseen": _add_unseen,
    "placement": _add_placement,
    "distributed": _add_distributed,
    "checkpoint": _add_checkpoint,
    "scale": _add_scale,
    "alexnet": _add_alexnet,
    "chaos": _add_chaos,
    "fuzz": _add_fuzz,
    "fuzz_programs": _add_fuzz_programs,
    "stream_programs": _add_stream_programs,
    "fusion": _add_fusion,
    "placement_simulated": _add_placement_simulated,
    "search_loop": _add_search_loop,
    "ablation": _add_ablation,
    "timeline": _add_timeline,
    "strangers": _add_strangers,
    "gpu": _add_gpu,
}
