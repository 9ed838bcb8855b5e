"""Which segments are fresh in a step, and which configurations go into it. Randomness is an argument."""

from __future__ import annotations

import torch
from jaxtyping import Bool
from torch import Tensor


def choose_fresh(num_segments: int, num_fresh: int, generator: torch.Generator) -> Bool[Tensor, " segments"]:
    """min(num_fresh, num_segments) segments, uniformly without replacement, marked True."""
    fresh = torch.zeros(num_segments, dtype=torch.bool)
    if num_fresh >= num_segments:
        return ~fresh
    fresh[torch.randperm(num_segments, generator=generator)[:num_fresh]] = True
    return fresh


def choose_kept(num_segments: int, keep_probability: float, generator: torch.Generator) -> Bool[Tensor, " segments"]:
    """Each segment with `keep_probability`, independently, marked True."""
    return torch.rand(num_segments, generator=generator) < keep_probability


def generator_for(*numbers: int) -> torch.Generator:
    """A generator that depends on `numbers` (a seed, an epoch, a graph ...) and on nothing else."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = ((state ^ number) * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) % 2**64
        state ^= state >> 31
    return torch.Generator().manual_seed(state % 2**63)
