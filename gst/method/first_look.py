"""Checks of an encoder before its first step: encodings of small segments alone, joined, and with edges reordered."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gst.method.batch import NodeStates, SegmentBatch, assemble
from gst.method.draws import Catalogue
from gst.method.encoding import COUNTS_CONTEXT, complaints, embed_segments, encode_rows, evaluating, modules_of
from gst.util.random_numbers import seeded

MOST_ROWS = 2000  # of a segment that is encoded, unless all have more
OFF = "check_encoder=False leaves this check out"


class FirstLook:
    """Checks of the encoder of a model before its first step, and before the first one in the other mode."""

    def __init__(self, is_on: bool) -> None:
        self._modes = {True, False} if is_on else set()
        self._has_names, self._has_rows = False, not is_on

    @torch.compiler.disable
    def __call__(self, model: Any, catalogue: Catalogue, configs: Tensor) -> None:
        """Refuse an encoder whose rows are not those of segments by themselves.

        Warn of data that no argument takes, and of features that are rounded to the dtype of the model."""
        mode, like, graph = bool(getattr(model.encoder, "training", True)), model.like(), catalogue.graphs[0]
        if not self._has_names:
            self._has_names = True
            if unread := model.call.unread([*graph.node_data, *graph.edge_data]):
                warnings.warn(
                    f"no argument of the encoder takes {', '.join(unread)} of the graphs: name an argument so, say "
                    f"which one by inputs={{...: {unread[0]!r}}}, or leave {unread[0]} out of the graphs",
                    stacklevel=2,
                )
            if model.training and (model.makes_table or model.keys) and "sources" in vars(graph):
                warnings.warn(
                    f"{', '.join(vars(graph)['sources'])} of the graphs requires a gradient: once it changes, rows of "
                    "the table are not read again; make the model without a table",
                    stacklevel=2,
                )
        if mode not in self._modes:
            return

        def embed(encoder: Any, batch: SegmentBatch) -> Tensor:
            return embed_segments(encoder, batch, model.call, model.pooling, model.readout.phi)

        refuse_cached(model.encoder)
        encoder = getattr(model.encoder, "_orig_mod", model.encoder)  # of torch.compile
        if isinstance(encoder, nn.parallel.DistributedDataParallel | nn.DataParallel):
            encoder = encoder.module
        modules = modules_of(encoder)
        if not like.is_meta and not any(map(is_wrapped, modules)):
            if any(nn.parameter.is_lazy(parameter) for module in modules for parameter in module.parameters()):
                return  # a later step is looked at
            if isinstance(encoder, nn.Module) and not check_forgets(encoder, embed, catalogue, configs, like):
                return
            if not self._has_rows:
                check_rows(model, encoder, catalogue, configs, like)
                self._has_rows = True
        self._modes.discard(mode)
        if (name := graph.node_features.dtype.name) == "float64" and like.dtype != torch.float64:
            warnings.warn(
                f"node features are {name}, and are rounded to the model's {like.dtype}; model.double() keeps them",
                stacklevel=2,
            )


def check_rows(model: Any, encoder: Any, catalogue: Catalogue, configs: Tensor, like: Tensor) -> None:
    """Compare the rows of a segment alone with those beside another segment, and with its edges in another order.

    Rows of both are compared with those of one graph that is made of them, too. The encoder is a copy in evaluation
    mode, without gradient.

    Raises:
        ValueError: the rows of nodes depend on the order of edges or on other segments, or rows of segments count
            context nodes.
    """
    try:
        encoder = copied(encoder) if isinstance(encoder, nn.Module) else encoder
    except Exception:  # an attribute cannot be copied: a lock, say
        return
    picks = catalogue.picks(torch.tensor(_chosen(catalogue)))
    one, joined = (assemble(catalogue.graphs, each, configs[:, :1]) for each in (picks[:1], picks[::-1]))
    if picks[0] == picks[1]:  # a copy with other features
        first, second = joined.node_features.tensor_split(2)
        joined = replace(joined, node_features=torch.cat([first[torch.arange(len(first)) // 2], second]))
    suspects = _suspects(model, joined)

    def rows(batch: SegmentBatch, seed: int = 0) -> Tensor | Exception:
        with evaluating(encoder, *modules_of(encoder)):
            return outcomes(encoder, encode, [batch.to(like.device, like.dtype)], like.device, seed)[0]

    def encode(encoder: Any, batch: SegmentBatch) -> Tensor:
        returned = encode_rows(encoder, batch, model.call)
        return returned.dense() if isinstance(returned, NodeStates) else returned

    alone = rows(one)
    if isinstance(alone, IndexError) and suspects:
        raise ValueError(f"the encoder fails on a segment ({alone}){suspects}; {OFF}") from alone
    if isinstance(alone, Exception) or differ(alone, rows(one, seed=1)):
        return  # the encoder fails in the step too, or draws random numbers in evaluation mode

    def is_right(both: Tensor | Exception) -> bool:
        return isinstance(both, Exception) or not differ(alone, both[-len(alone) :])

    both, reordered = rows(joined), rows(_reordered(joined, is_sorted=model.call.whole == "batch"))
    if isinstance(reordered, Exception):
        reordered = rows(_reordered(joined, is_sorted=True))
    name = getattr(encoder, "__name__", type(encoder).__name__)
    if not is_right(both):
        if complaints(model.encoder, model.inputs):
            return  # of which the model has warned
        raise ValueError(
            f"rows of {name} for one segment depend on the other segments of its batch{suspects}; keep segments apart "
            f"by an argument `batch`, the segment of each row, and use no number of a node, nor of all nodes; {OFF}"
        )
    if not is_right(reordered):
        raise ValueError(
            f"rows of {name} depend on the order of edges{suspects}; segments keep edges sorted by consumer, and not "
            f"all of them, so that an edge cannot be found by its number: find it by its ends; {OFF}"
        )
    if isinstance(both, Tensor):
        _compare_with_one_graph(model, catalogue, joined, both, rows)


def _compare_with_one_graph(model: Any, catalogue: Catalogue, joined: SegmentBatch, both: Tensor, rows: Any) -> None:
    """Compare the rows of two segments with those of one graph that is made of them."""
    is_pooled = len(both) == joined.num_segments != joined.num_nodes
    if is_pooled and joined.has_context and differ(both, rows(_with_stray(joined))):
        raise ValueError(COUNTS_CONTEXT)
    if all(graph.num_segments == 1 for graph in catalogue.graphs):
        return
    together = replace(
        joined, segment_of_node=torch.zeros_like(joined.segment_of_node), node_counts=joined.node_counts.sum()[None]
    )
    whole, shares = rows(together), joined.node_counts.to(both) / joined.node_counts.sum()
    if is_pooled:
        both = both.view(2, -1, both.shape[-1])
        pooled = {"sum": both.sum(0), "max": both.amax(0), "mean": (shares[:, None, None] * both).sum(0)}
        both = pooled.get(model.pooling, both)[None]
        whole = whole.view(both.shape) if isinstance(whole, Tensor) and whole.numel() == both.numel() else whole
    if isinstance(whole, Tensor) and differ(whole, both):
        kind = f"the {model.pooling} of rows of segments is not the row" if is_pooled else "rows are not those"
        off = float((whole - both).abs().max() / whole.abs().max()) if whole.shape == both.shape else torch.inf
        warnings.warn(
            f"the encoder looks at all nodes of a segment: {kind} of the whole graph (off by {off:.0%} for two "
            "segments); give such graphs one segment (max_nodes), or return rows that depend on edges alone",
            stacklevel=4,
        )


def _chosen(catalogue: Catalogue) -> list[int]:
    """Return the largest segment of at most `MOST_ROWS` rows, else the smallest; and another one if there is any."""
    small = torch.where(catalogue.rows <= MOST_ROWS, catalogue.rows, -catalogue.rows)
    order = torch.argsort(small, descending=True, stable=True).tolist()
    return [order[0], next((number for number in reversed(order) if int(small[number]) > 0), order[0])]


def _reordered(batch: SegmentBatch, is_sorted: bool) -> SegmentBatch:
    """Return the batch with its edges in another order: any, or one that is sorted by consumer too."""
    order = torch.randperm(batch.edge_index.shape[1], generator=torch.Generator().manual_seed(0))
    if is_sorted:
        order = order[torch.argsort(batch.edge_index[1, order], stable=True)]
    edge_data = {name: data[order] for name, data in batch.edge_data.items()}
    return replace(batch, edge_index=batch.edge_index[:, order], edge_data=edge_data)


def _with_stray(batch: SegmentBatch) -> SegmentBatch:
    """Return the batch with a further context node in its last segment, joined to none: a copy of its last node."""
    rows = torch.cat([torch.arange(batch.num_nodes), torch.tensor([batch.num_nodes - 1])])
    return replace(
        batch, node_features=batch.node_features[rows], opcodes=batch.opcodes[rows],
        segment_of_node=batch.segment_of_node[rows], owned=torch.cat([batch.owned, torch.tensor([False])]),
        node_data={name: data[rows] for name, data in batch.node_data.items()},
    )  # fmt: skip


def _suspects(model: Any, batch: SegmentBatch) -> str:
    """Name the data that an encoder may take for numbers of nodes or edges, as a part of a sentence."""
    data = {**batch.node_data, **batch.edge_data}.items()
    names = [name for name, each in data if not each.is_floating_point() and each.dtype != torch.bool]
    names = [name for name in names if name not in model.call.unread(names)]
    return f" (it takes {', '.join(names)}: numbers of nodes or edges are not those of a segment)" if names else ""


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
    for batch in batches:
        with seeded(seed, [] if device.type == "mps" else [device]):
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
