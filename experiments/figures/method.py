"""Cost and scores of Graph Segment Training: tables and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from statistics import mean
from typing import Any

from experiments.figures.documents import Number, result, table

GST = "experiments/reproductions/gst/README.md"
BENCHMARKS = "experiments/bench/README.md"
VARIANT_TASKS = {
    "alexnet": "AlexNet", "tile": "tiles", "circuits": "circuits", "elf-language": "binaries"
}  # fmt: skip
MATRIX = {
    "tasks": ("regression", "ranking", "classes", "binary", "several targets"),
    "precisions": ("fp64", "bf16 autocast", "fp16 with scaler"),
    "torch.compile": ("compile(encoder)", "compile(model)"),
    "tables, estimates": ("no table", "table on disk", "composite estimate"),
    "resumed": ("resumed",),
}
GRAPH_KINDS = {"grid": "grid", "netlist": "netlist, hidden order", "powerlaw": "power law", "dag": "DAG in order"}
PARTITIONERS = ("auto", "metis", "communities", "contiguous")
STEPS = {
    "unshared fp32": "every node under every configuration, fp32",
    "shared fp32": "equal states once, fp32",
    "shared bf16": "equal states once, bf16",
}


def step() -> str:
    theirs, ours = result("published_step"), result("step")["variants"]
    published = [
        "published code (kaidic/GST, repaired to run)", f"{1e3 * theirs['step_median']:,.0f} ms",
        f"{1e3 * theirs['eval_seconds_two_graphs']:,.0f} ms", f"{theirs['peak_mib']:,} MiB",
    ]  # fmt: skip
    rows = [
        [name, f"{ours[key]['step_ms']:,.0f} ms", f"{ours[key]['exact_eval_ms']:,.0f} ms",
         f"{ours[key]['peak_mib']:,.0f} MiB"]
        for key, name in STEPS.items()
    ]  # fmt: skip
    return table(["", "step", "exact evaluation of two graphs", "peak memory"], [published, *rows])


def against_full() -> str:
    seconds = result("against_full")["seconds_to"]
    return table(
        ["until tau is", *(f"{float(tau):.2f}" for tau in seconds)],
        [
            ["GST+ED, seconds", *(f"{each['gst']:.1f}" for each in seconds.values())],
            ["whole graph, seconds", *(f"{each['full']:.1f}" for each in seconds.values())],
            ["whole graph / GST+ED", *(f"{each['speedup']:.1f}x" for each in seconds.values())],
        ],
    )


def claims() -> str:
    against, memory, theirs, ours = map(result, ("against_full", "memory", "published_step", "step"))
    best, worst = (against["seconds_to"][tau]["speedup"] for tau in ("0.75", "0.8"))
    peaks = memory["train_peak_mib"]
    return table(
        ["", "published", "here"],
        [
            ["training compared with whole graphs", "3 times as fast", f"{against['step_speedup']:.1f} times a step, "
             f"{best:.1f} times until tau is first 0.75, {worst:.1f} times until 0.80"],
            ["memory of training", "constant", f"{min(peaks):.0f} to {max(peaks):.0f} MiB from 10^4 to 10^7 nodes"],
            ["a step of the published network", f"{1e3 * theirs['step_median']:,.0f} ms (its code, run here)",
             f"{ours['step_ms']:,.0f} ms"],
        ],
    )  # fmt: skip


def memory() -> str:
    found = result("memory")
    columns = ("nodes", "segments", "prepare_seconds", "store_mib", "train_peak_mib", "eval_peak_mib")
    rows = zip(*(found[name] for name in columns), strict=True)
    return table(
        ["nodes", "segments", "preparing, s", "store, MiB", "training, peak MiB", "exact evaluation, peak MiB"],
        [[f"{n:,}", f"{j:,}", f"{s:.1f}", f"{mib:,.1f}", f"{train:.0f}", f"{exact:.0f}"]
         for n, j, s, mib, train, exact in rows],
    )  # fmt: skip


def variants(kind: str = "variants", tasks: Mapping[str, str] = VARIANT_TASKS) -> str:
    found = {name: result(f"{kind}_{task}")["variants"] for task, name in tasks.items()}

    def cell(each: dict[str, Any]) -> str:
        return f"{each['score_mean']:.2f} ± {each['score_deviation']:.2f}, {each['step_ms']:.0f} ms"

    names = next(iter(found.values()))
    return table(["score, step", *found], [[name, *(cell(each[name]) for each in found.values())] for name in names])


def estimates() -> str:
    found = result("estimates")
    tasks = found["errors"]
    return table(
        ["error of the pooled embedding", *tasks, "mean"],
        [[name, *(f"{mean(seeds[name]):.3f}" for seeds in tasks.values()), f"{each:.3f}"]
         for name, each in found["mean"].items()],
    )  # fmt: skip


def drop_in_matrix() -> str:
    """Return the number of settings that run for each encoder and group, and the reasons of the others."""
    cells = result("drop_in_matrix")["cells"]

    def ran(outcomes: dict[str, str], settings: tuple[str, ...]) -> str:
        return f"{sum(not outcomes[name] for name in settings)} of {len(settings)}"

    rows = [[name, *(ran(each, settings) for settings in MATRIX.values())] for name, each in cells.items()]
    failed = [(name, setting, why) for name, each in cells.items() for setting, why in each.items() if why]
    why = [f"- {name}, {setting}: {reason}" for name, setting, reason in failed]
    return "\n".join([table(["encoder", *MATRIX], rows), *(["", *why] if why else [])])


def partition() -> str:
    found = result("partition")
    each = {name: [found[kind]["methods"][name] for kind in GRAPH_KINDS] for name in PARTITIONERS}
    return table(
        ["share of edges cut (seconds)", *GRAPH_KINDS.values()],
        [[name, *(f"{cut['cut']:.3f} ({cut['seconds']:.1f})" for cut in cuts)] for name, cuts in each.items()],
    )


def distributed() -> str:
    found = result("distributed")
    many = str(found["setting"]["processes"])
    sent = ", ".join(f"{name} {found[f'{name}_bytes'] / 2**10:,.0f}" for name in ("pull", "push", "gradient"))
    rates = found["graphs_per_second"]
    return table(
        ["graphs a second, one process", f"{many} processes", "ratio", f"{many} that never wait for each other",
         "table, share of a step", "KiB a process sends in a step"],
        [[f"{rates['1']:.2f}", f"{rates[many]:.2f}", f"{found['speedup']:.2f}x", f"{found['apart']:.2f}x",
          f"{found['table_share']:.3f}", sent]],
    )  # fmt: skip


def checkpoint() -> str:
    found = result("checkpoint")
    return table(
        ["file", "plain copy", "save", "restore", "training waits"],
        [[f"{found['file_mib']:,.0f} MiB", f"{found['copy_s']:.2f} s", f"{found['save_s']:.2f} s",
          f"{found['restore_s']:.2f} s", f"{found['pause_s']:.2f} s (at most {found['pause_max_s']:.2f})"]],
    )  # fmt: skip


def scale(name: str) -> str:
    found = result(name)
    return table(
        [f"a step of {found['step']['compute_ms']:,.0f} ms", "communication takes over at", "most of it",
         "share of the ideal rate, 256 processes"],
        [[link, f"{count} processes" if count else "never up to 256", found["first"][link],
          f"{found['efficiency'][link]:.2f}"] for link, count in found["takes_over"].items()],
    )  # fmt: skip


def _step_ratios() -> list[float]:
    theirs, ours = 1e3 * result("published_step")["step_median"], result("step")["variants"]
    return [theirs / ours["shared bf16"]["step_ms"], theirs / ours["shared fp32"]["step_ms"]]


def _against() -> list[float]:
    found = result("against_full")
    return [found[key] for key in ("gst_ms", "full_ms", "gst_peak_mib", "full_peak_mib")]


def _ends() -> list[float]:
    found = result("against_full")
    return [found[key] for key in ("gst_tau", "gst_tau_deviation", "full_tau", "full_tau_deviation")]


def _score() -> list[float]:
    found = result("score")
    return [found["seconds"], found["peak_mib"]]


def _table_times() -> list[float]:
    found = result("table")
    return [found[key] for key in ("pull_ms_9216x1", "push_ms_1024x128", "pull_over_copy")]


def _preparing() -> list[float]:
    found = result("memory")
    peaks = dict(zip(found["nodes"], found["prepare_peak_mib"], strict=True))
    return [peaks[10**4], peaks[10**6], peaks[10**7], found["prepare_workers_mib"][-1]]


def _rescore() -> list[float]:
    found = result("rescore")
    return [1e3 * found["move_seconds"], found["times_faster"]]


TABLES = {
    "step": step, "against full": against_full, "gst claims": claims, "memory": memory, "variants": variants,
    "estimates": estimates, "drop_in matrix": drop_in_matrix,
    "halos": partial(variants, "halos", {"circuits": "circuits"}),
    "partition": partition, "distributed": distributed, "checkpoint": checkpoint, "scale": partial(scale, "scale"),
    "scale of an accelerator": partial(scale, "scale_accelerator"),
}  # fmt: skip
NUMBERS: list[Number] = [
    ("docs/results.md", "{:.0f} times as fast as the published code ({:.0f} times in fp32", _step_ratios),
    (
        "docs/results.md",
        "preparing takes {:.0f} MiB at 10,000 nodes, {:.0f} MiB at 1,000,000 and {:.0f} MiB at 10,000,000, with {:.0f}",
        _preparing,
    ),
    (GST, "{:.0f} times as fast as the published code ({:.0f} times in fp32", _step_ratios),
    (GST, "at {:.0f} % of what this machine's bf16 products reach", lambda: [100 * result("step")["share_of_peak"]]),
    (GST, "tau by {:.3f}", lambda: [result("step")["tau_difference_bf16"]]),
    (GST, "takes {:.0f} ms against {:.0f} and {:,.0f} MiB against {:,.0f}", _against),
    (GST, "({:.3f} ± {:.3f} and {:.3f} ± {:.3f})", _ends),
    (BENCHMARKS, "{:.0f} s and {:.0f} MiB in bf16", _score),
    (BENCHMARKS, "read in {:.3f} ms, 1,024 rows of 128 written in {:.3f} ms; long rows are read at {:.2f} of",
     _table_times),
    (BENCHMARKS, "a local move in {:.1f} ms, {:.0f} times as fast", _rescore),
]  # fmt: skip
