"""Plans for encoders: rows found on the host or on the device, or padded ones of fixed shapes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Int64
from torch.nn.functional import pad

from gst.graphs.segments import SegmentedGraph
from gst.method.batch import SegmentBatch, assemble
from gst.method.fixed_batch import DoesNotFit, Sizes
from gst.nn.bounds import Bounds, PlanOptions
from gst.nn.fingerprints import DeviceSharing
from gst.nn.sharing import Plan, Sharing

Where = Literal["auto", "host", "device"]
DRAWN = 64  # steps whose largest tells what large plans are padded to

_where: Where = "auto"


def set_sharing(where: Where) -> None:
    """Choose where equal states are found from now on, in this process.

    Args:
        where: on the `host`, exactly; on the `device` of the batch, by fingerprints (`gst.nn.fingerprints`); `auto` is
            the device of a batch on an accelerator, and else the host. Padded steps find them on the device.

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
        batch.plans[options] = DeviceSharing(batch, options) if on_device else Sharing.of(batch, *options)
    return batch.plans[options]


class FixedPlans:
    """The plans of an encoder, padded to their `Bounds`. Implements `gst.method.fixed_batch.Plans`."""

    def __init__(self, options: PlanOptions, sizes: Sizes, graphs: Sequence[SegmentedGraph], num_fresh: int) -> None:
        self.options = options
        self.bounds = Bounds.of(options, sizes, graphs, num_fresh, partial(_largest, sizes, graphs, num_fresh, options))

    def check(self, batch: SegmentBatch) -> None:
        """Raise `DoesNotFit` if the plan of a batch of the host, not padded, is larger than its bounds."""
        fits = self.bounds.hold_any(batch, self.options) or (further(batch, self.options) <= self.bounds.most).all()
        if not fits:
            raise DoesNotFit("a plan has more rows or messages than the padded one; were its graphs in the sizes?")

    def padding(self, batch: SegmentBatch) -> float:
        """Return how many times as many rows the padded plan has as that of this batch of the host."""
        return sum(self.bounds.rows) / sum(level.num_rows for level in Sharing.of(batch, *self.options).levels)

    def of(self, padded: SegmentBatch) -> dict[PlanOptions, Plan]:
        """Return the plan of a padded batch, made where it is, by operations of fixed shapes."""
        return {self.options: DeviceSharing(padded, self.options, self.bounds)}


def further(batch: SegmentBatch, options: PlanOptions) -> Int64[np.ndarray, " counts"]:
    """Return how many more rows and messages the plan of a batch of the host has than under one configuration: rows
    before the first layer and after each, then messages of each layer by part."""
    more = [np.diff(level.first) - 1 for level in Sharing.of(batch, *options).levels]
    producers, consumers = batch.edge_index.numpy()
    messages = [count for each in more[1:] for count in (each.sum(), each[consumers].sum(), each[producers].sum())]
    return np.array([*(each.sum() for each in more), *messages])


def _largest(
    sizes: Sizes, graphs: Sequence[SegmentedGraph], num_fresh: int, options: PlanOptions
) -> Int64[np.ndarray, " counts"]:
    """Return the largest counts of some steps; their graphs, by numbers of configurations, fresh segments and
    configurations are drawn."""
    generator, counts = np.random.default_rng(0), []
    lists = np.array([-(-graph.num_configs // sizes.configs) for graph in graphs])
    for _ in range(DRAWN):
        some = [graphs[each] for each in generator.choice(len(graphs), sizes.graphs, p=lists / lists.sum())]
        fresh = [generator.permutation(graph.num_segments)[:num_fresh].tolist() for graph in some]
        rows = [torch.from_numpy(generator.permutation(graph.num_configs)[: sizes.configs]) for graph in some]
        configs = torch.stack([pad(each, (0, sizes.configs - len(each)), value=-1) for each in rows])
        picks = [(number, each) for number, mine in enumerate(fresh) for each in mine]
        counts.append(further(assemble(some, picks, configs), options))
    return np.max(counts, axis=0)
