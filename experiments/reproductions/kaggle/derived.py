"""Graphs of TpuGraphs with derived node features, pruned: a source for `gst prepare` and `gst fit`, and files.

    gst prepare experiments.reproductions.kaggle.derived:Derived --arg source=gst.data.TpuGraphs \\
        --arg 'source.files=[graph.npz]' --arg 'features=[costs,padding]' --arg reduction=hops:2
    python -m experiments.reproductions.kaggle.derived graph.npz rich.npz --features costs,padding --reduction hops:2

The second command writes a layout file; `gst prepare`, `gst fit` and `gst rank` take it as they take the original.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from experiments.reproductions.kaggle.node_features import FEATURES, check_features, enrich
from experiments.reproductions.kaggle.pruning import check_reduction, reduce
from gst.data.source import GraphSource
from gst.data.tpugraphs import read, write_npz
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a layout file with derived features."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="npz file of a graph with layouts")
    parser.add_argument("out", help="npz file to write")
    parser.add_argument("--features", default="", help=f"names with commas between, of {', '.join(FEATURES)}")
    parser.add_argument("--reduction", default="none", help="none, or hops:K (default: %(default)s)")
    options = parser.parse_args(arguments)
    graph = read(options.file, merge=False)
    if (graph.targets % 1).any():
        raise SystemExit(f"{options.file}: targets are no whole nanoseconds; a layout file holds no tile sizes")
    write_npz(derived(graph, tuple(filter(None, options.features.split(","))), options.reduction), options.out)


if __name__ == "__main__":
    main()
