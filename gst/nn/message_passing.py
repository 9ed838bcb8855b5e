"""What a node hears of its neighbours, under all configurations at once."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from gst.nn.reach import Hop
from gst.sparse import product
from gst.states import NodeStates


def neighbour_sum(states: NodeStates, hop: Hop) -> NodeStates:
    """For every node the weighted sum of what is sent to it (see `Weights`); 0 where nothing is."""
    return widened(product(hop.each, states.each), product(hop.once, states.once), states.order)


def widened(
    each: Float[Tensor, "reached configs channels"], common: Float[Tensor, "nodes channels"], order: Tensor
) -> NodeStates:
    """`each` where it is known, plus what is common to all configurations. Writes into `each`."""
    reached = len(each)
    return NodeStates(order, _AddRows.apply(each, each[:0], common[:reached], False), common[reached:])


def add(wide: NodeStates, narrow: NodeStates, relu: bool = False) -> NodeStates:
    """`wide`, or relu of it, plus states of an earlier layer, of which fewer are reached. Writes into `wide.each`."""
    more = wide.num_reached - narrow.num_reached
    each = _AddRows.apply(wide.each, narrow.each, narrow.once[:more], relu)
    once = wide.once.relu() if relu else wide.once
    return NodeStates(wide.order, each, once + narrow.once[more:])


class _AddRows(torch.autograd.Function):
    """`wide[:n] += each`, `wide[n:] += once` under every configuration, without a copy of what is wide."""

    @staticmethod
    def forward(ctx: Any, wide: Tensor, each: Tensor, once: Tensor, relu: bool) -> Tensor:
        ctx.mark_dirty(wide)
        ctx.split = len(each)
        ctx.positive = (wide > 0) if relu else None
        if relu:
            wide.relu_()
        wide[: len(each)] += each
        wide[len(each) :] += once[:, None]
        return wide

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        wide = gradient if ctx.positive is None else gradient * ctx.positive
        return wide, gradient[: ctx.split], gradient[ctx.split :].sum(1), None
