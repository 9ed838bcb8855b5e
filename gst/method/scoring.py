"""Scoring many configurations of one graph: a segment is encoded once for all that are alike on it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from gst.graphs.config_classes import config_classes
from gst.graphs.segments import SegmentedGraph
from gst.method.combination import Part, pool_all
from gst.method.draws import Catalogue, checked_configs
from gst.util.progress import Progress


def scores_of(
    model: Any, graph: SegmentedGraph, configs: Int64[Tensor, " configs"], configs_at_once: int, progress: Progress
) -> Sequence[Float[Tensor, "1 part channels"]]:
    """Return the pooled embeddings of configurations, in parts for the head."""
    catalogue, together = Catalogue.of([graph]), checked_configs([graph], configs[None])[0]

    def encoded() -> Iterator[Part]:
        began = time.perf_counter()
        for place, classes in enumerate(config_classes(graph).of(together.numpy())):
            rate = len(together) * place / graph.num_segments / (time.perf_counter() - began)
            progress(f"scoring, {rate:,.0f} configurations a second", place, graph.num_segments)
            _, first, class_of = np.unique(classes, return_index=True, return_inverse=True)
            segment = torch.tensor([place])
            rows = model.encode(catalogue, segment, together[first][None])
            yield segment, rows[:, torch.from_numpy(class_of).to(rows.device)]

    pooled = pool_all(catalogue, len(together), encoded(), model.pooling, model.like().device)
    progress("scoring", graph.num_segments, graph.num_segments)
    return pooled.split(configs_at_once, dim=1)
