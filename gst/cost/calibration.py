"""How far a runtime may be from its prediction: the disagreement of an ensemble, scaled by what held-out labels showed.

Networks that differ in their seed alone disagree where they know little (deep ensembles: Lakshminarayanan et al. 2017,
section 2.4), but by how much says little of the error. Split conformal prediction with normalised errors (Lei et al.
2018, section 5.2) scales it, whatever the distribution of errors is: with n held-out configurations, errors e_i and
spreads s_i, an interval of half width q (s + c) holds the runtime of a new configuration with probability at least the
coverage, q being the ceil((n + 1) coverage)-th smallest of e_i / (s_i + c). That is for a configuration drawn as the
held-out ones were: not for one that was searched for its low prediction, nor for another graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from math import ceil

import numpy as np
from jaxtyping import Bool, Float64

from gst.graphs.graph import Graph

SMALLEST = 1e-9  # spread: members that agree entirely leave nothing to scale


@dataclass(frozen=True, eq=False)
class Calibration:
    """What held-out configurations showed.

    Args:
        ratios: e_i / (s_i + c) of each, ascending.
        offset: c, so that a small spread does not promise too much: the mean spread where labels were learned.
    """

    ratios: Float64[np.ndarray, " held_out"]
    offset: float

    @staticmethod
    def of(
        errors: Float64[np.ndarray, " held_out"], spreads: Float64[np.ndarray, " held_out"], offset: float
    ) -> Calibration:
        """From errors of the mean and spreads of the members, both of log runtimes."""
        offset = max(offset, SMALLEST)
        return Calibration(np.sort(np.abs(errors) / (spreads + offset)), offset)

    def half_width(self, spreads: Float64[np.ndarray, " configs"], coverage: float) -> Float64[np.ndarray, " configs"]:
        """q (s + c).

        Raises:
            ValueError: the coverage is no share, or needs more held-out configurations than there are.
        """
        if not 0.0 < coverage < 1.0:
            raise ValueError(f"coverage is {coverage}; it is a share of configurations, between 0 and 1")
        rank = ceil((len(self.ratios) + 1) * coverage)
        if rank > len(self.ratios):
            raise ValueError(
                f"a coverage of {coverage} needs {ceil(coverage / (1 - coverage))} held-out configurations, "
                f"{len(self.ratios)} were; ask for less, or fit on more configurations"
            )
        return self.ratios[rank - 1] * (spreads + self.offset)


def held_out(graph: Graph, share: float) -> Bool[np.ndarray, " configs"]:
    """About `share` of the configurations, by a hash of their content: one that is measured again, or comes back in a
    longer list, stays on its side."""
    salt = blake2b(graph.node_features.tobytes(), digest_size=16).digest()
    hashes = [blake2b(features.tobytes(), digest_size=4, key=salt).digest() for features in graph.config_features]
    return np.frombuffer(b"".join(hashes), "<u4") < share * 2**32
