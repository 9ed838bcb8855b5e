"""Frozen encoders (+F): their rows, once computed, are exact as long as their weights stay as they are."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gst.method import encoding
from gst.method.combination import pool_all
from gst.method.rows import PrefetchedStep


class RowsVersion:
    """Version of the weights that computed the rows. While `is_trusted`, rows are of whatever weights come next."""

    def __init__(self, is_trusted: bool = False) -> None:
        self.is_trusted = is_trusted
        self._weights: tuple[Any, ...] | None = None

    def renew(self, weights: tuple[Any, ...]) -> None:
        self._weights, self.is_trusted = weights, False

    def is_of(self, weights: tuple[Any, ...]) -> bool:
        """True if these weights computed the rows, or the caller vouches for that."""
        if self.is_trusted:
            self.renew(weights)
        return self._weights == weights


def weights_before_rows(model: Any) -> tuple[Any, ...]:
    """Return the version of all weights that compute the rows of a `GraphSegmentTraining`."""
    return tuple(map(encoding.version, model.before_rows))


def freeze(model: Any) -> None:
    """Freeze all parameters that compute rows."""
    model.encoder_frozen = True
    for parameter in [p for m in model.before_rows if isinstance(m, nn.Module) for p in m.parameters()]:
        if not nn.parameter.is_lazy(parameter):
            parameter.requires_grad_(False)
            parameter.grad = None  # else an optimizer would go on by it


def forget_rows(model: Any) -> None:
    """Leave the rows unread that other weights made."""
    if model.keys is not None:
        model.keys.forget()
    model.rows_version.renew(weights_before_rows(model))


@torch.compiler.disable
def embed_frozen(model: Any, step: PrefetchedStep) -> Float[Tensor, "graphs configs channels"]:
    """Return exact pooled embeddings, so the encoder is in evaluation mode."""
    encoding.check_reducer()
    if not model.rows_version.is_of(weights_before_rows(model)):
        freeze(model)  # lazy layers may have taken their widths since
        forget_rows(model)
    catalogue, configs, rows = step.draw.catalogue, step.draw.configs, step.rows or model.rows_of(step.draw)
    everything, num_configs, like = torch.arange(len(catalogue)), configs.shape[1], model.like()
    with encoding.evaluating(*model.before_rows):
        if rows is None:
            parts = model.encoded(catalogue, everything, configs)
            return pool_all(catalogue, num_configs, parts, model.pooling, like.device)
        rows.begin()
        is_missing = ((rows.ages() < 0) & (configs[catalogue.graph] >= 0)).any(1)
        encoded = list(model.encoded(catalogue, everything[is_missing], configs))
        parts = itertools.chain(rows.parts(~is_missing), encoded)
        pooled = pool_all(catalogue, num_configs, parts, model.pooling, like.device)
        # After others were pulled: a full table evicts them.
        rows.push_missing([each for _, each in encoded], everything[is_missing])
    return pooled
