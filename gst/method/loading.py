"""State of a `GraphSegmentTraining` in checkpoints, and hooks of its `load_state_dict`."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from embedding_cache import EmbeddingTable
from gst.graphs.segments import SegmentedGraph
from gst.method.freezing import forget_rows, freeze, weights_before_rows
from gst.method.rows import ModelKeys

STATE_VERSION = 3  # of checkpoints: rows of 1 belong to names of graphs, of 2 to numbers of configurations


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
    _, _, _, unexpected_keys, _ = others
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
