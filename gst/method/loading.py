"""State of a `GraphSegmentTraining` in checkpoints, and hooks of its `load_state_dict`."""

from __future__ import annotations

from typing import Any

STATE_VERSION = 3  # of checkpoints: rows of 1 belong to names of graphs, of 2 to numbers of configurations


def state_of(model: Any) -> dict[str, Any]:
    """Return the state of a model that is in none of its modules."""
    return {
        "version": STATE_VERSION, "step": model.step, "seed": model.seed, "encoder_frozen": model.encoder_frozen,
        "slot": None if model._keys is None else model._keys.slot,
        "regression": None if model._regression is None else model._regression.state_dict(),
    }  # fmt: skip


def restore(model: Any, state: dict[str, Any]) -> None:
    """Load what `state_of` returned; ValueError if rows of its table have other keys now."""
    if state.get("version", 1) != STATE_VERSION and model.table is not None:
        raise ValueError(
            f"the checkpoint is of version {state.get('version', 1)}, and rows of a table have other keys in "
            f"version {STATE_VERSION}: train again, or load it into a model without a table"
        )
    model.step, model.seed = state["step"], state["seed"]
    if model._keys is not None:
        model._keys.slot = state.get("slot")
    if model._regression is not None and state.get("regression") is not None:
        model._regression.load_state_dict(state["regression"])
    if state["encoder_frozen"]:
        model._freeze()
        model._frozen_version = ()  # set by `after_loading`, once encoder and table are loaded too


def before_loading(model: Any, state: dict[str, Any], prefix: str, *others: Any) -> None:
    """Leave rows of a table unread in a model without one, and say so among the unexpected keys."""
    _, _, _, unexpected_keys, _ = others
    rows = [key for key in state if key.startswith(f"{prefix}table.")]
    if model.table is None and rows:
        for key in rows:
            del state[key]
        unexpected_keys.append(
            "the checkpoint holds an embedding table, and the model has none: make it with table=gst.EmbeddingTable(1, "
            "channels), or leave the rows unread by load_state_dict(state, strict=False)"
        )


def after_loading(model: Any, incompatible: object) -> None:
    """Keep the rows of an encoder that was saved frozen; forget those of one that was frozen here."""
    if model.encoder_frozen and model._frozen_version == ():
        model._freeze()
        model._frozen_version = model._rows_version()
    elif model.encoder_frozen:
        model._forget_rows()
