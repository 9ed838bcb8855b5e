"""State of a `GraphSegmentTraining` beside its modules: a frozen encoder (+F), whose rows are exact once computed, the
table that `table=True` makes, and checkpoints."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from embedding_cache import EmbeddingTable
from gst.graphs.segments import SegmentedGraph
from gst.method import encoding
from gst.method.combination import pool_all
from gst.method.rows import ModelKeys, PrefetchedStep

STATE_VERSION = 3  # of checkpoints: rows of 1 belong to names of graphs, of 2 to numbers of configurations


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
    if encoded:  # a number that the encoder itself counts up changes no row
        model.rows_version.renew(weights_before_rows(model))
    return pooled


def state_of(model: Any) -> dict[str, Any]:
    """Return the state of a model that is in none of its modules."""
    return {
        "version": STATE_VERSION, "step": model.step, "seed": model.seed, "encoder_frozen": model.encoder_frozen,
        "slot": None if model.keys is None else model.keys.slot,
        "regression": None if model.learned is None else model.learned.state_dict(),
    }  # fmt: skip


def restore(model: Any, state: dict[str, Any]) -> None:
    """Load what `state_of` returned; ValueError if rows of its table have other keys now."""
    if state.get("version", 1) != STATE_VERSION and model.table is not None:
        raise ValueError(
            f"the checkpoint is of version {state.get('version', 1)}, and rows of a table have other keys in "
            f"version {STATE_VERSION}: train again, or load it into a model without a table"
        )
    model.step, model.seed = state["step"], state["seed"]
    if model.keys is not None:
        model.keys.slot = state.get("slot")
    if model.learned is not None and state.get("regression") is not None:
        model.learned.load_state_dict(state["regression"])
    if state["encoder_frozen"]:
        freeze(model)
        model.rows_version.is_trusted = True  # until `after_loading`, once encoder and table are loaded too


def make_table(model: Any, like: Float[Tensor, "*rows channels"]) -> None:
    """Make the table of a model with `table=True` for such rows, if there is none yet."""
    if model.makes_table and model.table is None:
        dtype = like.dtype if like.dtype == torch.float64 else torch.float32
        model.table = EmbeddingTable(1, like.shape[-1], dtype, like.device)
        model.keys = ModelKeys(model.table, by_class=model.estimate.reads == "all")


def make_table_of(model: Any, graph: SegmentedGraph) -> None:
    """Make the table of a model with `table=True` for embeddings of a graph, if there is none yet."""
    if model.makes_table and model.table is None:
        make_table(model, model.like().new_empty(0, model.channels(graph)))


def before_loading(model: Any, state: dict[str, Any], prefix: str, *others: Any) -> None:
    """Make the table of a model with `table=True` as wide as the rows in `state`. Without a table, leave rows unread
    and say so among the unexpected keys."""
    unexpected_keys = others[3]
    rows = [key for key in state if key.startswith(f"{prefix}table.")]
    if model.makes_table and not rows and model.table is not None:
        model.table.clear()  # the checkpoint is of a model before its first step
        state[f"{prefix}table._extra_state"] = model.table.get_extra_state()
    elif model.makes_table and rows and model.table is None:
        make_table(model, state[f"{prefix}table._extra_state"]["rows"])
    elif model.table is None and rows:
        for key in rows:
            del state[key]
        unexpected_keys.append(
            "the checkpoint holds an embedding table, and the model has none: make it with table=True, or leave the "
            "rows unread by load_state_dict(state, strict=False)"
        )


def after_loading(model: Any, incompatible: object) -> None:
    """Keep the rows of an encoder that was saved frozen; forget those of one that was frozen here."""
    if model.encoder_frozen and model.rows_version.is_trusted:
        freeze(model)
        model.rows_version.renew(weights_before_rows(model))
    elif model.encoder_frozen:
        forget_rows(model)
