"""Plans for encoders: rows found on the host or on the device, or padded ones of fixed shapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import torch

from gst.graphs.segments import SegmentedGraph
from gst.method.batch import SegmentBatch
from gst.method.fixed_batch import Sizes
from gst.nn.bounds import Bounds, PlanOptions
from gst.nn.fingerprints import DeviceSharing
from gst.nn.sharing import Plan, Sharing

Where = Literal["auto", "host", "device", "both"]

_where: Where = "auto"


def set_sharing(where: Where) -> None:
    """Choose where equal states are found from now on, in this process.

    Args:
        where: on the `host`, exactly; on the `device` of the batch, by fingerprints (`gst.nn.fingerprints`); on `both`,
            which raises ValueError where they differ, for a search of errors; `auto` is the device of a batch on an
            accelerator, and else the host. Padded steps find them on the device.

    Raises:
        ValueError: no such place.
    """
    global _where
    if where not in get_args(Where):
        raise ValueError(f"sharing {where!r}? equal states are found by one of {', '.join(get_args(Where))}")
    _where = where


@torch.compiler.disable
def planned(batch: SegmentBatch, options: PlanOptions) -> Plan:
    """The plan of a batch by these options, found once for each batch."""
    if options not in batch.plans:
        on_device = batch.edge_index.device.type != "cpu" if _where == "auto" else _where != "host"
        if on_device:
            batch.plans[options] = plan = DeviceSharing(batch, options)
            if _where == "both":
                check_equal(plan, Sharing.of(batch, *options))
        else:
            batch.plans[options] = Sharing.of(batch, *options)
    return batch.plans[options]


def check_equal(plan: DeviceSharing, exact: Sharing) -> None:
    """Raise ValueError where fingerprints agree and states do not, or the other way round."""
    for layer, (ours, level) in enumerate(zip(plan.levels, exact.levels, strict=True)):
        exactly = torch.from_numpy(level.first[:-1, None] + level.alike)
        mine, theirs = (each[:, :, None] == each[:, None] for each in (ours.row_of.cpu(), exactly))
        for node, one, other in (mine != theirs).nonzero()[:1].tolist():
            raise ValueError(
                f"after layer {layer}, node {node} has fingerprints under configurations {one} and {other} that "
                f"{'agree' if mine[node, one, other] else 'differ'}, unlike its states; use set_sharing('host')"
            )


class FixedPlans:
    """The plans of an encoder, padded to their `Bounds`. Implements `gst.method.fixed_batch.Plans`."""

    def __init__(
        self, plans: Iterable[PlanOptions], sizes: Sizes, graphs: Sequence[SegmentedGraph], num_fresh: int
    ) -> None:
        self.bounds = {each: Bounds.of(each, sizes, graphs, num_fresh) for each in plans}

    def check(self, batch: SegmentBatch) -> None:
        """Raise ValueError if the plans of a batch of the host, not padded, may be larger than their bounds."""
        for options, bounds in self.bounds.items():
            bounds.check(batch, options)

    def padding(self, batch: SegmentBatch) -> float:
        """Return how many times as many rows plans have padded as for this batch of the host."""
        rows = [level.num_rows for options in self.bounds for level in Sharing.of(batch, *options).levels]
        return sum(sum(each.rows) for each in self.bounds.values()) / sum(rows)

    def of(self, padded: SegmentBatch) -> dict[PlanOptions, Plan]:
        """Return the plans of a padded batch, made where it is, by operations of fixed shapes."""
        return {options: DeviceSharing(padded, options, bounds) for options, bounds in self.bounds.items()}
