"""Weights of the constructive policy: by hand, before training, and in files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gst.placement.policies.constructive.network import (
    FEATURES,
    HIDDEN,
    LAYER,
    NUM_FEATURES,
    NUM_PRIORITIES,
    NUM_WEIGHTS,
    OUTPUT,
    PRIORITIES,
    Weights,
    shipped_weights,
)
from gst.util.untrusted import read_arrays
from gst.util.writing import atomic_path

RULE = {"start": -1.0, "finish_and_optimistic": -2.0, "inputs_of_consumers_here": 0.3, "rank_below_first": 0.3}
"""Weights by hand of four features: 0.7 % behind the better of HEFT and min-EFT, on generated problems."""


def rule_weights() -> Weights:
    """Return weights that make the policy a list schedule: the ready operation of greatest upward rank goes where it
    ends first, if one operation at a time is scored.

    Examples:
        >>> int(np.count_nonzero(rule_weights()))
        2
    """
    weights = np.zeros(NUM_WEIGHTS, np.float32)
    weights[PRIORITIES.index("upward_rank")] = 1.0
    weights[NUM_PRIORITIES + FEATURES.index("finish_of_its_own")] = -1.0
    return weights


def initial_weights(seed: int) -> Weights:
    """Return weights to begin training with: a rule by hand (`RULE`), to which a random hidden layer adds little."""
    generator = np.random.default_rng(seed)
    weights = np.zeros(NUM_WEIGHTS, np.float32)
    weights[PRIORITIES.index("upward_rank")] = 1.0
    for name, value in RULE.items():
        weights[NUM_PRIORITIES + FEATURES.index(name)] = value
    layer = generator.normal(0.0, NUM_FEATURES**-0.5, (HIDDEN, NUM_FEATURES + 1))
    weights[LAYER:OUTPUT] = layer.reshape(-1)
    weights[OUTPUT:] = generator.normal(0.0, 0.1 * HIDDEN**-0.5, HIDDEN)
    return weights


def save_weights(path: Path, weights: Weights) -> None:
    """Write weights and the names of their features as .npz."""
    with atomic_path(path) as partial, partial.open("wb") as file:
        np.savez(file, weights=weights, features=np.array(FEATURES), priorities=np.array(PRIORITIES))


def load_weights(path: Path | None = None) -> Weights:
    """Read weights from a file of `save_weights`; the weights of the package if None.

    Raises:
        ValueError: the file is missing, damaged, or of a policy with other features.
    """
    if path is None:
        return shipped_weights()
    arrays = read_arrays(path)
    if missing := {"weights", "features", "priorities"} - arrays.keys():
        raise ValueError(f"{path}: has no {', '.join(sorted(missing))}; want a file of save_weights")
    weights = arrays["weights"]
    names = tuple(arrays["features"].tolist()), tuple(arrays["priorities"].tolist())
    if names != (FEATURES, PRIORITIES) or weights.shape != (NUM_WEIGHTS,) or weights.dtype.kind != "f":
        raise ValueError(f"{path}: weights of a policy with other features; train the policy again")
    if not np.isfinite(weights).all():
        raise ValueError(f"{path}: some weights are not finite; train the policy again")
    return weights.astype(np.float32)
