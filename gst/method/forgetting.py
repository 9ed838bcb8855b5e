"""Check that an encoder forgets one segment before it sees the next: what it caches of a graph would be another's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gst.method.batch import SegmentBatch, assemble
from gst.method.draws import Catalogue
from gst.method.signatures import modules_of

Embed = Callable[[Any, SegmentBatch], Tensor]
TOLERANCE = 1e-3  # of the largest embedding: rounding stays below it, and below the other in half precision
HALF_TOLERANCE = 0.05


def refuse_cached(encoder: object) -> None:
    """Raise ValueError if a layer has the option `cached=True`, by which PyG keeps the edges of the first graph."""
    for module in modules_of(encoder):
        for name, layer in module.named_modules():
            if getattr(layer, "cached", None) is True and any(key.startswith("_cached") for key in vars(layer)):
                raise ValueError(_refusal(f"{name + '.' if name else ''}cached=True", type(layer).__name__))


def check_forgets(encoder: nn.Module, embed: Embed, catalogue: Catalogue, configs: Tensor, like: Tensor) -> bool:
    """Encode segments of a step in two orders, without gradient and with copies of `encoder`, which stays as it is.

    Args:
        embed: takes an encoder and a batch.
        like: a tensor on the device and in the dtype of the model.

    Returns:
        True if there was something to compare; False if a later step has to be looked at.

    Raises:
        ValueError: the embeddings of a segment depend on the segments before it.
    """
    probes = [batch.to(like.device, like.dtype) for batch in _probes(catalogue, configs)]
    if len(probes) < 2:
        return False
    try:
        fresh = partial(copied, encoder)
        first, last = fresh(), fresh()
    except Exception:  # an attribute cannot be copied: a lock, say
        return True
    forwards = outcomes(first, embed, probes, like.device)
    backwards = outcomes(last, embed, probes[::-1], like.device)[::-1]
    if isinstance(forwards[0], Exception) or isinstance(backwards[-1], Exception):
        return True  # the encoder refuses a segment by itself, and does so in the step too
    pairs = list(zip(forwards, backwards, strict=True))
    again = outcomes(fresh(), embed, probes[:1], like.device)[0]
    if differ(forwards[0], again) or not any(differ(one, other) for one, other in pairs):
        return True  # it has random numbers of its own, or it forgets
    names = _changed(encoder, first) or ["something outside its attributes"]
    raise ValueError(_refusal(", ".join(names[:3]), type(encoder).__name__))


def _refusal(what: str, encoder: str) -> str:
    return (
        f"{encoder} remembers a graph ({what}): embeddings of a segment would depend on those before it; compute it "
        "anew in each call (in PyG cached=False), or keep it as node_data or edge_data of the graphs"
    )


def is_wrapped(encoder: nn.Module) -> bool:
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


def copied(encoder: nn.Module) -> nn.Module:
    """Return a copy with the same parameters, and copies of everything else."""
    shared: dict[int, Any] = {id(parameter): parameter for parameter in encoder.parameters()}
    for layer in encoder.modules():
        results = (each for each in vars(layer).values() if isinstance(each, Tensor) and not each.is_leaf)
        shared |= {id(each): each.detach() for each in results}
    return copy.deepcopy(encoder, shared)


@torch.no_grad()
def outcomes(
    encoder: Any, embed: Embed, batches: Sequence[SegmentBatch], device: torch.device, seed: int = 0
) -> list[Tensor | Exception]:
    """Return the embeddings of each batch, all from the same random numbers; the error where the encoder fails."""
    results: list[Tensor | Exception] = []
    others = [] if device.type in ("cpu", "mps") else [torch.accelerator.current_device_index()]
    with torch.random.fork_rng(others, device_type=device.type if others else "cuda"):
        for batch in batches:
            torch.random.default_generator.manual_seed(seed)
            if others:
                torch.get_device_module(device).manual_seed(seed)
            try:
                results.append(embed(encoder, batch).detach())
            except Exception as error:
                results.append(error)
    return results


def differ(one: Tensor | Exception, other: Tensor | Exception) -> bool:
    """True if two results are not equal up to rounding; an error equals any other error."""
    if isinstance(one, Exception) or isinstance(other, Exception):
        return isinstance(one, Tensor) or isinstance(other, Tensor)
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
