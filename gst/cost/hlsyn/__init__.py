"""Cost model of high-level-synthesis designs: analytical cycles over the loop tree, and search with it."""

from gst.cost.hlsyn.candidates import Candidates, candidates_of, family
from gst.cost.hlsyn.cycles import Estimate, estimate
from gst.cost.hlsyn.search import METHODS, Prior, regrets, search, train_prior

__all__ = [
    "METHODS", "Candidates", "Estimate", "Prior", "candidates_of", "estimate", "family", "regrets", "search",
    "train_prior",
]  # fmt: skip
