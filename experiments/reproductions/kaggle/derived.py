"""Graphs of TpuGraphs with derived node features, pruned: a source for `gst prepare` and `gst fit`.

    gst prepare experiments.reproductions.kaggle.derived:Derived --arg source=gst.data.TpuGraphs \\
        --arg 'source.files=[graph.npz]' --arg 'features=[costs,padding]' --arg reduction=hops:2
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from experiments.reproductions.kaggle.node_features import check_features, enrich
from experiments.reproductions.kaggle.pruning import check_reduction, reduce
from gst.data.source import GraphSource
from gst.graphs.graph import Graph

VERSION = 1


def derived(graph: Graph, features: Sequence[str] = (), reduction: str = "none") -> Graph:
    """Return `graph` with the derived node features `features`, computed on the whole graph, and then pruned.

    Args:
        features: names of `FEATURES`.
        reduction: see `reduce`.

    Raises:
        ValueError: see `enrich` and `reduce`.
    """
    return reduce(enrich(graph, features), reduction)


@dataclass(frozen=True)
class Derived(GraphSource):
    """The graphs of another source, derived.

    Args:
        source: of graphs with the 140 columns of TpuGraphs.
        features: names of derived node features, see `FEATURES`.
        reduction: `none` or `hops:K`, see `reduce`.

    Raises:
        ValueError: there is no such feature or reduction.
    """

    source: GraphSource
    features: Sequence[str] = ()
    reduction: str = "none"

    def __post_init__(self) -> None:
        check_features(self.features)
        check_reduction(self.reduction)

    def __iter__(self) -> Iterator[Graph]:
        return (derived(graph, self.features, self.reduction) for graph in self.source)

    def fingerprint(self) -> str:
        """Return the same text for equal files and settings, whatever the order of the features."""
        source = self.source.fingerprint()  # type: ignore[attr-defined]  # of TpuGraphs
        return f"{source} derived {VERSION} features={','.join(sorted(set(self.features)))} reduction={self.reduction}"
