"""Model of HLSyn latencies: the analytical estimate, networks that correct it over the loop tree, and trees on designs
of programs that look alike."""

from __future__ import annotations

import io
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import torch
from jaxtyping import Float64
from scipy.stats import kendalltau

from experiments.reproductions.hlsyn.cycles.candidates import family
from experiments.reproductions.hlsyn.cycles.resources import RESOURCES
from experiments.reproductions.hlsyn.designs import Designs
from experiments.reproductions.hlsyn.network import LoopTreeNetwork, predict, train_network
from experiments.reproductions.hlsyn.outcomes import OutcomeModel
from experiments.reproductions.hlsyn.relatives import Relatives, relatives_of, width_of_own
from experiments.reproductions.hlsyn.splits import by_group
from experiments.reproductions.timm.step_time.model import Trees
from gst.util.progress import bar

TREES = ("validity", *RESOURCES)
COVERED = 0.9  # share of designs that an interval should hold
LEAST_SCALE = 0.1  # in powers of two


class Settings(NamedTuple):
    """Sizes of a model.

    Args:
        members: networks.
        epochs: of each.
        hidden: width of each.
    """

    members: int = 3
    epochs: int = 6
    hidden: int = 48


class Model(NamedTuple):
    """A trained model.

    Args:
        networks: their mean is averaged with the analytical estimate.
        relatives: designs learned from, for programs that look like theirs.
        width: the half width of an interval, in units of the predicted scale.
        outcomes: validity and resources; None where they were not learned.
    """

    networks: list[LoopTreeNetwork]
    relatives: Relatives
    width: float
    outcomes: OutcomeModel | None = None

    def base(self, designs: Designs) -> tuple[Float64[np.ndarray, " designs"], Float64[np.ndarray, " designs"]]:
        """log2 cycles of each design and their scale, as if no program looked like its own."""
        parts = [predict(each, designs.program, designs.loops, designs.parents) for each in self.networks]
        means, scales = (np.stack([part[place] for part in parts]).astype(np.float64) for place in (0, 1))
        estimate = designs.program[:, 0].astype(np.float64)
        gap = np.abs(means.mean(0) - estimate) / 2
        return (means.mean(0) + estimate) / 2, np.sqrt(scales.mean(0) ** 2 + gap**2 + LEAST_SCALE**2)

    def predict(self, designs: Designs) -> tuple[Float64[np.ndarray, " designs"], Float64[np.ndarray, " designs"]]:
        """Return log2 cycles of each design, and half widths of intervals of 90 % coverage.

        The intervals hold for designs of new families, and for new designs of programs in training.
        """
        mean, scale = self.base(designs)
        return self.relatives.blend(designs, mean, self.width * scale)


def train(designs: Designs, settings: Settings, seed: int, calibrated: bool = True) -> Model:
    """Train on all of `designs`.

    Args:
        calibrated: set the width of intervals by predictions of families that were left out, which takes three more
            trainings of one network; otherwise it is 1.
    """
    networks = [
        train_network(
            designs.program, designs.loops, designs.parents, designs.log_cycles, designs.group,
            seed=seed + 100 * member, epochs=settings.epochs, hidden=settings.hidden,
        )
        for member in bar(range(settings.members), desc="networks")
    ]  # fmt: skip
    model = Model(networks, relatives_of(designs), 1.0)
    if not calibrated:
        return model
    relatives = model.relatives._replace(width=width_of_own(designs, COVERED, seed))
    return model._replace(width=_width(designs, settings, seed), relatives=relatives)


def _width(designs: Designs, settings: Settings, seed: int) -> float:
    """Return the 90 % quantile of errors on held-out families, in units of the predicted scale.

    The weight of a program is the root of its number of designs.
    """
    ratios, weights = [], []
    folds = folds_of(designs, 3, seed)
    for fold in range(3):
        model = train(designs.where(folds != fold), settings._replace(members=1), seed + fold, calibrated=False)
        rest = designs.where(folds == fold)
        mean, scale = model.base(rest)
        ratios.append(np.abs(mean - rest.log_cycles) / scale)
        weights.append(1 / np.sqrt(np.bincount(rest.group)[rest.group]))
    ratio, weight = np.concatenate(ratios), np.concatenate(weights)
    order = np.argsort(ratio)
    place = np.searchsorted(np.cumsum(weight[order]), COVERED * weight.sum())
    return float(ratio[order[min(place, len(order) - 1)]])


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
    packed = io.BytesIO()
    trees = {} if model.outcomes is None else {
        f"{name}.{key}": getattr(each, key)
        for name, each in zip(TREES, (model.outcomes.validity, *model.outcomes.usage), strict=True)
        for key in Trees._fields
    }  # fmt: skip
    np.savez_compressed(
        packed, **trees, columns=model.relatives.columns, residual=model.relatives.residual,
        programs=np.array(model.relatives.programs), skeletons=np.array(model.relatives.skeletons),
    )  # fmt: skip
    torch.save(
        {
            "hidden": model.networks[0].loop[0].out_features, "width": model.width, "own": model.relatives.width,
            "networks": [each.state_dict() for each in model.networks],
            "relatives": torch.frombuffer(bytearray(packed.getvalue()), dtype=torch.uint8),
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
        with np.load(io.BytesIO(saved["relatives"].numpy().tobytes()), allow_pickle=False) as packed:
            relatives = Relatives(
                packed["columns"], packed["residual"],
                tuple(packed["programs"].tolist()), tuple(packed["skeletons"].tolist()), saved["own"],
            )  # fmt: skip
            trees = [
                Trees(float(packed[f"{name}.base"]), *(packed[f"{name}.{key}"] for key in Trees._fields[1:]))
                for name in TREES
                if f"{name}.base" in packed
            ]
        outcomes = OutcomeModel(trees[0], tuple(trees[1:])) if trees else None
        return Model(networks, relatives, saved["width"], outcomes)
    except (
        OSError, KeyError, RuntimeError, TypeError, AttributeError, EOFError, UnpicklingError, ValueError, BadZipFile
    ) as error:  # fmt: skip
        raise ValueError(f"{path} is no checkpoint of this reproduction; make one with its command train") from error
