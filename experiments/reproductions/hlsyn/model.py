"""Model of HLSyn latencies: an ensemble of loop-tree networks, and trees that correct the analytical estimate."""

from __future__ import annotations

from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64
from scipy.stats import kendalltau

from experiments.reproductions.hlsyn.designs import Designs, chains
from experiments.reproductions.hlsyn.network import LoopTreeNetwork, predict, train_network
from experiments.reproductions.hlsyn.splits import by_group
from experiments.reproductions.trees import train_trees
from gst.cost.hlsyn.candidates import family
from gst.cost.trees import Trees
from gst.process.progress import bar

COVERED = 0.9  # share of designs that an interval should hold


class Settings(NamedTuple):
    """Sizes of a model.

    Args:
        members: networks.
        epochs: of each.
        hidden: width of each.
    """

    members: int = 3
    epochs: int = 15
    hidden: int = 48


class Model(NamedTuple):
    """A trained model.

    Args:
        networks: their predictions are averaged.
        trees: of log2 cycles less the analytical estimate.
        width: the half width of an interval, in units of the predicted scale.
    """

    networks: list[LoopTreeNetwork]
    trees: Trees
    width: float

    def predict(self, designs: Designs) -> tuple[Float64[np.ndarray, " designs"], Float64[np.ndarray, " designs"]]:
        """log2 cycles of each design, and the half width of an interval that holds 90 % of designs of new families."""
        parts = [predict(each, designs.program, designs.loops, designs.parents) for each in self.networks]
        means, scales = (np.stack([part[place] for part in parts]).astype(np.float64) for place in (0, 1))
        corrected = designs.program[:, 0] + self.trees.predict(chains(designs))
        scale = np.hypot(scales.mean(0), means.std(0))
        return (means.mean(0) + corrected) / 2, self.width * scale


def train(designs: Designs, settings: Settings, seed: int, calibrated: bool = True) -> Model:
    """Train on all of `designs`.

    Args:
        calibrated: set the width of intervals by predictions of families that were left out, which takes three more
            trainings of one network; otherwise it is 1.
    """
    weight = 1 / np.sqrt(np.bincount(designs.group)[designs.group])
    residual = designs.log_cycles - designs.program[:, 0]
    trees = train_trees(chains(designs), residual, weight, seed)
    networks = [
        train_network(
            designs.program, designs.loops, designs.parents, designs.log_cycles, designs.group,
            seed=seed + 100 * member, epochs=settings.epochs, hidden=settings.hidden,
        )
        for member in bar(range(settings.members), desc="networks")
    ]  # fmt: skip
    model = Model(networks, trees, 1.0)
    return model._replace(width=_width(designs, settings, seed)) if calibrated else model


def _width(designs: Designs, settings: Settings, seed: int) -> float:
    """What 90 % of errors on families left out stay below, in units of the predicted scale."""
    ratios = []
    folds = folds_of(designs, 3, seed)
    few = settings._replace(members=1)
    for fold in range(3):
        model = train(designs.where(folds != fold), few, seed + fold, calibrated=False)
        rest = designs.where(folds == fold)
        mean, scale = model.predict(rest)
        ratios.append(np.abs(mean - rest.log_cycles) / scale)
    return float(np.quantile(np.concatenate(ratios), COVERED))


def folds_of(designs: Designs, folds: int, seed: int) -> np.ndarray:
    """The fold of each design; a family is in one of them."""
    return by_group([family(designs.names[each].split("/")[-1]) for each in designs.group], folds, seed)


def scores(designs: Designs, mean: np.ndarray, width: np.ndarray | None = None) -> dict[str, Any]:
    """`rmse` of log2 cycles over all designs, `tau` within programs (their mean), and `coverage` of the intervals; the
    same of each program."""

    def of(chosen: np.ndarray) -> dict[str, float | None]:
        error = mean[chosen] - designs.log_cycles[chosen]
        tau = (
            kendalltau(mean[chosen], designs.log_cycles[chosen]).statistic
            if np.ptp(designs.log_cycles[chosen])
            else None
        )
        covered = None if width is None else float((np.abs(error) <= width[chosen]).mean())
        known = None if tau is None else float(np.nan_to_num(tau))
        return {"rmse": float(np.sqrt(np.mean(error**2))), "tau": known, "coverage": covered}

    programs = {designs.names[each]: of(designs.group == each) for each in np.unique(designs.group)}
    whole = of(np.ones(len(designs), bool))
    taus = [each["tau"] for each in programs.values() if each["tau"] is not None]
    return whole | {"tau": float(np.mean(taus)) if taus else None, "programs": programs}


def save(model: Model, path: Path) -> None:
    """Write a file that `load` reads without unpickling."""
    torch.save(
        {
            "hidden": model.networks[0].loop[0].out_features, "width": model.width,
            "networks": [each.state_dict() for each in model.networks],
            "base": model.trees.base, "trees": [torch.from_numpy(array) for array in model.trees[1:]],
        }, path,
    )  # fmt: skip


def load(path: Path) -> Model:
    """A model that `save` wrote.

    Raises:
        ValueError: the file is none.
    """
    try:
        saved = torch.load(path, weights_only=True)
        networks = []
        for state in saved["networks"]:
            networks.append(LoopTreeNetwork(saved["hidden"]).eval())
            networks[-1].load_state_dict(state)
        trees = Trees(saved["base"], *(array.numpy() for array in saved["trees"]))
        return Model(networks, trees, saved["width"])
    except (OSError, KeyError, RuntimeError, TypeError, AttributeError, EOFError, UnpicklingError) as error:
        raise ValueError(f"{path} is no checkpoint of this reproduction; make one with its command train") from error
