"""Cost model of high-level-synthesis designs: analytical cycles over the loop tree, and search with it."""

from experiments.reproductions.hlsyn.cycles.candidates import Candidates, candidates_of, family
from experiments.reproductions.hlsyn.cycles.cycles import Estimate, estimate
from experiments.reproductions.hlsyn.cycles.search import METHODS, Prior, regrets, search, train_prior

__all__ = [
    "METHODS", "Candidates", "Estimate", "Prior", "candidates_of", "estimate", "family", "regrets", "search",
    "train_prior",
]  # fmt: skip
