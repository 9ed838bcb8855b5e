"""Circuits drawn at random."""

from __future__ import annotations

import numpy as np

from experiments.reproductions.circuits.circuit import Circuit


def random_circuit(seed: int, num_inputs: int = 6, num_ands: int = 300) -> Circuit:
    generator = np.random.default_rng(seed)
    bounds = 2 * (1 + num_inputs + np.arange(num_ands))[:, None]
    return Circuit(num_inputs, generator.integers(0, bounds, (num_ands, 2)), generator.integers(0, bounds[-1], 9))
