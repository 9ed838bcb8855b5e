"""Check that an encoder forgets one segment before it sees the next: what it caches of a graph would be another's."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gst.method.batch import SegmentBatch, assemble
from gst.method.draws import Catalogue
from gst.method.encoding import embed_segments

Embed = Callable[[Any, SegmentBatch], Tensor]
TOLERANCE = 1e-3  # of the largest embedding: rounding stays below it, and below the other in half precision
HALF_TOLERANCE = 0.05


class FirstLook:
    """Checks of the encoder of a model before its first step in training mode, and in evaluation mode."""

    def __init__(self, is_on: bool) -> None:
        self._modes = {True, False} if is_on else set()

    @torch.compiler.disable
    def __call__(self, model: Any, catalogue: Catalogue, configs: Tensor) -> None:
        """Refuse an encoder that does not forget, and warn of features that are rounded to the dtype of the model."""
        mode, like = bool(getattr(model.encoder, "training", True)), model.like()
        if mode not in self._modes:
            return

        def embed(encoder: Any, batch: SegmentBatch) -> Tensor:
            return embed_segments(encoder, batch, model.call, model.pooling, model.readout.phi)

        refuse_cached(model.encoder)
        if not check_forgets(model.encoder, embed, catalogue, configs, like):
            return
        self._modes.discard(mode)
        if (name := catalogue.graphs[0].node_features.dtype.name) == "float64" and like.dtype != torch.float64:
            warnings.warn(
                f"node features are {name}, and are rounded to the model's {like.dtype}; model.double() keeps them",
                stacklevel=2,
            )


def refuse_cached(encoder: object) -> None:
    """Raise ValueError if a layer has the option `cached=True`, by which PyG keeps the edges of the first graph."""
    cells = [cell.cell_contents for cell in getattr(encoder, "__closure__", None) or ()]
    for module in [encoder, getattr(encoder, "__self__", None), *cells]:
        for name, layer in module.named_modules() if isinstance(module, nn.Module) else ():
            if getattr(layer, "cached", None) is True and any(key.startswith("_cached") for key in vars(layer)):
                raise ValueError(_refusal(f"{name + '.' if name else ''}cached=True", type(layer).__name__))


def check_forgets(encoder: object, embed: Embed, catalogue: Catalogue, configs: Tensor, like: Tensor) -> bool:
    """Encode segments of a step in two orders, without gradient and with copies of `encoder`, which stays as it is.

    Args:
        embed: takes an encoder and a batch.
        like: a tensor on the device and in the dtype of the model.

    Returns:
        True if there was something to compare; False if a later step has to be looked at.

    Raises:
        ValueError: the embeddings of a segment depend on the segments before it.
    """
    encoder = getattr(encoder, "_orig_mod", encoder)  # of torch.compile
    if not isinstance(encoder, nn.Module) or like.is_meta or _is_wrapped(encoder):
        return True
    if any(map(nn.parameter.is_lazy, encoder.parameters())):
        return False
    probes = [batch.to(like.device, like.dtype) for batch in _probes(catalogue, configs)]
    if len(probes) < 2:
        return False
    try:
        fresh = partial(_copy, encoder)
        first, last = fresh(), fresh()
    except Exception:  # an attribute cannot be copied: a lock, say
        return True
    forwards = _outcomes(first, embed, probes, like.device)
    backwards = _outcomes(last, embed, probes[::-1], like.device)[::-1]
    if forwards[0] is None or backwards[-1] is None:
        return True  # the encoder refuses a segment by itself, and does so in the step too
    pairs = list(zip(forwards, backwards, strict=True))
    again = _outcomes(fresh(), embed, probes[:1], like.device)[0]
    if _differ(forwards[0], again) or not any(_differ(one, other) for one, other in pairs):
        return True  # it has random numbers of its own, or it forgets
    names = _changed(encoder, first) or ["something outside its attributes"]
    raise ValueError(_refusal(", ".join(names[:3]), type(encoder).__name__))


def _refusal(what: str, encoder: str) -> str:
    return (
        f"{encoder} remembers a graph ({what}): embeddings of a segment would depend on those before it; compute it "
        "anew in each call (in PyG cached=False), or keep it as node_data or edge_data of the graphs"
    )


def _is_wrapped(encoder: nn.Module) -> bool:
    """True for DistributedDataParallel and FSDP, whose calls all processes have to make together."""
    return isinstance(encoder, nn.parallel.DistributedDataParallel) or any(
        hasattr(parameter, "to_local") or hasattr(parameter, "_is_flat_param") for parameter in encoder.parameters()
    )


def _probes(catalogue: Catalogue, configs: Tensor) -> list[SegmentBatch]:
    """Return the largest segment, the same one with other edges of the same number, and the smallest segment."""
    largest, smallest = int(catalogue.rows.argmax()), int(catalogue.rows.argmin())
    smallest = (largest + 1) % len(catalogue) if smallest == largest else smallest
    chosen = torch.tensor([largest, smallest])
    one, other = (assemble(catalogue.graphs, [pick], configs[:, :1]) for pick in catalogue.picks(chosen))
    half = torch.arange(one.edge_index.shape[1]) // 2  # edges twice: they stay sorted, and between nodes of their types
    edge_data = {name: data[half] for name, data in one.edge_data.items()}
    doubled = replace(one, edge_index=one.edge_index[:, half], edge_data=edge_data)
    return [one, *([doubled] if len(half) > 1 else []), *([other] if smallest != largest else [])]


def _copy(encoder: nn.Module) -> nn.Module:
    """Return a copy with the same parameters, and copies of everything else."""
    shared: dict[int, Any] = {id(parameter): parameter for parameter in encoder.parameters()}
    for layer in encoder.modules():
        results = (each for each in vars(layer).values() if isinstance(each, Tensor) and not each.is_leaf)
        shared |= {id(each): each.detach() for each in results}
    return copy.deepcopy(encoder, shared)


@torch.no_grad()
def _outcomes(
    encoder: nn.Module, embed: Embed, batches: Sequence[SegmentBatch], device: torch.device
) -> list[Tensor | None]:
    """Return the embeddings of each batch, all from the same random numbers; None where the encoder fails."""
    outcomes: list[Tensor | None] = []
    others = [] if device.type in ("cpu", "mps") else [torch.accelerator.current_device_index()]
    with torch.random.fork_rng(others, device_type=device.type if others else "cuda"):
        for batch in batches:
            torch.random.default_generator.manual_seed(0)
            if others:
                torch.get_device_module(device).manual_seed(0)
            try:
                outcomes.append(embed(encoder, batch).detach())
            except Exception:
                outcomes.append(None)
    return outcomes


def _differ(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is not other
    if one.shape != other.shape:
        return True
    half = torch.is_autocast_enabled(one.device.type) or one.dtype.itemsize < 4
    tolerance = (HALF_TOLERANCE if half else TOLERANCE) * float(one.nan_to_num(0, 0, 0).abs().max())
    return not torch.allclose(one, other, rtol=0, atol=tolerance, equal_nan=True)


def _changed(before: nn.Module, after: nn.Module) -> list[str]:
    """Return the attributes that a copy of an encoder has changed."""
    names = []
    for (place, one), (_, other) in zip(before.named_modules(), after.named_modules(), strict=False):
        own, later = ({**vars(each), **dict(each.named_buffers(recurse=False))} for each in (one, other))
        public = (key for key in later if not key.startswith(("_forward", "_parameters", "_buffers", "_modules")))
        names += [f"{place}.{key}" if place else key for key in public if not _equal(own.get(key), later[key])]
    return names


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict | list | tuple | set):
        return len(one) == len(other)
    return one == other if isinstance(one, int | float | str) else True
