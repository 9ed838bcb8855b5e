"""Learned cost models: tables and numbers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from experiments.figures.documents import Number, result, table

TPUGRAPHS = "experiments/reproductions/tpugraphs/README.md"
BENCHMARKS = "experiments/bench/README.md"
ALEXNET = {
    "tau_mean": "`StateModel`", "ridge_tau": "ridge, tuned", "gbdt_tau": "gradient boosting", "mlp_tau": "plain MLP"
}  # fmt: skip
HELD_OUT, UNIQUE = 1_000, 23_905  # configurations of AlexNet
TASKS = {"unet_3d": "U-Net 3D, tau", "alexnet": "AlexNet, tau", "tile": "tile sizes, error@1"}
NOTHING = {"interval": 0.0}
HLSYN_SPLITS = ("families", "programs", "20 labels", "50 labels", "random")
STUDENT = {3: 4.303, 4: 3.182, 5: 2.776}  # 97.5 % quantile of Student's t, by number of values
TRAINED_ON = {"alexnet": "AlexNet", "alexnet + tile": "AlexNet and tile sizes"}


def alexnet() -> str:
    labels = result("tpugraphs_alexnet")["labels"]
    counts = {key: UNIQUE - HELD_OUT if key == "all" else int(key) for key in labels}
    return table(
        ["labels", *ALEXNET.values()],
        [[f"{counts[key]:,}", *(f"{each[name]:.3f}" for name in ALEXNET)] for key, each in labels.items()],
    )


def tile() -> str:
    found = result("tpugraphs_tile")
    keys = ("error_at_1", "error_at_5")
    rows = [
        [name, *(f"{100 * each[key]:.1f} ± {100 * each[f'{key}_deviation']:.1f} %" for key in keys)]
        for name, each in found["methods"].items()
    ]
    best = [f"{100 * found[key]:.1f} %" for key in ("best_possible_at_1", "best_possible_at_5")]
    return table(["", "the first (error@1)", "the best of five (error@5)"], [*rows, ["best possible", *best]])


def across() -> str:
    found = result("tpugraphs_across")["trained_on"]

    def cells(method: str) -> list[str]:
        each = [found[data][method] for data in TRAINED_ON]
        taus = [f"{one['tau_mean']:.3f} ± {one['interval']:.3f}" for one in each]
        return [*taus, f"{each[0]['known_mean']:.3f}"]

    head = [*(f"U-Net, learned from {name}" for name in TRAINED_ON.values()), "AlexNet itself"]
    return table(["tau", *head], [[method, *cells(method)] for method in found["alexnet"]])


def ablation() -> str:
    found = result("tpugraphs_ablation")["techniques"]
    return table(
        ["", "tau", "difference from the base", "step, ms"],
        [
            [name, f"{each['tau_mean']:.3f}", _difference(each), f"{each['step_ms']:.1f}"]
            for name, each in found.items()
        ],
    )


def _difference(each: dict[str, float]) -> str:
    return f"{each['difference']:+.3f} ± {each['interval']:.3f}" if each["interval"] else ""


def reduction() -> str:
    found = result("tpugraphs_reduction")["methods"]
    return table(
        ["", "nodes", "updates of nodes in a step", "fewer than all by", "tau", "step, ms"],
        [[name, f"{each['nodes']}", f"{each['updates_per_step']:,.0f}", f"{each['fewer_than_full']:.0f}x",
          f"{each['tau_mean']:.3f} ± {each['tau_sd']:.3f}", f"{each['step_ms']:.0f}"] for name, each in found.items()],
    )  # fmt: skip


def features() -> str:
    found = result("hlo_features")["tasks"]
    bases = [f"{found[task]['all']['mean']:.3f}" for task in TASKS]
    names = [name for name in found["unet_3d"] if name != "all"]
    cells = {name: [_difference(found[task].get(name, NOTHING)) for task in TASKS] for name in names}
    return table(["", *TASKS.values()], [["all", *bases], *([name, *row] for name, row in cells.items())])


def plans() -> str:
    found = result("measured_plans")
    columns = [(kind, key) for kind in ("seen", "unseen") for key in ("tau", "linear_tau")]

    def taus(program: str) -> list[str]:
        return [f"{statistics.mean(found[kind]['programs'][program][key]):.2f}" for kind, key in columns]

    rows = [[program, *taus(program), f"{each['repeats_tau']:.2f}"] for program, each in found["measured"].items()]
    means = [f"{found[kind]['mean'][key]:.2f}" for kind, key in columns]
    head = ["tau", "known program", "ridge", "unknown program", "ridge", "another run of the plans"]
    return table(head, [*rows, ["mean", *means, ""]])


def _ceilings() -> Sequence[float]:
    found = result("tpugraphs_across")
    return [found["ceiling"], found["ceiling_error"], found["chance"], found["ridge_on_itself"]]


def circuits(task: str) -> str:
    rows = result("circuits")[task].items()
    return table(
        ["", "tau, mean of three parts", "of each part", "error of ANDs"],
        [
            [
                name, f"{each['tau_mean']:.3f}", ", ".join(f"{tau:.3f}" for tau in each["taus"]),
                f"{100 * each['error']:.1f} %" if each["error"] is not None else "-",
            ]
            for name, each in rows
        ],
    )  # fmt: skip


def hlsyn() -> str:
    splits = result("hlsyn")["splits"]
    rows = [
        [
            split, name, _over_seeds(each, "rmse"), _over_seeds(each, "program_rmse"), _over_seeds(each, "tau"),
            "-" if each["coverage"] is None else f"{100 * each['coverage']:.0f} %", str(len(each["seeds"])),
        ]
        for split in HLSYN_SPLITS
        for name, each in splits[split].items()
    ]  # fmt: skip
    return table(
        ["split", "", "rmse of log2 cycles", "mean of programs", "tau in a program", "in 90 % intervals", "seeds"], rows
    )


def hlsyn_seeds() -> str:
    rows = [
        [split, name, _over_seeds(each, "rmse"), _over_seeds(each, "tau"), str(len(each["seeds"]))]
        for split, scores in result("hlsyn_seeds")["splits"].items()
        for name, each in scores.items()
    ]
    return table(["split", "", "rmse of log2 cycles", "tau in a program", "seeds"], rows)


def _over_seeds(scores: dict[str, Any], key: str) -> str:
    """Return the mean over seeds and, for three and more, its 95 % interval by Student's t."""
    values = [each[key] for each in scores["seeds"]]
    if None in values:
        return "-"
    if len(values) < 3:
        return f"{statistics.mean(values):.2f}"
    width = STUDENT[len(values)] * statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):.2f} ± {width:.2f}"


def hlsyn_outcomes() -> str:
    def cell(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}"

    rows = []
    for name, each in result("hlsyn_outcomes")["rows"].items():
        valid = each["validity"]
        is_guess = name == "analytical estimate alone"  # it says nothing of validity
        cells = [
            "-" if is_guess else cell(valid[key]) for key in ("auc", "auc_in_program", "balanced_accuracy", "brier")
        ]
        cells += [f"{cell(used['rmse'])} / {cell(used['tau'])}" for used in each["resources"].values()]
        rows.append([name, *cells])
    names = list(next(iter(result("hlsyn_outcomes")["rows"].values()))["resources"])
    return table(["", "ROC AUC", "in a program", "balanced accuracy", "Brier", *names], rows)


def hlsyn_importance() -> str:
    rows = [
        [name, *(f"{each[row]['rmse']:.2f} / {each[row]['tau']:.2f}" for row in ("estimate", "network", "both"))]
        for name, each in result("hlsyn_importance")["parts"].items()
    ]
    return table(["rules of the estimate", "estimate alone", "network alone", "mean of both"], rows)


def hlsyn_search() -> str:
    saved = result("hlsyn_search")
    rows = []
    for name, each in saved["means"].items():
        cells = zip(each["regret"], each["interval"], strict=True)
        rows.append([name, *(f"{value:.2f} ({low:.2f} to {high:.2f})" for value, (low, high) in cells)])
    return table(["", *(f"after {count} designs" for count in saved["after"])], rows)


def timm() -> str:
    rows = []
    saved = result("timm")
    for split in ("families", "models", "random", "machines"):
        for method, seeds in saved.get(split, {}).items():
            for case, each in _timm_cases(split, seeds).items():
                rows.append([case, method, *_timm_cells(each), str(len(each))])
    return table(["left out", "", "median error, %", "90th percentile, %", "intervals hold, %", "seeds"], rows)


def _timm_cases(split: str, seeds: Sequence[dict[str, Any]]) -> dict[str, Sequence[dict[str, Any]]]:
    if split != "machines":
        return {split: seeds}
    parts = {
        "": "machines, none", "gpus": "GPUs, none", "cpus": "CPUs, none",
        "ten": "machines, 10 models", "ten gpus": "GPUs, 10 models", "ten cpus": "CPUs, 10 models",
    }  # fmt: skip
    there = {part: label for part, label in parts.items() if not part or part in seeds[0]}
    return {label: [each[part] if part else each for each in seeds] for part, label in there.items()}


def _timm_cells(seeds: Sequence[dict[str, Any]]) -> list[str]:
    middle, tail = (statistics.fmean(one[key] for one in seeds) for key in ("median_error", "p90_error"))
    held = [one["coverage"] for one in seeds if one["coverage"] is not None]
    return [f"{middle:.1f}", f"{tail:.1f}", f"{100 * statistics.fmean(held):.0f}" if held else ""]


def neusight(part: str = "machines") -> str:
    record = result("neusight")
    machines = record[part]
    rows = [
        [method, *(
            f"{row['mean']:.1f} ({row['interval'][0]:.1f} to {row['interval'][1]:.1f})"
            + "*" * (method.startswith("NeuSight (") and name in record["neusight_learnt"])
            for name, row in ((name, each["rows"][method]) for name, each in machines.items())
        )]
        for method in next(iter(machines.values()))["rows"]
    ]  # fmt: skip
    return table(["mean error, %", *(name.replace("_", " ") for name in machines)], rows)


def neusight_intervals() -> str:
    record = result("neusight")
    rows = [
        [name.replace("_", " "), {"machines": "inference", "training": "training"}[part], str(len(each["cases"])),
         "{:+.0f} to {:+.0f}".format(*each["interval_percent"]), f"{each['in_interval']:.0f}"]
        for part in ("machines", "training")
        for name, each in record[part].items()
    ]  # fmt: skip
    return table(["", "", "cases", "90 % interval, %", "of the cases inside, %"], rows)


def neusight_settings() -> str:
    record = result("neusight")
    names = [name.replace("_", " ") for name in next(iter(record["choice"].values()))]
    rows = [
        [setting, f"{sum(errors.values()) / len(errors):.1f}", *(f"{each:.1f}" for each in errors.values()),
         f"{record['target_by_setting'][setting]:.1f}"]
        for setting, errors in record["choice"].items()
    ]  # fmt: skip
    return table(["mean error, %", "mean of six", *names, record["target"].replace("_", " ")], rows)


def kernelbench() -> str:
    methods = result("kernelbench")["methods"]
    rows = [
        [host.replace("_", " "), name, "{:.1f} ({:.1f} to {:.1f})".format(each["right"], *each["interval_of_right"]),
         f"{each['right_where_eager_is_faster']:.1f}", f"{each['longer']:.1f}"]
        for name, hosts in methods.items()
        for host, each in hosts.items()
    ]  # fmt: skip
    return table(["host", "", "right, %", "right where eager is faster, %", "longer than the faster, %"], sorted(rows))


def kernelbench_times() -> str:
    rows = [
        [host.replace("_", " "), way, *(f"{each[key]:.0f}" for key in ("median_error", "p90_error", "coverage"))]
        for host, ways in result("kernelbench")["step_time"].items()
        for way, each in ways.items()
    ]
    return table(["host", "", "median error, %", "90th percentile, %", "in 90 % intervals, %"], rows)


def kernelbench_levels() -> str:
    hosts = result("kernelbench")["step_time"]
    rows = [
        [host.replace("_", " "), way, level, str(each["programs"]), f"{each['median_ratio']:.2f}",
         *(f"{each[key]:.0f}" for key in ("median_error", "coverage"))]
        for host, ways in hosts.items()
        for way, errors in ways.items()
        for level, each in errors["levels"].items()
    ]  # fmt: skip
    header = ["host", "", "", "programs", "median of estimate / time", "median error, %", "in 90 % intervals, %"]
    return table(header, rows)


def groups() -> str:
    found = result("groups")
    rows = [
        [
            name,
            "{:.2f} ({:.2f} to {:.2f})".format(*each["tau"]),
            f"{each['tau_together']:.2f}",
            f"{100 * each['error']:.0f}",
        ]
        for name, each in found["methods"].items()
    ]
    head = ["", "tau within a program never seen", "of all together", "median error, %"]
    return table([f"{found['groups']} groups of {found['programs']} programs", *head[1:]], rows)


TABLES = {
    "groups": groups, "hlsyn": hlsyn, "hlsyn search": hlsyn_search, "hlsyn outcomes": hlsyn_outcomes,
    "hlsyn importance": hlsyn_importance, "hlsyn seeds": hlsyn_seeds, "timm": timm,
    "neusight": neusight, "neusight training": lambda: neusight("training"),
    "neusight intervals": neusight_intervals, "neusight settings": neusight_settings,
    "kernelbench": kernelbench, "kernelbench times": kernelbench_times,
    "kernelbench levels": kernelbench_levels,
    "alexnet": alexnet, "tile": tile, "across": across, "ablation": ablation, "reduction": reduction,
    "features": features, "plans": plans, "circuits designs": lambda: circuits("designs"),
    "circuits recipes": lambda: circuits("recipes"),
}  # fmt: skip
NUMBERS: list[Number] = [
    (TPUGRAPHS, "a perfect model {:.3f}", lambda: [result("tpugraphs_alexnet")["labels"]["all"]["ceiling"]]),
    (TPUGRAPHS, "a perfect model reaches {:.3f} ± {:.3f}, a random order stays within ± {:.2f}, and ridge "
     "regression that learns from the U-Net's own runs reaches {:.3f}", _ceilings),
]  # fmt: skip
