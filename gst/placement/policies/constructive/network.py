"""The network of the constructive policy: its features, where its weights lie in one vector, and the file of them."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from gst.util.untrusted import read_arrays
from gst.util.writing import atomic_path

PRIORITIES = (
    "upward_rank", "downward_rank", "optimistic_cost", "time", "transfer_out", "num_consumers", "transfers_in",
    "ready_since",
)  # fmt: skip
"""Features of an operation from which its place in the list of ready ones follows, once, when it becomes ready."""

FEATURES = (
    "rank", "rank_below_first", "sufferage", "transfer_out", "num_consumers", "consumers_waiting_for_it_alone", "time",
    "ready_before_devices", "group_to_come", "start", "finish_of_its_own", "finish", "idle_gap", "wait_for_device",
    "finish_and_optimistic", "finish_and_optimistic_of_its_own", "way_to_the_end", "slower_than_best",
    "inputs_here", "bytes_to_move", "inputs_of_consumers_here", "inputs_of_consumers_elsewhere", "start_of_consumer",
    "device_busy", "device_over_mean", "memory_left", "work_left", "num_ready", "transfers_to_times", "first_come",
)  # fmt: skip
"""Features of a ready operation on a device; `gst.placement.policies.constructive.rollout` computes them in this order."""

HIDDEN = 16
NUM_FEATURES, NUM_PRIORITIES = len(FEATURES), len(PRIORITIES)
LAYER = NUM_PRIORITIES + NUM_FEATURES  # where the first layer begins, (HIDDEN, NUM_FEATURES + 1), biases last
OUTPUT = LAYER + HIDDEN * (NUM_FEATURES + 1)  # where the weights of the hidden units begin
NUM_WEIGHTS = OUTPUT + HIDDEN
SHIPPED = "constructive.npz"
RULE = {"start": -1.0, "finish_and_optimistic": -2.0, "inputs_of_consumers_here": 0.3, "rank_below_first": 0.3}
"""Weights by hand of four features: .7 % behind the better of HEFT and min-EFT, on generated problems."""

Weights = Float32[np.ndarray, " weights"]


def rule_weights() -> Weights:
    """Weights that make the policy a list schedule: the ready operation of greatest upward rank goes where it ends
    first, if one operation alone is looked at.

    Examples:
        >>> int(np.count_nonzero(rule_weights()))
        2
    """
    weights = np.zeros(NUM_WEIGHTS, np.float32)
    weights[PRIORITIES.index("upward_rank")] = 1.0
    weights[NUM_PRIORITIES + FEATURES.index("finish_of_its_own")] = -1.0
    return weights


def initial_weights(seed: int) -> Weights:
    """Weights that training begins with: a rule by hand (`RULE`), to which a random hidden layer adds little.

    The score of an operation on a device is a linear function of the features and a layer of `HIDDEN` rectified units.
    """
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
    """Weights from a file that `gst train-policy` wrote; those that come with the package if None.

    Raises:
        ValueError: the file is missing, no such file, or of a policy with other features.
    """
    if path is None:
        with resources.as_file(resources.files("gst.placement.policies.constructive") / SHIPPED) as shipped:
            return load_weights(shipped)
    arrays = read_arrays(path)
    if missing := {"weights", "features", "priorities"} - arrays.keys():
        raise ValueError(f"{path}: has no {', '.join(sorted(missing))}; want a file that gst train-policy wrote")
    weights = arrays["weights"]
    names = tuple(arrays["features"].tolist()), tuple(arrays["priorities"].tolist())
    if names != (FEATURES, PRIORITIES) or weights.shape != (NUM_WEIGHTS,) or weights.dtype.kind != "f":
        raise ValueError(f"{path}: weights of a policy with other features; train again with gst train-policy")
    if not np.isfinite(weights).all():
        raise ValueError(f"{path}: some weights are not finite; train again with gst train-policy")
    return weights.astype(np.float32)
