"""Origins of rows: the rows of a segment under all configurations move with those that a step encodes anew.

A step encodes a segment under some configurations, and the encoder has changed since the rows under the others were
written. Rows of different ages then differ by this drift rather than by their configurations. So a table keeps each row
relative to the origin of its segment, a row of its own, and a step moves the origin by the mean change of the rows that
it writes. A segment that has the same embedding under all configurations has no origin.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

PRIOR_ROWS = 1.0  # that did not change


def absolute(kept: Float[Tensor, "segments entries channels"]) -> Float[Tensor, "segments configs channels"]:
    """Return rows, given what the table keeps: rows relative to the origin, and in the last entry the origin.

    Examples:
        >>> absolute(torch.tensor([[[1.0], [2.0], [10.0]]])).flatten().tolist()
        [11.0, 12.0]
    """
    return kept[:, :-1] + kept[:, -1:]


def relative(
    embedded: Float[Tensor, "segments configs channels"],
    kept: Float[Tensor, "segments entries channels"],
    is_known: Bool[Tensor, "segments configs"],
    first: Int64[Tensor, " segments"],
    has_origin: Bool[Tensor, " segments"],
) -> Float[Tensor, "segments entries channels"]:
    """Return what the table shall keep of new embeddings, given what it `kept`: rows and in the last entry the origin.

    Args:
        is_known: True where there was a row, whose change moves the origin.
        first: the first of those of `segments` that are the same segment.

    Examples:
        >>> kept, known = torch.tensor([[[1.0], [2.0], [10.0]]]), torch.tensor([[True, False]])
        >>> one, yes = torch.tensor([0]), torch.tensor([True])
        >>> relative(torch.tensor([[[13.0], [19.0]]]), kept, known, one, yes).flatten().tolist()  # 11 became 13
        [2.0, 8.0, 11.0]
    """
    embedded, old = embedded.to(kept.dtype), absolute(kept)
    moves = (is_known & embedded.isfinite().all(-1) & has_origin[:, None])[..., None]
    change = torch.where(moves, embedded - old, 0.0).sum(1)
    sums, count = (
        torch.zeros_like(each).index_add(0, first, each)[first] for each in (change, moves.sum(1).to(kept.dtype))
    )
    origin = (kept[:, -1] + sums / (count + PRIOR_ROWS))[:, None]
    return torch.cat([embedded - origin, origin], 1)


def ages(
    written: Int64[Tensor, "segments entries"], is_used: Bool[Tensor, "segments entries"], num_configs: int, now: Any
) -> Int64[Tensor, "segments configs"]:
    """Return the steps since each row was written; -1 where there is none, or the origin of its segment has left.

    Args:
        written: the step that wrote each entry; -1 where the table keeps nothing.
        is_used: True at entries that have a key. The last entry is the origin if there are more than `num_configs`.
        now: the number of the step, or a tensor with it.

    Examples:
        >>> is_used = torch.tensor([[True, True, True], [True, True, False]])
        >>> ages(torch.tensor([[3, 4, -1], [3, -1, -1]]), is_used, 2, 5).tolist()
        [[-1, -1], [2, -1]]
    """
    is_kept = is_used[:, :num_configs] & (written[:, :num_configs] >= 0)
    if written.shape[1] > num_configs:
        is_kept &= ~is_used[:, -1:] | (written[:, -1:] >= 0)
    return torch.where(is_kept, (now - written[:, :num_configs]).clamp(min=0), -1)


def without_absent(
    kept: Float[Tensor, "segments entries channels"], is_used: Bool[Tensor, "segments entries"], num_configs: int
) -> Float[Tensor, "segments entries channels"]:
    """Return what the table keeps, with zeros in place of origins that have no key."""
    if kept.shape[1] > num_configs:
        kept[:, -1].masked_fill_(~is_used[:, -1:].to(kept.device, non_blocking=True), 0)
    return kept


def first_of_same(keys: Int64[Tensor, " segments"]) -> Int64[Tensor, " segments"]:
    """Return where each key is first found; a negative one at its own place.

    Examples:
        >>> first_of_same(torch.tensor([7, -1, 7, -1])).tolist()
        [0, 1, 0, 3]
    """
    places = torch.arange(len(keys))
    inverse = torch.where(keys < 0, -1 - places, keys).unique(return_inverse=True)[1]
    return torch.full_like(places, len(keys)).scatter_reduce(0, inverse, places, "amin")[inverse]
