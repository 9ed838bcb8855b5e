"""What one training step does, drawn before anything of it is read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from embedding_cache import inclusion_probabilities, sample_by_probability
from gst.method.batch import SegmentBatch
from gst.method.catalogue import Catalogue
from gst.method.exchange import Peers, Traffic
from gst.method.sampling import choose_fresh, choose_kept, generator_for


@dataclass(frozen=True, eq=False)
class Draw:
    """What is to be done in one step, before anything of it was read.

    Args:
        configs: configurations of each graph, -1 where a graph has fewer than another.
        fresh: the segments that are encoded with gradient.
        inclusion: the probability with which each segment could be one of them.
        kept: the segments that dropout keeps if they are stale.
        number: of the step; with the seed it decides all draws of the step.
        peers: the processes that share the step, if there are any.
        whole: what is drawn for all of them.
    """

    catalogue: Catalogue
    configs: Int64[Tensor, "graphs configs"]
    fresh: Bool[Tensor, " segments"]
    inclusion: Float[Tensor, " segments"]
    kept: Bool[Tensor, " segments"]
    number: int
    peers: Peers | None = None
    whole: Draw | None = None

    def part_of(self, peers: Peers) -> Draw:
        """What this process does of it."""
        graphs = [self.catalogue.graphs[place] for place in peers.mine]
        drawn = torch.stack([self.fresh, self.kept]), self.inclusion
        by_graph = [each.split([g.num_segments for g in self.catalogue.graphs], -1) for each in drawn]
        (fresh, kept), inclusion = (torch.cat([each[place] for place in peers.mine], -1) for each in by_graph)
        configs = self.configs[peers.mine]
        return Draw(Catalogue.of(graphs), configs, fresh, inclusion, kept, self.number, peers, self)


@dataclass(frozen=True, eq=False)
class PrefetchedStep:
    """A draw and the fresh segments, read and on the device of the model (None once the encoder is frozen).

    Args:
        arrived: when a copy to an accelerator, on a stream of its own, is done.
        traffic: what moves to and from a table that several processes share.
    """

    draw: Draw
    batch: SegmentBatch | None
    traffic: Traffic | None = None
    arrived: torch.cuda.Event | None = None


def draw_segments(
    catalogue: Catalogue,
    configs: Int64[Tensor, "graphs configs"],
    number: int,
    seed: int,
    num_fresh: int,
    keep_probability: float,
    drift: Float[Tensor, " segments"] | None = None,
) -> Draw:
    """Draw the fresh segments of each graph, and those that dropout keeps; the same for the same `number` and `seed`.

    Args:
        num_fresh: S, of each graph; all of a graph that has fewer.
        keep_probability: p of Stale Embedding Dropout.
        drift: how far each segment's rows are expected to be from the truth; segments are drawn the more often the
            farther. Uniformly without it (Cao et al. 2023).
    """
    generator, counts = generator_for(seed, number, 0), [graph.num_segments for graph in catalogue.graphs]
    if drift is None:
        chosen = [choose_fresh(count, num_fresh, generator) for count in counts]
        chances = [torch.full((count,), min(1.0, num_fresh / count)) for count in counts]
    else:
        chances = [inclusion_probabilities(each, min(num_fresh, len(each))) for each in drift.split(counts)]
        chosen = [sample_by_probability(each, generator) for each in chances]
    dropout = generator_for(seed, number, 1)
    kept = [choose_kept(count, keep_probability, dropout) for count in counts]
    return Draw(catalogue, configs, torch.cat(chosen), torch.cat(chances), torch.cat(kept), number)
