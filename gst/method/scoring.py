"""Scoring many configurations of one graph; on an accelerator its segments are encoded by one recorded graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import pad

from gst.graphs.config_classes import config_classes
from gst.graphs.segments import SegmentedGraph
from gst.method.batch import assemble
from gst.method.combination import Part, pool_all
from gst.method.draws import Catalogue, checked_configs
from gst.method.fixed_batch import FixedBatch, NoFixedShapes, Sizes, encoder_refusal, hook_refusal
from gst.method.recorded import Recorded
from gst.util.progress import Progress
from gst.util.recording import Graph, is_here, new_graph
from gst.util.untrusted import first_line

FEWEST_PARTS = 16  # that are worth a recording, of which four are computed eagerly
MOST_PADDING = 1.5  # times as large as without padding: launches of large parts cost less than what they compute
LEAST_FULL = 0.25  # of the configurations of a recording, that it is run for


def scores_of(
    model: Any, graph: SegmentedGraph, configs: Int64[Tensor, " configs"], configs_at_once: int, progress: Progress
) -> Sequence[Float[Tensor, "1 part channels"]]:
    """Return the pooled embeddings of configurations, in parts for the head."""
    catalogue, together = Catalogue.of([graph]), checked_configs([graph], configs[None])[0]
    encode = recorded_encoding(model, graph, len(together)) or model.encode

    def encoded() -> Iterator[Part]:
        began = time.perf_counter()
        for place, classes in enumerate(config_classes(graph).of(together.numpy())):
            rate = len(together) * place / graph.num_segments / (time.perf_counter() - began)
            progress(f"scoring, {rate:,.0f} configurations a second", place, graph.num_segments)
            _, first, class_of = np.unique(classes, return_index=True, return_inverse=True)
            segment = torch.tensor([place])
            rows = encode(catalogue, segment, together[first][None])
            yield segment, rows[:, torch.from_numpy(class_of).to(rows.device)]

    pooled = pool_all(catalogue, len(together), encoded(), model.pooling, model.like().device)
    progress("scoring", graph.num_segments, graph.num_segments)
    return pooled.split(configs_at_once, dim=1)


class RecordedEncoding:
    """Encodes single segments, as many configurations at a time as `sizes` has, and by `model` what is too small.

    Args:
        graph: makes an empty graph of the accelerator, see `Recorded`; so `is_recorded`.
    """

    def __init__(
        self, model: Any, sizes: Sizes, graph: Callable[[torch.device], Graph] = new_graph,
        is_recorded: bool | None = None,
    ) -> None:  # fmt: skip
        self._model, self.batch = model, FixedBatch(model, sizes, {})
        self.recorded = Recorded(self.batch, graph, is_recorded)

    def __call__(
        self, catalogue: Catalogue, segment: Int64[Tensor, "1"], configs: Int64[Tensor, "1 configs"]
    ) -> Float[Tensor, "1 part channels"]:
        """As `GraphSegmentTraining` encodes a segment, without gradient."""
        encoded, at_once = [], self.batch.sizes.configs
        for part in configs.split(at_once, dim=1):
            if not self.recorded.reason and part.shape[1] >= LEAST_FULL * at_once:
                padded = pad(part, (0, at_once - part.shape[1]), value=-1)
                batch = assemble(catalogue.graphs, catalogue.picks(segment), padded)
                try:
                    encoded.append(self.recorded.run(self.batch.load(batch))[:, : part.shape[1]])
                    continue
                except (NoFixedShapes, torch.OutOfMemoryError) as error:
                    self.recorded.reason = first_line(error)
            encoded.append(self._model.encode(catalogue, segment, part))
        return torch.cat(encoded, dim=1)


def recorded_encoding(model: Any, graph: SegmentedGraph, num_configs: int) -> RecordedEncoding | None:
    """Return what encodes segments of a graph under so many configurations by a recording; None where none is made:
    not on an accelerator, for few or much larger parts, or with an encoder whose shapes change."""
    device = model.like().device
    if not is_here(device) or device.type == "mps" or any(map(nn.parameter.is_lazy, model.parameters())):
        return None
    at_once = max(1, min(num_configs, model.max_rows // int(np.diff(graph.row_ptr).max())))
    parts = graph.num_segments * -(-num_configs // at_once)
    if parts < FEWEST_PARTS or encoder_refusal(model) or hook_refusal(model):
        return None
    sizes = Sizes.of([graph], 1, 1, at_once, model.encoder)
    sample = assemble([graph], [(0, graph.num_segments // 2)], torch.arange(at_once)[None] % graph.num_configs)
    return RecordedEncoding(model, sizes) if sizes.padding(sample) <= MOST_PADDING else None
