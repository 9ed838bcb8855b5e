"""Tables of recorded results: most are rows of a result, each column a format of the values of a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import mean, median
from typing import Any

from experiments.figures import documents
from experiments.figures.documents import result, table

Row = Mapping[str, Any]
Columns = Sequence[tuple[str, str]]
"""Heads, and formats of `str.format` for the values of a row; `name` is the row's own."""

TUNED = {
    "tau_mean": "`StateModel`",
    "ridge_tau": "ridge, tuned",
    "gbdt_tau": "gradient boosting",
    "mlp_tau": "plain MLP",
}
HELD_OUT, UNIQUE = 1_000, 23_905  # configurations of AlexNet
VARIANT_TASKS = {
    "synthetic": "synthetic, 100,000 nodes", "alexnet": "AlexNet", "tile": "tile sizes", "circuits": "circuits",
    "elf-language": "binaries",
}  # fmt: skip
GRAPH_KINDS = {"grid": "grid", "netlist": "netlist, hidden order", "powerlaw": "power law", "dag": "DAG in order"}
MACHINES = {"cores:2": "2 cores", "cores:4": "4 cores", "gpus:2": "2 GPUs", "gpus:4": "4 GPUs"}
STEPS = {
    "unshared fp32": "every node under every configuration, fp32", "shared fp32": "equal states once, fp32",
    "shared bf16": "equal states once, bf16",
}  # fmt: skip
MATRIX = {
    "tasks": ("regression", "ranking", "classes", "binary", "several targets"),
    "precisions": ("fp64", "bf16 autocast", "fp16 with scaler"),
    "torch.compile": ("compile(encoder)", "compile(model)"),
    "tables, estimates": ("no table", "table on disk", "composite estimate"),
    "resumed": ("resumed",),
}
PLACED: Columns = [
    ("ms", "{name}"), ("operations", "{num_nodes:,}"), ("plain PyTorch", "{pytorch_ms:.1f}"),
    ("torch.compile", "{compile_ms:.1f}"), ("one core", "{one_device_ms:.1f}"), ("METIS", "{metis_ms:.1f}"),
    ("HEFT", "{heft_ms:.1f}"), ("annealing", "{annealing_ms:.1f}"), ("GO", "{go_ms:.1f}"),
    ("searched, 2 cores", "{best_ms:.1f}"), ("searched, core sets", "{moldable_ms:.1f}"),
    ("**with fusion**", "**{fused_ms:.1f}**"),
]  # fmt: skip
FEW = ("ms", "operations", "plain PyTorch", "torch.compile", "one core", "HEFT", "**with fusion**")
RATIOS = {"fused_over_pytorch": "PyTorch / with fusion", "fused_over_compile": "torch.compile / with fusion"}


def formatted(rows: Iterable[Row], columns: Columns, *last: Sequence[str]) -> str:
    """Return a table with a line for each row, and the lines `last`; "-" where a row lacks a value."""
    return table([head for head, _ in columns], [*([_cell(form, row) for _, form in columns] for row in rows), *last])


def _cell(form: str, row: Row) -> str:
    try:
        return form.format_map(row).replace("%", " %")
    except (KeyError, TypeError):
        return "-"


def named(rows: Mapping[str, Row]) -> list[Row]:
    """Return the rows with their keys as `name`."""
    return [{"name": name, **row} for name, row in rows.items()]


def rows_of(file: str, key: str, columns: Columns) -> Callable[[], str]:
    """Return a function that makes a table of the rows of a result, a mapping by name or a list, under `key`."""

    def made() -> str:
        rows = result(file)[key]
        return formatted(named(rows) if isinstance(rows, Mapping) else rows, columns)

    return made


# Training ---------------------------------------------------------------------------------------------------------


def step() -> str:
    theirs, ours = result("published_step"), result("step")["variants"]
    published = {"name": "published code (kaidic/GST, repaired to run)", "step_ms": 1e3 * theirs["step_median"],
                 "exact_eval_ms": 1e3 * theirs["eval_seconds_two_graphs"], "peak_mib": theirs["peak_mib"]}  # fmt: skip
    rows = [published, *({**ours[key], "name": name} for key, name in STEPS.items())]
    return formatted(rows, [
        ("", "{name}"), ("step", "{step_ms:,.0f} ms"), ("exact evaluation of two graphs", "{exact_eval_ms:,.0f} ms"),
        ("peak memory", "{peak_mib:,.0f} MiB"),
    ])  # fmt: skip


def against_full() -> str:
    seconds = result("against_full")["seconds_to"]
    head = ["until tau is", *(f"{float(tau):.2f}" for tau in seconds)]
    forms = {
        "segments, seconds": "{gst:.1f}",
        "whole graph, seconds": "{full:.1f}",
        "whole graph / segments": "{speedup:.1f}x",
    }
    return table(head, [[name, *(form.format(**each) for each in seconds.values())] for name, form in forms.items()])


def claims() -> str:
    against, memory, theirs, ours = map(result, ("against_full", "memory", "published_step", "step"))
    best, worst = (against["seconds_to"][tau]["speedup"] for tau in ("0.85", "0.9"))
    peaks = memory["train_peak_mib"]
    rows = [
        ["training compared with whole graphs", "3 times as fast", f"{against['step_speedup']:.1f} times a step, "
         f"{best:.1f} times until tau is first 0.85, {worst:.1f} times until 0.90"],
        ["memory of training", "constant", f"{min(peaks):.0f} to {max(peaks):.0f} MiB from 10^4 to 10^7 nodes"],
        ["a step of the published network", f"{1e3 * theirs['step_median']:,.0f} ms (its code, run here)",
         f"{ours['step_ms']:,.0f} ms"],
    ]  # fmt: skip
    return table(["", "published", "here"], rows)


def memory() -> str:
    found = result("memory")
    keys = ("nodes", "segments", "prepare_seconds", "store_mib", "train_peak_mib", "eval_peak_mib")
    rows = [dict(zip(keys, values, strict=True)) for values in zip(*(found[key] for key in keys), strict=True)]
    return formatted(rows, [
        ("nodes", "{nodes:,}"), ("segments", "{segments:,}"), ("preparing, s", "{prepare_seconds:.1f}"),
        ("store, MiB", "{store_mib:,.1f}"), ("training, peak MiB", "{train_peak_mib:.0f}"),
        ("exact evaluation, peak MiB", "{eval_peak_mib:.0f}"),
    ])  # fmt: skip


def variants() -> str:
    """Return the scores of the test parts, a column for each task."""
    found = [result(f"convergence_{task}") for task in VARIANT_TASKS]
    names = [*found[0]["variants"], *found[0]["controls"]]
    columns = [{**each["variants"], **each["controls"]} for each in found]
    rows = [[name, *(_score(column.get(name)) for column in columns)] for name in names]
    return table(["", *VARIANT_TASKS.values()], rows)


def _score(row: Row | None) -> str:
    """Return mean and half of the 95 % interval of scores, of three seeds at least."""
    if row is None:
        return "-"
    if row["score_mean"] is None:
        return "over 2 GiB"
    return _mean(row, "score", ".2f")


def _mean(row: Row, name: str, form: str) -> str:
    few = len(row["scores"]) < 3  # say nothing of the interval
    return f"{row[f'{name}_mean']:{form}}" + ("" if few else f" ± {row[f'{name}_half_width']:{form.lstrip('+')}}")


def convergence(task: str) -> str:
    """Return the rows of one task: score, its difference from whole graphs, times, memory and work."""
    found = result(f"convergence_{task}")
    rows = [{**row, "test": _score(row)} for row in named(found["variants"])]
    for row in (row for row in rows if "ahead_mean" in row and row["name"] != found["reference"]):
        row["ahead"] = _mean(row, "ahead", "+.3f")
    rows += [{"name": name, "test": _score(row)} for name, row in found["controls"].items()]
    return formatted(rows, [
        ("", "{name}"), ("test part", "{test}"), (f"minus {found['reference']}", "{ahead}"),
        (f"until {found['goal']:.3f}, s", "{seconds_to_goal:.0f}"),
        (f"{found['steps']:,} steps, s", "{seconds:.0f}"), ("step, ms", "{step_ms:.0f}"),
        ("peak memory, MiB", "{peak_mib:,.0f}"), ("segments with gradient", "{encoded:,.0f}"), ("rate", "{rate:.2g}"),
    ])  # fmt: skip


def halos() -> str:
    form = "{score_mean:.2f} ± {score_deviation:.2f}, {step_ms:.0f} ms"
    return formatted(named(result("halos_circuits")["variants"]), [("score, step", "{name}"), ("circuits", form)])


def estimates() -> str:
    found = result("estimates")
    rows = [[name, *(f"{mean(seeds[name]):.3f}" for seeds in found["errors"].values()), f"{each:.3f}"]
            for name, each in found["mean"].items()]  # fmt: skip
    return table(["error of the pooled embedding", *found["errors"], "mean"], rows)


def drop_in_matrix() -> str:
    """Return the number of settings that run for each encoder and group, and the reasons of the others."""
    cells = result("drop_in_matrix")["cells"]

    def ran(outcomes: Mapping[str, str], settings: Sequence[str]) -> str:
        return f"{sum(not outcomes[name] for name in settings)} of {len(settings)}"

    rows = [[name, *(ran(each, settings) for settings in MATRIX.values())] for name, each in cells.items()]
    failed = [f"- {name}, {setting}: {why}" for name, each in cells.items() for setting, why in each.items() if why]
    return "\n".join([table(["encoder", *MATRIX], rows), *(["", *failed] if failed else [])])


def partition() -> str:
    found = result("partition")
    each = {name: [found[kind]["methods"][name] for kind in GRAPH_KINDS]
            for name in ("auto", "metis", "communities", "contiguous")}  # fmt: skip
    rows = [[name, *(f"{cut['cut']:.3f} ({cut['seconds']:.1f})" for cut in cuts)] for name, cuts in each.items()]
    return table(["share of edges cut (seconds)", *GRAPH_KINDS.values()], rows)


def distributed() -> str:
    found = result("distributed")
    many, rates = str(found["setting"]["processes"]), found["graphs_per_second"]
    sent = ", ".join(f"{name} {found[f'{name}_bytes'] / 2**10:,.0f}" for name in ("pull", "push", "gradient"))
    return formatted([{**found, "one": rates["1"], "many": rates[many], "sent": sent}], [
        ("graphs a second, one process", "{one:.2f}"), (f"{many} processes", "{many:.2f}"), ("ratio", "{speedup:.2f}x"),
        (f"{many} that never wait for each other", "{apart:.2f}x"), ("table, share of a step", "{table_share:.3f}"),
        ("KiB a process sends in a step", "{sent}"),
    ])  # fmt: skip


def checkpoint() -> str:
    return formatted([result("checkpoint")], [
        ("file", "{file_mib:,.0f} MiB"), ("plain copy", "{copy_s:.2f} s"), ("save", "{save_s:.2f} s"),
        ("restore", "{restore_s:.2f} s"), ("training waits", "{pause_s:.2f} s (at most {pause_max_s:.2f})"),
    ])  # fmt: skip


def scale(name: str) -> str:
    found = result(name)
    rows = [
        [link, f"{count} processes" if count else "never up to 256", found["first"][link],
         f"{found['efficiency'][link]:.2f}"] for link, count in found["takes_over"].items()
    ]  # fmt: skip
    head = [f"a step of {found['step']['compute_ms']:,.0f} ms", "communication takes over at", "most of it",
            "share of the ideal rate, 256 processes"]  # fmt: skip
    return table(head, rows)


# Cost models ------------------------------------------------------------------------------------------------------


def alexnet() -> str:
    labels = result("tpugraphs_alexnet")["labels"]
    rows = [{"count": UNIQUE - HELD_OUT if key == "all" else int(key), **each} for key, each in labels.items()]
    return formatted(rows, [("labels", "{count:,}"), *((name, f"{{{key}:.3f}}") for key, name in TUNED.items())])


def tile() -> str:
    found = result("tpugraphs_tile")
    best = [f"{100 * found[key]:.1f} %" for key in ("best_possible_at_1", "best_possible_at_5")]
    heads = {1: "the first (error@1)", 5: "the best of five (error@5)"}
    columns = [(head, f"{{error_at_{k}:.1%}} ± {{error_at_{k}_deviation:.1%}}") for k, head in heads.items()]
    return formatted(named(found["methods"]), [("", "{name}"), *columns], ["best possible", *best])


def across() -> str:
    found = result("tpugraphs_across")["trained_on"]
    rows = [
        {"name": name, "own": each, "both": found["alexnet + tile"][name]} for name, each in found["alexnet"].items()
    ]
    return formatted(rows, [
        ("tau", "{name}"), ("U-Net, learned from AlexNet", "{own[tau_mean]:.3f} ± {own[interval]:.3f}"),
        ("U-Net, learned from AlexNet and tile sizes", "{both[tau_mean]:.3f} ± {both[interval]:.3f}"),
        ("AlexNet itself", "{own[known_mean]:.3f}"),
    ])  # fmt: skip


def difference(each: Row) -> str:
    return f"{each['difference']:+.3f} ± {each['interval']:.3f}" if each.get("interval") else ""


def ablation() -> str:
    rows = [{**each, "by": difference(each)} for each in named(result("tpugraphs_ablation")["techniques"])]
    return formatted(rows, [("", "{name}"), ("tau", "{tau_mean:.3f}"), ("difference from the base", "{by}"),
                            ("step, ms", "{step_ms:.1f}")])  # fmt: skip


def placement(heads: Sequence[str] = tuple(head for head, _ in PLACED)) -> str:
    found = result("placement")
    ratios = [(name, f"{{{key}:.2f}}x ({{{key}_low:.2f}}..{{{key}_high:.2f}})") for key, name in RATIOS.items()]
    means = [f"**{found['geomean'][key]:.2f}x**" for key in RATIOS]
    columns = [each for each in PLACED if each[0] in heads]
    last = ["geometric mean", *[""] * (len(columns) - 1), *means]
    return formatted(named(found["workloads"]), [*columns, *ratios], last)


def simulated_machines() -> str:
    rows = [{**each, "name": MACHINES[key]} for key, each in result("placement_simulated")["summary"].items()
            if key in MACHINES]  # fmt: skip
    methods = {
        "guided_search": "guided search",
        "annealing": "annealing",
        "go": "GO",
        "hdp": "HDP",
        "colocrl": "ColocRL",
    }
    for row in rows:
        row["over"] = {key: 1 + row[key]["gain"] for key in methods}
    return formatted(rows, [
        ("", "{name}"), ("programs", "{programs}"), ("best baseline above the lower bound", "{portfolio_gap:.1%}"),
        ("guided search above it", "{guided_search[gap]:.1%}"),
        *((f"best baseline / {name}", f"{{over[{key}]:.2f}}x") for key, name in methods.items()),
    ])  # fmt: skip


def simulated_gpus() -> str:
    rows = [
        {"name": key, "best": min(each["portfolio_ms"].values()) / each["lower_bound_ms"] - 1,
         "annealing": median(each["methods_ms"]["annealing"]) / each["lower_bound_ms"] - 1}
        for key, each in result("annealing_gpus")["rows"].items()
    ]  # fmt: skip
    return formatted(rows, [("simulated", "{name}"), ("best baseline above the lower bound", "{best:.1%}"),
                            ("annealing above it", "{annealing:.1%}")])  # fmt: skip


def public_graphs() -> str:
    """Return a line for each of MSR's graphs: the published latency, then the simulated makespan."""
    rows = [
        {**each, "chains": each["chains"] / each["annealing"],
         "bound": "1, optimal" if each["proved"] else f"{each['branches'] / each['annealing']:.3f}"}
        for each in named(result("public_graphs")["graphs"])
    ]  # fmt: skip
    return formatted(rows, [
        ("ms", "{name}"), ("layers", "{layers}"), ("human expert", "{expert:.1f}"),
        ("search, with the expert's means", "{with_means:.1f}"), ("search", "{search:.1f}"),
        ("longest path", "{path:.1f}"), ("simulated: annealing", "{annealing:.1f}"),
        ("chains and work / annealing", "{chains:.3f}"), ("branch and bound / annealing", "{bound}"),
    ])  # fmt: skip


def kills() -> str:
    found = result("chaos")
    rows = [*named({f"`gst {name}`": each for name, each in found["commands"].items()}), {**found, "name": "all"}]
    return formatted(rows, [
        ("", "{name}"), ("trials", "{trials}"), ("killed", "{kills}"), ("resumes that failed", "{failed_resumes}"),
        ("lost rows", "{lost_rows}"), ("unreadable files", "{unreadable}"), ("other outcomes", "{differing}"),
        ("processes left", "{orphans}"),
    ])  # fmt: skip


# On a GPU ---------------------------------------------------------------------------------------------------------


def stream_rows() -> list[dict[str, Any]]:
    """Return the programs that ran on several streams of a GPU, with the gain of four over a CUDA graph of the step."""
    found = {"gpt": result("gpu/h200_make_gpu")["workloads"]["gpt"], "inception": result("gpu/h200_inception_lanes")}
    rows = [{**each, "name": name} for name, each in found.items()]
    for row in rows:
        graph, four = (row["ways"][name]["median_ms"] for name in ("as written, graph", "4 lanes, graph"))
        row["gain"] = graph / four
    return rows


def gpu_streams() -> str:
    heads = {"as written": "eager", "as written, graph": "step in a CUDA graph", "1 lanes, graph": "plan, 1 stream",
             "2 lanes, graph": "2 streams", "4 lanes, graph": "4 streams"}  # fmt: skip
    times = [(head, f"{{ways[{key}][median_ms]:.2f}}") for key, head in heads.items()]
    columns = [("ms", "{name}"), ("operations", "{nodes:,}"), *times, ("CUDA graph / 4 streams", "{gain:.2f}x")]
    return formatted(stream_rows(), columns)


def gpu_step() -> str:
    found = result("gpu/h200_make_gpu")["gst"]
    names = STEPS | {"unshared fp32": "every state computed, fp32"}
    rows = [[name, f"{each['step_ms']:.1f}", f"{each['peak_mib']:,.0f}"]
            for key, name in names.items() for each in [found["step"]["variants"][key]]]  # fmt: skip
    recorded = {"GraphSAGE, eager": "eager_ms", "the same, recorded": "recorded_ms"}
    rows += [[name, f"{found['recorded'][key]:.1f}", ""] for name, key in recorded.items()]
    return table(["training step", "ms", "peak MiB"], rows)


def kernels_on_cpu() -> str:
    rows = [{**each, "gain": each["ways"]["compiled, default"] / each["ways"]["kernels on streams"]}
            for each in named(result("kernels_cpu")["programs"])]  # fmt: skip
    return formatted(rows, [
        ("training step on two CPU cores, ms", "{name}"), ("kernels", "{kernels}"),
        ("torch.compile", "{ways[compiled, default]:.1f}"), ("kernels in place", "{ways[kernels on streams]:.1f}"),
        ("gain", "{gain:.2f}x"),
    ])  # fmt: skip


def step_calls() -> str:
    """Return the table of operators, copies and waits of a training step."""
    rows = []
    for name, found in result("step_calls")["cases"].items():
        parts = [each for part, each in found.items() if part != "places_of_waits"]
        copies, waits = (str(sum(each[key] for each in parts)) for key in ("copies", "waits"))
        recorded = found.get("recorded", {}).get("operators", 0)
        launched = sum(each["operators"] for each in parts) - recorded
        rows.append([name, str(launched), f"{recorded:,}" if recorded else "-", copies, waits])
    return table(["step", "operators", "operators of the graph", "copies", "waits"], rows)


def in_short() -> str:
    """Return the table of README.md: the claim, its figures, and the command."""
    memory, names = result("memory"), ("GST+E, difference", "GST+E", "GST")
    giant, alexnet = (
        " / ".join(
            f"{each['score_mean']:.2f} ({each['seconds']:.0f} s)"
            for each in (result(f"convergence_{task}")["variants"][name] for name in variants)
        )
        for task, variants in (("synthetic", names), ("alexnet", (*names[:2], "whole graph")))
    )
    theirs, ours = result("published_step")["step_median"], result("step")["variants"]["shared bf16"]["step_ms"]
    placed, (gpt, inception) = result("placement")["geomean"], (row["gain"] for row in stream_rows())
    ratio, low, high, searches = result("worlds")["over_none"]["eight"]["fitted at 50"]
    rows = [
        ["memory of training, 10<sup>4</sup> to 10<sup>7</sup> nodes",
         f"{min(memory['train_peak_mib']):.0f} to {max(memory['train_peak_mib']):.0f} MiB", "`bench memory`"],
        ["tau on 100,000 nodes, where the whole graph takes over 2 GiB: our table / published / every segment encoded",
         giant, "`variants.compare`"],
        ["AlexNet's layouts: our table / published / whole graph", alexnet, "`variants.compare`"],
        ["training step, published code / ours", f"{1e3 * theirs:,.0f} / {ours:,.0f} ms", "`bench step`"],
        ["plans with fusion over plain PyTorch / `torch.compile`",
         f"{placed['fused_over_pytorch']:.2f}x / {placed['fused_over_compile']:.2f}x", "`bench placement`"],
        ["runtime of plans found with 50 measurements on simulated machines unlike their profile, costs fitted / not",
         f"{ratio:.2f} ({low:.2f} to {high:.2f}), {int(searches)} searches", "`worlds.study`"],
        ["four streams over one CUDA graph of the step: gpt, inception", f"{gpt:.2f}x, {inception:.2f}x",
         "`bench gpu`"],
    ]  # fmt: skip
    return table(["", "result", "`python -m experiments.`"], rows)


def commands() -> str:
    """Return the table of experiments/README.md: each result with the command that made it."""
    rows = []
    for path in sorted(documents.RESULTS.rglob("*.json")):
        name = path.relative_to(documents.RESULTS).as_posix()
        first, *others = result(name.removesuffix(".json"))["command"].replace("|", "\\|").split("; python ")
        rows.append([f"`{name}`", f"`{first}`" + (f" and {len(others)} more, see the file" if others else "")])
    return table(["result", "command"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "results in short": in_short, "commands of the results": commands, "step": step, "against full": against_full,
    "gst claims": claims, "memory": memory,
    "variants": variants, **{f"variants on {task}": partial(convergence, task) for task in VARIANT_TASKS},
    "halos": halos, "estimates": estimates,
    "drop_in matrix": drop_in_matrix, "partition": partition, "distributed": distributed, "checkpoint": checkpoint,
    "scale": lambda: scale("scale"), "scale of an accelerator": lambda: scale("scale_accelerator"),
    "alexnet": alexnet, "tile": tile, "across": across, "ablation": ablation,
    "reduction": rows_of("tpugraphs_reduction", "methods", [
        ("", "{name}"), ("nodes", "{nodes}"), ("updates of nodes in a step", "{updates_per_step:,.0f}"),
        ("fewer than all by", "{fewer_than_full:.0f}x"), ("tau", "{tau_mean:.3f} ± {tau_sd:.3f}"),
        ("step, ms", "{step_ms:.0f}"),
    ]),
    "placement": placement, "placement in short": lambda: placement(FEW),
    "executor": rows_of("executor", "workloads", [
        ("ms", "{name}"), ("operations", "{num_nodes:,}"), ("as written, one thread", "{eager_ms:.0f}"),
        ("captured, one core", "{one_core_ms:.0f}"),
        ("ratio", "{overhead:.2f} ({overhead_low:.2f}..{overhead_high:.2f})"),
        ("as written, all threads", "{pytorch_ms:.0f}"), ("captured, `cpu:0-1`", "{all_cores_ms:.0f}"),
    ]),
    "simulator": rows_of("simulator", "workloads", [
        ("", "{name}"), ("Spearman", "{spearman:.2f}"), ("error", "{mape:.1%}"),
        ("ideal: Spearman", "{ideal[spearman]:.2f}"), ("error", "{ideal[mape]:.1%}"),
        ("memory (worst)", "{peak_error:.1%} ({peak_error_worst:.0%})"),
        ("plans a second", "{evaluations_per_second:,.0f}"),
    ]),
    "simulated machines": simulated_machines, "simulated gpus": simulated_gpus,
    "public graphs": public_graphs, "kills": kills, "gpu streams": gpu_streams, "gpu step": gpu_step,
    "gpu place": rows_of("gpu/h200_place_inception", "plans", [
        ("plan", "`{name}`"), ("median ms, first set of runs", "{median_ms:.2f}"), ("", "{reason}"),
    ]),
    "kernels on cpu": kernels_on_cpu, "calls of a training step": step_calls,
}  # fmt: skip
