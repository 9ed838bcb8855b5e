"""The network of the job shop policy: its features, where its weights lie in one vector, and the file of them."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from gst.util.untrusted import read_arrays
from gst.util.writing import atomic_path

FEATURES = (
    "start_after_first", "end_after_first", "time", "tail_below_longest", "tail", "job_bound",
    "machine_bound_over_best", "machine_bound", "idle_gap", "wait_for_machine", "operations_left",
    "machine_work_left", "next_time", "next_machine_busy", "next_machine_starves", "next_machine_work_left",
    "next_machine_bound", "own_machine_bound", "num_candidates", "progress", "tail_over_mean", "bound_if_postponed",
    "way_to_bottleneck", "machine_after_next_bound", "jobs_to_machines", "delay_of_others",
    "operations_left_over_mean",
)  # fmt: skip
"""Features of a candidate operation; `experiments.reproductions.jobshop.rollout` computes them in this order."""

HIDDEN = 16
NUM_FEATURES = len(FEATURES)
LINEAR = 1  # where the linear score begins; weight 0 is of the window of candidates, see `rollout`
LAYER = LINEAR + NUM_FEATURES  # where the first layer begins, (HIDDEN, NUM_FEATURES + 1), biases last
OUTPUT = LAYER + HIDDEN * (NUM_FEATURES + 1)  # where the weights of the hidden units begin
NUM_WEIGHTS = OUTPUT + HIDDEN
SHIPPED = "jobshop.npz"
RULE = {"start_after_first": -1.0, "tail": 2.0, "tail_over_mean": 1.0}
"""Weights by hand: most work remaining, which prefers what starts soon."""

Weights = Float32[np.ndarray, " weights"]


def initial_weights(seed: int) -> Weights:
    """Weights that training begins with: a rule by hand (`RULE`), to which a random hidden layer adds little.

    Examples:
        >>> initial_weights(0).shape == (NUM_WEIGHTS,)
        True
    """
    generator = np.random.default_rng(seed)
    weights = np.zeros(NUM_WEIGHTS, np.float32)
    for name, value in RULE.items():
        weights[LINEAR + FEATURES.index(name)] = value
    layer = generator.normal(0.0, NUM_FEATURES**-0.5, (HIDDEN, NUM_FEATURES + 1))
    weights[LAYER:OUTPUT] = layer.reshape(-1)
    weights[OUTPUT:] = generator.normal(0.0, 0.1 * HIDDEN**-0.5, HIDDEN)
    return weights


def save_weights(path: Path, weights: Weights) -> None:
    """Write weights and the names of their features as .npz."""
    with atomic_path(path) as partial, partial.open("wb") as file:
        np.savez(file, weights=weights, features=np.array(FEATURES))


def load_weights(path: Path | None = None) -> Weights:
    """Weights from a file that the training wrote; those that come with the package if None.

    Raises:
        ValueError: the file is missing, no such file, or of a policy with other features.
    """
    if path is None:
        with resources.as_file(resources.files("experiments.reproductions.jobshop") / SHIPPED) as shipped:
            return load_weights(shipped)
    arrays = read_arrays(path)
    weights, names = arrays.get("weights"), arrays.get("features")
    if weights is None or names is None or tuple(names.tolist()) != FEATURES or weights.shape != (NUM_WEIGHTS,):
        raise ValueError(f"{path}: no weights of a job shop policy with these features; train again")
    if weights.dtype.kind != "f" or not np.isfinite(weights).all():
        raise ValueError(f"{path}: some weights are not finite numbers; train again")
    return weights.astype(np.float32)
