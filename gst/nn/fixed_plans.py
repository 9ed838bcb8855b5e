"""Sharing plans in tensors of fixed shapes, for training steps that are all alike (`gst.method.fixed_step`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from gst.graphs.segments import SegmentedGraph
from gst.method.batch import SegmentBatch
from gst.method.fixed_step import NoFixedShapes, Sizes
from gst.nn.bounds import Bounds, PlanOptions
from gst.nn.sharing import Sharing


class FixedPlans:
    """The plans of an encoder, padded to their `Bounds`. Implements `gst.method.fixed_step.Plans`.

    Args:
        bounds: of each plan that the encoder asks for (`gst.nn.encoders.planned`).
    """

    def __init__(self, bounds: Mapping[PlanOptions, Bounds]) -> None:
        self.bounds = bounds
        self._wanted: dict[PlanOptions, tuple[tuple, ...]] = {}

    @staticmethod
    def made_for(
        layers: Iterable[nn.Module], plans: Iterable[PlanOptions], sizes: Sizes, graphs: Sequence[SegmentedGraph],
        num_fresh: int,
    ) -> FixedPlans:  # fmt: skip
        """Plans that `layers` read.

        Raises:
            NoFixedShapes: a layer has no attribute `reads_plan_tensors` that is true: its shapes may change from step
                to step, or it may read arrays that are not in the tensors of a plan.
        """
        for layer in layers:
            if not getattr(layer, "reads_plan_tensors", False):
                raise NoFixedShapes(
                    f"{type(layer).__name__} has other shapes in each step; use SAGE, GCN, GIN, GAT or FusedSAGE of "
                    "gst.nn, or an encoder that takes (x, edge_index)"
                )
        return FixedPlans({each: Bounds.of(each, sizes, graphs, num_fresh) for each in plans})

    def of(self, batch: SegmentBatch, pinned: bool = False) -> dict[PlanOptions, Sharing]:
        """On the host, with the tensors that the encoder has asked for so far."""
        plans = {options: Sharing.of(batch, *options, bounds) for options, bounds in self.bounds.items()}
        for options, wanted in list(self._wanted.items()):
            for key in wanted:
                plans[options].tensors(*key)
        return {options: plan.pinned() for options, plan in plans.items()} if pinned else plans

    def put(self, plans: Mapping[Any, Any], batch: SegmentBatch) -> None:
        """The plans of `batch` from now on."""
        for options, plan in plans.items():
            before = batch.plans.get(options)
            batch.plans[options] = plan.to(batch.edge_index.device) if before is None else plan.into(before)
            self._wanted[options] = tuple(batch.plans[options]._tensors)
