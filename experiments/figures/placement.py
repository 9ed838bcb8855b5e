"""Placement on this machine, its executor and its simulator: tables and numbers."""

from __future__ import annotations

import statistics
from typing import Any

from experiments.figures.documents import Number, result, table

BENCHMARKS, RESULTS = "experiments/bench/README.md", "docs/results.md"
COLUMNS = {
    "pytorch_ms": "plain PyTorch", "compile_ms": "torch.compile", "one_device_ms": "one core", "metis_ms": "METIS",
    "heft_ms": "HEFT", "annealing_ms": "annealing", "go_ms": "GO", "best_ms": "searched, 2 cores",
    "moldable_ms": "searched, core sets", "fused_ms": "**with fusion**",
}  # fmt: skip
FEW = ("pytorch_ms", "compile_ms", "one_device_ms", "heft_ms", "fused_ms")
RATIOS = {"fused_over_pytorch": "PyTorch / with fusion", "fused_over_compile": "torch.compile / with fusion"}
MACHINES = {"cores:2": "2 cores", "cores:4": "4 cores", "gpus:2": "2 GPUs", "gpus:4": "4 GPUs"}
METHODS = {"guided_search": "guided search", "annealing": "annealing", "go": "GO", "hdp": "HDP", "colocrl": "ColocRL"}


def placement(columns: tuple[str, ...] = tuple(COLUMNS)) -> str:
    found = result("placement")

    def cells(each: dict[str, Any]) -> list[str]:
        times = [f"**{each[key]:.1f}**" if key == "fused_ms" else f"{each[key]:.1f}" for key in columns]
        return [*times, *(f"{each[key]:.2f}x ({each[f'{key}_low']:.2f}..{each[f'{key}_high']:.2f})" for key in RATIOS)]

    rows = [[name, f"{each['num_nodes']:,}", *cells(each)] for name, each in found["workloads"].items()]
    means = [f"**{found['geomean'][key]:.2f}x**" for key in RATIOS]
    head = ["ms", "operations", *(COLUMNS[key] for key in columns), *RATIOS.values()]
    return table(head, [*rows, ["geometric mean", *[""] * (1 + len(columns)), *means]])


def executor() -> str:
    rows = [
        [name, f"{each['num_nodes']:,}", f"{each['eager_ms']:.0f}", f"{each['one_core_ms']:.0f}",
         f"{each['overhead']:.2f} ({each['overhead_low']:.2f}..{each['overhead_high']:.2f})",
         f"{each['pytorch_ms']:.0f}", f"{each['all_cores_ms']:.0f}"]
        for name, each in result("executor")["workloads"].items()
    ]  # fmt: skip
    head = ["ms", "operations", "as written, one thread", "captured, one core", "ratio", "as written, all threads",
            "captured, `cpu:0-1`"]  # fmt: skip
    return table(head, rows)


def simulator() -> str:
    rows = [
        [name, f"{each['spearman']:.2f}", f"{100 * each['mape']:.1f} %", f"{each['ideal']['spearman']:.2f}",
         f"{100 * each['ideal']['mape']:.1f} %",
         f"{100 * each['peak_error']:.1f} % ({100 * each['peak_error_worst']:.0f} %)",
         f"{each['evaluations_per_second']:,.0f}"]
        for name, each in result("simulator")["workloads"].items()
    ]  # fmt: skip
    return table(["", "Spearman", "error", "ideal: Spearman", "error", "memory (worst)", "plans a second"], rows)


def simulations() -> str:
    """Return the table of simulated plans a second on one core, and how many times as many as an earlier version."""
    rows = {(row["nodes"], row["packages"]): row for row in result("simulations")["rows"]}
    sizes = sorted({nodes for nodes, _ in rows})
    cases = ("links never queue", "copies queue", "limited memory")
    lines = [
        [f"{size:,}",
         *(f"{rows[size, 'now'][case]:,.0f} ({rows[size, 'now'][case] / rows[size, 'before'][case]:.1f}x)"
           for case in cases),
         f"{rows[size, 'now']['search_mib']:.0f} MiB"]
        for size in sizes
    ]  # fmt: skip
    return table(["operations", *cases, "memory of a search"], lines)


def simulated_machines() -> str:
    found = {name: each for name, each in result("placement_simulated")["summary"].items() if name in MACHINES}
    rows = [
        [MACHINES[name], f"{each['programs']}", f"{100 * each['portfolio_gap']:.1f} %",
         f"{100 * each['guided_search']['gap']:.1f} %", *(f"{1 + each[method]['gain']:.2f}x" for method in METHODS)]
        for name, each in found.items()
    ]  # fmt: skip
    head = ["", "programs", "best baseline above the lower bound", "guided search above it"]
    return table([*head, *(f"best baseline / {name}" for name in METHODS.values())], rows)


def simulated_gpus() -> str:
    rows = [
        [key, f"{100 * (min(each['portfolio_ms'].values()) / each['lower_bound_ms'] - 1):.1f} %",
         f"{100 * (statistics.median(each['methods_ms']['annealing']) / each['lower_bound_ms'] - 1):.1f} %"]
        for key, each in result("annealing_gpus")["rows"].items()
    ]  # fmt: skip
    return table(["simulated", "best baseline above the lower bound", "annealing above it"], rows)


def windows() -> str:
    rows = [
        [f"{each['num_nodes']:,}", f"{each['num_devices']}", f"{each['bound_ms']:.1f}", f"{each['heft_ms']:.1f}",
         f"{each['etf_ms']:.1f}", f"{each['whole_ms']:.1f} ({each['whole_s']:.1f} s)",
         f"**{each['windows_ms']:.1f}** ({each['windows_s']:.1f} s)"]
        for each in result("windows")["tasks"]
    ]  # fmt: skip
    over = [f"{result('windows')['geomean'][f'{name}_over_windows']:.3f}x" for name in ("heft", "etf", "whole")]
    head = ["operations", "devices", "lower bound, ms", "HEFT", "ETF", "whole plans (CPU)", "**windows** (CPU)"]
    return table(head, [*rows, ["over windows, geometric mean", "", "", *over, ""]])


def public_graphs() -> str:
    """Return a line for each of MSR's graphs: the published latency, then the simulated makespan."""

    def shown(row: dict[str, Any], key: str) -> str:
        return f"{row[key]:.1f}" if key in row else ""

    lines = [
        [name, f"{row['layers']}", *(shown(row, key) for key in ("expert", "with_means", "search", "path")),
         f"{row['annealing']:.1f}", f"{row['chains'] / row['annealing']:.3f}",
         "1, optimal" if row["proved"] else f"{row['branches'] / row['annealing']:.3f}"]
        for name, row in result("public_graphs")["graphs"].items()
    ]  # fmt: skip
    head = ["ms", "layers", "human expert", "search, with the expert's means", "search", "longest path",
            "simulated: annealing", "chains and work / annealing", "branch and bound / annealing"]  # fmt: skip
    return table(head, lines)


def search_loop() -> str:
    found = result("search_loop")
    names = {"loop": f"guided search, {found['budget']} measurements, plans screened by the corrected simulator",
             "network": f"the same, {found['budget']} measurements, the simulator corrected by the GST cost model",
             "simulated": "best of baselines and annealing in simulation, no measurement",
             "alone": f"annealing on the hardware alone, {found['budget']} measurements",
             "alone_more": f"the same, {found['more'] * found['budget']} measurements"}  # fmt: skip
    programs = found["rows"]
    names = {key: about for key, about in names.items() if all(f"{key}_ms" in each for each in programs.values())}
    return table(
        ["ms, fastest plan, measured again", *programs, "geometric mean over guided search"],
        [[about, *(f"{each[f'{key}_ms']:.1f} ({each[f'{key}_low_ms']:.1f}..{each[f'{key}_high_ms']:.1f})"
                   for each in programs.values()), f"{found['over_loop'].get(key, 1.0):.3f}"]
         for key, about in names.items()],
    )  # fmt: skip


def parts_of_the_loop() -> str:
    found = result("ablation")
    names = {"learning": "without learning: an uncorrected simulator",
             "measurements": "without measurements: annealing in simulation alone",
             "schedule": "without schedule: operations in program order",
             "policy": "with the policy, fine-tuned on what is predicted",
             "network": "with the GST cost model in place of ridge regression",
             "portfolio": "best baseline in simulation"}  # fmt: skip
    programs = found["programs"]
    rows = [["the loop", "1.000", "1.0", *(_over(each, "loop", "loop") for each in programs.values())]]
    for row, about in names.items():
        over = found["over_loop"][row]
        cells = (_over(each, row, "loop") for each in programs.values())
        rows.append(
            [about, f"{over['mean']:.3f} [{over['low']:.3f}, {over['high']:.3f}]", f"{over['seconds']:.1f}", *cells]
        )
    return table(["", "time of the plan over that of the loop", "seconds of search over its own", *programs], rows)


def _over(each: dict[str, Any], row: str, base: str) -> str:
    took, other = (statistics.median(filter(None, each["rows"][name]["ms"])) for name in (row, base))
    return f"{took:.1f} ms" if row == "loop" else f"{took / other:.3f}"


def search_loop_simulated() -> str:
    found = result("search_loop_simulated")
    names = {"portfolio": "best baseline", "alone": f"hardware alone, {found['budget']}",
             "alone_more": f"hardware alone, {found['more'] * found['budget']}",
             "network": f"GST cost model, {found['budget']}"}  # fmt: skip
    rows = [
        [f"{program} on {where}", *(f"{each['over_loop'][key]:.2f}x" for key in names)]
        for where, programs in found["machines"].items() for program, each in programs.items()
    ]  # fmt: skip
    head = ["simulated", *(f"{about} / guided search, {found['budget']}" for about in names.values())]
    return table(head, [*rows, ["geometric mean", *(f"**{_mean_over_loop(key):.2f}x**" for key in names)]])


def _mean_over_loop(key: str) -> float:
    machines = result("search_loop_simulated")["machines"].values()
    return statistics.geometric_mean(each["over_loop"][key] for programs in machines for each in programs.values())


def kills() -> str:
    found = result("chaos")
    columns = {
        "trials": "trials", "kills": "killed", "failed_resumes": "resumes that failed", "lost_rows": "lost rows",
        "unreadable": "unreadable files", "differing": "other outcomes", "orphans": "processes left",
    }  # fmt: skip
    rows = [[f"`gst {name}`", *(f"{each[key]}" for key in columns)] for name, each in found["commands"].items()]
    return table(["", *columns.values()], [*rows, ["all", *(f"{found[key]}" for key in columns)]])


def over_pytorch() -> list[float]:
    mean = result("placement")["geomean"]
    return [mean["fused_over_pytorch"], mean["fused_over_compile"]]


def _without_fusion() -> list[float]:
    mean = result("placement")["geomean"]
    return [mean["over_pytorch"], mean["over_compile"]]


def _over_both() -> list[float]:
    rows = result("placement")["workloads"].values()
    return [statistics.geometric_mean(min(each["pytorch_ms"], each["compile_ms"]) / each["fused_ms"] for each in rows)]


def _on_two_cores() -> list[float]:
    mean = result("placement")["geomean"]
    return [mean["over_one_device"], 100 * (mean["over_heft"] - 1)]


def _unmeasured() -> list[float]:
    """Return the percent by which annealing on the simulator ended ahead of the measured search on two cores."""
    rows = result("placement")["workloads"].values()
    return [100 * (1 - statistics.geometric_mean(each["annealing_ms"] / each["best_ms"] for each in rows))]


def _elsewhere() -> list[float]:
    mean = result("placement_avx2")["geomean"]
    return [mean["fused_over_pytorch"], mean["fused_over_compile"]]


def _hand_over() -> list[float]:
    found = result("executor")["hand_over"]
    return [found["same_us"], found["other_us"], found["wide_to_other_us"]]


def _noisy() -> list[float]:
    rows = result("simulator_noisy_hour")["workloads"].values()
    ranks, errors = [each["spearman"] for each in rows], [100 * each["mape"] for each in rows]
    repeats = [each["repeats"]["spearman"] for each in rows]
    return [min(ranks), max(ranks), min(errors), max(errors), min(repeats), max(repeats)]


def _fuzz() -> list[float]:
    found = result("fuzz")
    return [found["cases"], len(found["readers"]), found["crashes"], found["unbounded"]]


TABLES = {
    "placement in short": lambda: placement(FEW), "placement": placement, "executor": executor, "simulator": simulator,
    "simulations": simulations, "simulated machines": simulated_machines, "simulated gpus": simulated_gpus,
    "windows": windows, "public graphs": public_graphs,
    "search loop": search_loop,
    "search loop, simulated": search_loop_simulated, "parts of the loop": parts_of_the_loop, "kills": kills,
}  # fmt: skip


def _kept() -> list[float]:
    found = result("allocator")
    ratios = [row["ratio"] for row in found["workloads"].values()]
    return [min(ratios), max(ratios), found["ratio"]]


def _kept_in_the_table() -> list[float]:
    """Return the gain from kept memory on the programs of the placement table, whose plain PyTorch freed memory."""
    rows = result("allocator")["workloads"]
    return [statistics.geometric_mean(rows[name]["ratio"] for name in result("placement")["workloads"])]


def _strangers() -> list[float]:
    return [result("strangers")[name] for name in ("over_eager", "over_best")]


def _winners() -> list[float]:
    """Return the number of models, and of those that code compiled ahead of time wins."""
    winners = [each["winner"] for each in result("strangers")["programs"].values()]
    return [len(winners), winners.count("ahead of time")]


def _rivals() -> list[float]:
    return [result("strangers")["over_each"][f"{name}:2"]["mean"] for name in ("frozen", "onnxruntime", "openvino")]


NUMBERS: list[Number] = [
    (BENCHMARKS, "steps as written {:.2f} to {:.2f} times as fast, {:.2f} times in the geometric mean of nine", _kept),
    (RESULTS, "A factor of {:.2f} of it comes from", _kept_in_the_table),
    (RESULTS, "these gains are {:.2f} and {:.2f} times", _without_fusion),
    (RESULTS, "On {:.0f} third-party models", lambda: _winners()[:1]),
    (RESULTS, "with constant weights on {:.0f} of them", lambda: _winners()[1:]),
    (RESULTS, "{:.2f} times as fast as eager and {:.2f} times as the better of eager", _strangers),
    (
        RESULTS,
        "{:.2f} times as fast as `torch.compile` with frozen weights, {:.2f} times as ONNX Runtime and {:.2f}",
        _rivals,
    ),
    (BENCHMARKS, "{:.2f} times as fast as eager and {:.2f} times as the better of eager and", _strangers),
    (RESULTS, "{:.2f} times as fast as plain PyTorch and {:.2f} times as `torch.compile`", over_pytorch),
    (BENCHMARKS, "{:.2f} times as fast as plain PyTorch and {:.2f} times as `torch.compile`", over_pytorch),
    (BENCHMARKS, "{:.2f} times as the better of the two", _over_both),
    (BENCHMARKS, "without fusion {:.2f} and {:.2f} times", _without_fusion),
    (BENCHMARKS, "{:.2f} times as fast as one core and {:.0f} % faster than HEFT", _on_two_cores),
    (BENCHMARKS, "ended {:.1f} % ahead of the search on two cores", _unmeasured),
    (BENCHMARKS, "{:.2f} times as fast as PyTorch as written, {:.2f} times as its compiler's code", _elsewhere),
    (BENCHMARKS, "{:.1f} µs apart on a core and {:.1f} µs from core to core ({:.0f} µs where", _hand_over),
    (BENCHMARKS, "gave {:.2f} to {:.2f} and {:.0f} to {:.0f} %", lambda: _noisy()[:4]),
    (
        BENCHMARKS,
        "finds plans {:.2f} times as fast as annealing on that hardware with 50",
        lambda: [_mean_over_loop("alone")],
    ),
    (BENCHMARKS, "and {:.2f} times as annealing with ten times", lambda: [_mean_over_loop("alone_more")]),
    (BENCHMARKS, "plans, finds ones that take {:.2f} times as long", lambda: [_mean_over_loop("network")]),
    (BENCHMARKS, "Spearman of {:.2f} to {:.2f}", lambda: _noisy()[4:]),
    (BENCHMARKS, "{:,} damaged files for {} readers: {} crashes, {} reads without bound", _fuzz),
]
