"""Learned cost models: tables and numbers."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.figures.documents import Number, result, table

TPUGRAPHS = "experiments/reproductions/tpugraphs/README.md"
BENCHMARKS = "experiments/bench/README.md"
ALEXNET = {
    "tau_mean": "`StateModel`", "ridge_tau": "ridge, tuned", "gbdt_tau": "gradient boosting", "mlp_tau": "plain MLP"
}  # fmt: skip
HELD_OUT, UNIQUE = 1_000, 23_905  # configurations of AlexNet
TASKS = {"unet_3d": "U-Net 3D, tau", "alexnet": "AlexNet, tau", "tile": "tile sizes, error@1"}
NOTHING = {"interval": 0.0}
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


def _ceilings() -> Sequence[float]:
    found = result("tpugraphs_across")
    return [found["ceiling"], found["ceiling_error"], found["chance"], found["ridge_on_itself"]]


TABLES = {
    "alexnet": alexnet, "tile": tile, "across": across, "ablation": ablation, "reduction": reduction,
    "features": features,
}  # fmt: skip
NUMBERS: list[Number] = [
    (TPUGRAPHS, "a perfect model {:.3f}", lambda: [result("tpugraphs_alexnet")["labels"]["all"]["ceiling"]]),
    (TPUGRAPHS, "a perfect model reaches {:.3f} ± {:.3f}, a random order stays within ± {:.2f}, and ridge "
     "regression that learns from the U-Net's own runs reaches {:.3f}", _ceilings),
]  # fmt: skip
