"""Scoring many configurations of one graph on an accelerator: its segments are encoded by one recorded graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import pad

from gst.graphs.segments import SegmentedGraph
from gst.method.batch import assemble
from gst.method.draws import Catalogue
from gst.method.fixed_batch import FixedBatch, PaddedBatch, Sizes, encoder_refusal, hook_refusal
from gst.method.recorded import Recorded
from gst.util.recording import Graph, is_here, new_graph

FEWEST_PARTS = 16  # that are worth a recording, of which four are computed eagerly
LEAST_FULL = 0.25  # of the configurations of a recording, that it is run for


class Encoding:
    """One segment under some configurations, as `gst.method.recorded.Work`."""

    optimizer: torch.optim.Optimizer | None = None

    def __init__(self, model: Any, sizes: Sizes) -> None:
        self.model, self.batch = model, FixedBatch(model, sizes, {})
        self.results: Any = (torch.empty(0),)

    def fill(self, padded: PaddedBatch) -> None:
        self.batch.fill(padded)

    def compute(self) -> None:
        self.results = (self.batch.encode()[1],)

    def finish(self) -> None: ...


class RecordedEncoding:
    """Encodes single segments of a graph, `configs` configurations at a time, and by `model` itself what is too small.

    Args:
        graph: makes an empty graph of the accelerator, see `Recorded`; so `is_recorded`.
    """

    def __init__(
        self, model: Any, segmented: SegmentedGraph, configs: int,
        graph: Callable[[torch.device], Graph] = new_graph, is_recorded: bool | None = None,
    ) -> None:  # fmt: skip
        sizes = Sizes.of([segmented], 1, 1, configs, model.encoder if model.takes_batches else None)
        self.configs, self.recorded = configs, Recorded(Encoding(model, sizes), graph, is_recorded)
        self._model, self._load = model, self.recorded.step.batch.load

    def __call__(
        self, catalogue: Catalogue, segment: Int64[Tensor, "1"], configs: Int64[Tensor, "1 configs"]
    ) -> Float[Tensor, "1 configs channels"]:
        """As `GraphSegmentTraining` encodes a segment, without gradient."""
        encoded = []
        for part in configs.split(self.configs, dim=1):
            few = self.configs - part.shape[1]
            if self.recorded.reason or part.shape[1] < LEAST_FULL * self.configs:
                encoded.append(self._model._encode(catalogue, segment, part))
                continue
            batch = assemble(catalogue.graphs, catalogue.picks(segment), pad(part, (0, few), value=-1))
            encoded.append(self.recorded.run(self._load(batch))[:, : part.shape[1]])
        return torch.cat(encoded, dim=1)


def recorded_encoding(model: Any, graph: SegmentedGraph, num_configs: int) -> RecordedEncoding | None:
    """Return what encodes segments of a graph under so many configurations by a recording; None where none is made:
    not on an accelerator, for few parts, or with an encoder whose shapes change."""
    at_once = max(1, min(num_configs, model.max_rows // int(np.diff(graph.row_ptr).max())))
    parts = graph.num_segments * -(-num_configs // at_once)
    if not is_here(model.like().device) or parts < FEWEST_PARTS or encoder_refusal(model) or hook_refusal(model):
        return None
    return RecordedEncoding(model, graph, at_once)
