"""Bounds of a sharing plan: how many rows and messages it has in hardly any step more, whatever is drawn.

Most states of a large step are equal. If all differed that may, plans would be two to five times as large; so bounds
come from steps drawn at random, and a step that exceeds them has to be found out before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Int64

from gst.method.fixed_batch import Sizes
from gst.nn.sparse import rounded

PADDING_A_ROW = 64  # entries without weight that an unused row takes at most: a kernel adds those of one row in turn
MARGIN = 0.125  # of bounds, above what the largest of some steps has more than under one configuration
Direction = Literal["forward", "backward"]
Part = Literal["own", "forward", "backward"]
"""Where a message comes from: the node itself, those whose values it consumes, or those that consume its values."""

PARTS = get_args(Part)


class PlanOptions(NamedTuple):
    """Settings of an encoder that its plans depend on (`Sharing.of`)."""

    num_layers: int
    directions: tuple[Direction, ...]
    share: bool = True
    whole_segments: bool = False
    one_config: bool = False


class Bounds(NamedTuple):
    """Sizes to which a plan of a padded batch is padded.

    Args:
        given: pairs of a configurable node and a configuration.
        rows: before the first layer and after each: so many more than can be in use that no unused row has more than
            `PADDING_A_ROW` of the entries that are padding.
        entries: of the matrices of each layer, by part.
        most: rows before the first layer and after each, then messages of each layer by part: so many more than under
            one configuration.
    """

    given: int
    rows: tuple[int, ...]
    entries: tuple[Mapping[Part, int], ...]
    most: tuple[int, ...]

    @staticmethod
    def of(
        options: PlanOptions, sizes: Sizes, largest: Callable[[], Int64[np.ndarray, " counts"]]
    ) -> Bounds:  # fmt: skip
        """Return bounds of the plans of steps of these sizes; `largest` returns `most` of the largest of some."""
        layers, configs = options.num_layers, 1 if options.one_config else sizes.configs
        counts = np.array([sizes.nodes] * (layers + 1) + [sizes.nodes, sizes.edges, sizes.edges] * layers)
        more = np.ceil((1 + MARGIN) * largest()).astype(np.int64) if options.share else (configs - 1) * counts
        most = counts + more
        rows, messages = most[: layers + 1], most[layers + 1 :].reshape(layers, len(PARTS))
        given = sizes.configurable * configs
        padding = np.append(given, messages.sum(axis=1)) // PADDING_A_ROW + 1
        return Bounds(
            given, tuple(map(rounded, (rows + padding).tolist())),
            tuple(dict(zip(PARTS, each, strict=True)) for each in messages.tolist()), tuple(more.tolist()),
        )  # fmt: skip
