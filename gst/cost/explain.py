"""Explanation of scores: the segments and operations whose configuration separates slow from fast configurations.

A segment contributes f(slow) - f(slow, but its row is that of the fast configuration), for the score f. Rows of
segments add up, so that with a linear head the contributions of all segments add up to f(slow) - f(fast). An operation
contributes likewise, its own features being those of the fast configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from gst.graphs.segments import SegmentedGraph
from gst.method.draws import Catalogue
from gst.method.encoding import apply_head, evaluating
from gst.method.estimator import GraphSegmentTraining

MOST_PAIRS, MOST_SHOWN = 5, 10
MOST_NUMBERS = 1 << 25  # configuration features of the operations that are compared
Configs = Int64[np.ndarray, " pairs"]


def explain(
    model: GraphSegmentTraining, graph: SegmentedGraph, times: Float[np.ndarray, " configs"],
    opcode_names: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """Explain the scores of `model` under the slowest configurations of a graph, compared with the fastest.

    The result has the configurations, `slow` and `fast`; the `difference` of their scores, mean over pairs; names and
    contributions of `segments`, and of `operations` in these, in the unit of scores, the greatest first; and `words`.

    Args:
        times: of all configurations, measured or predicted, in any unit; NaN leaves one out.
        opcode_names: by number, for the names of operations.

    Raises:
        ValueError: there are fewer than two, the readout is neither a sum nor a mean, or the head has several outputs.

    Examples:
        >>> import gst
        >>> from gst.data.synthetic import synthetic_program
        >>> graph = gst.segment(synthetic_program(100, 6, num_regions=1), max_nodes=50)
        >>> model = GraphSegmentTraining(gst.nn.SAGE(8, 1), torch.nn.LazyLinear(1), pooling="sum")
        >>> why = explain(model, graph, graph.targets)
        >>> len(why["segments"]), abs(sum(value for _, value in why["segments"]) - why["difference"]) < 1e-3
        (3, True)
    """
    if model.pooling not in ("sum", "mean"):
        raise ValueError(f"under pooling by {model.pooling} rows of segments do not add up; want a sum or a mean")
    order = np.argsort(times, kind="stable")[: int((~np.isnan(times)).sum())]
    if len(order) < 2:
        raise ValueError(f"{graph.name} has fewer than two configurations to compare")
    count = min(MOST_PAIRS, len(order) // 2)
    slow, fast = order[: -count - 1 : -1], order[:count]
    catalogue, together = Catalogue.of([graph]), torch.from_numpy(np.concatenate([slow, fast]))[None]
    with torch.no_grad(), evaluating(model.encoder, model.head, model.readout):
        rows = torch.cat([part for _, part in model.encoded(catalogue, torch.arange(len(catalogue)), together)])
        if model.pooling == "mean":
            rows = rows * (catalogue.node_counts / graph.num_nodes)[:, None, None].to(rows)
        before, after = rows.tensor_split([count], 1)
        exchanged = torch.cat([torch.stack([before.sum(0), after.sum(0)]), before.sum(0) + (after - before)])
        scores = apply_head(model.head, model.readout.finish(exchanged))
    if scores.dim() > 2 and scores.shape[-1] > 1:
        raise ValueError(f"the head has {scores.shape[-1]} outputs; an explanation is of one score")
    of_slow, *left_out = scores.flatten(1)
    difference, *values = [float((of_slow - each).mean()) for each in left_out]
    largest = sorted(range(len(values)), key=lambda segment: -abs(values[segment]))[:MOST_SHOWN]
    operations = _operations(model, graph, slow, fast, largest, of_slow, dict(enumerate(opcode_names)))
    return {
        "words": f"The {count} slowest configurations score {difference:.4g} above the {count} fastest, in the mean. A "
        "share of that vanishes when one segment, or one operation, is as in the fastest; left out one by one, all "
        f"{len(values)} segments make {sum(values):.4g}.",
        "slow": slow.tolist(), "fast": fast.tolist(), "difference": difference,
        "segments": [(f"segment {each}", values[each]) for each in largest if values[each]], "operations": operations,
    }  # fmt: skip


def _operations(
    model: GraphSegmentTraining, graph: SegmentedGraph, slow: Configs, fast: Configs, segments: list[int],
    of_slow: Float[Tensor, " pairs"], opcode_names: Mapping[int, str],
) -> list[tuple[str, float]]:  # fmt: skip
    """Return names and contributions of own operations of `segments` whose features differ, the greatest first."""
    unchanged, changed = (np.asarray(graph.config_features[each]) for each in (slow, fast))
    owners = np.repeat(np.arange(graph.num_segments), np.diff(graph.config_ptr))
    is_own = graph.config_rows < graph.owned_counts[owners]
    is_own &= (unchanged != changed).any((0, 2))[graph.config_columns]
    uses = [use for each in segments for use in np.flatnonzero(is_own & (owners == each)).tolist()]
    if not (uses := uses[: MOST_NUMBERS // max(unchanged.size, 1)]):
        return []
    features, columns = np.repeat(unchanged[None], len(uses), 0), graph.config_columns[uses]
    features[np.arange(len(uses)), :, columns] = changed[:, columns].swapaxes(0, 1)
    features, zeros = features.reshape(-1, *unchanged.shape[1:]), np.zeros(len(uses) * len(slow))
    exchanged = replace(graph, config_features=features, targets=zeros, counts=zeros.astype(np.int64), spreads=zeros)
    values = (of_slow - model.scores(exchanged).reshape(len(uses), -1)).mean(1).tolist()
    rows = graph.row_ptr[owners[uses]] + graph.config_rows[uses]
    kinds = [opcode_names.get(opcode, "operation") for opcode in graph.opcodes[rows].tolist()]
    named = [(f"{kind} {node}", value) for kind, node, value in zip(kinds, graph.node_ids[rows], values, strict=True)]
    return sorted((each for each in named if each[1]), key=lambda each: -abs(each[1]))[:MOST_SHOWN]
