"""What a source makes of the graphs it reads: richer node features, fewer nodes."""

from __future__ import annotations

from collections.abc import Sequence

from gst.data.features import check_features, enrich
from gst.data.reduction import check_reduction, reduce
from gst.graphs.graph import Graph

VERSION = 1  # of what is derived


def derived(graph: Graph, features: Sequence[str], reduction: str) -> Graph:
    """`graph` with the named `gst.data.features`, which see its whole, then reduced by `gst.data.reduction`.

    Raises:
        ValueError: see `enrich` and `reduce`.
    """
    return reduce(enrich(graph, features), reduction)


def derivation(features: Sequence[str], reduction: str) -> str:
    """What a fingerprint says of it: nothing where nothing is derived, so that prepared data are found again.

    Raises:
        ValueError: there is no such feature or reduction.
    """
    check_features(features)
    check_reduction(reduction)
    if not features and reduction == "none":
        return ""
    return f" derived {VERSION} features={','.join(sorted(set(features)))} reduction={reduction}"
