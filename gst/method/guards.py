"""Guards of a training step: what would otherwise go wrong silently (rows of an encoder that has changed, dropout in
exact predictions, gradients that are not finite) is noticed and told."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gst.method.draws import Catalogue


def version(module: object) -> tuple[Any, ...]:
    """Differs once a parameter or buffer was replaced or written to. Those that FSDP moves about do not count."""
    if not isinstance(module, nn.Module):
        return (0,)
    tensors = [*module.parameters(), *module.buffers()]
    if any(hasattr(tensor, "to_local") or tensor.is_inference() for tensor in tensors):
        return (0,)
    return tuple(
        (id(tensor), tensor.dtype, 0 if nn.parameter.is_lazy(tensor) else tensor._version) for tensor in tensors
    )


@contextmanager
def evaluating(*modules: object) -> Iterator[None]:
    """Modules are in evaluation mode inside, and each of their layers is as it was afterwards."""
    training = [
        layer for module in modules if isinstance(module, nn.Module) for layer in module.modules() if layer.training
    ]
    for layer in training:
        layer.training = False
    try:
        yield
    finally:
        for layer in training:
            layer.training = True


def rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def check_reducer() -> None:
    """Refuse a step inside a DistributedDataParallel that waits for gradients of a frozen encoder."""
    wrapper = nn.parallel.DistributedDataParallel._get_active_ddp_module()
    if wrapper is None or wrapper.find_unused_parameters:
        return
    learning = sum(
        parameter.requires_grad and name not in wrapper.parameters_to_ignore
        for name, parameter in wrapper.module.named_parameters()
    )
    if wrapper._get_ddp_logging_data()["num_parameter_tensors"] > learning:
        raise ValueError(
            "DistributedDataParallel waits for gradients of the frozen encoder; after freeze_encoder() wrap the model "
            "anew: model = DistributedDataParallel(model.module)"
        )


def require_finite_gradients(embedded: Tensor, encoder: object, require: Callable[[Tensor], None]) -> None:
    """In the backward pass, `require` that the gradient of the embeddings is finite; under autocast in float16, whose
    range gradients may leave inside the encoder, that those of all of its parameters are, too."""
    if not embedded.requires_grad:
        return
    embedded.register_hook(lambda gradient: require(gradient.isfinite().all()))
    device = embedded.device.type
    half = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.float16
    if not (half and isinstance(encoder, nn.Module)):
        return

    def check(gradients: Sequence[Tensor | None]) -> None:
        handle.remove()
        require(torch.stack([each.isfinite().all() for each in gradients if each is not None]).all())

    parameters = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
    handle = torch.autograd.graph.register_multi_grad_hook(parameters, check)


def report(catalogue: Catalogue, segment_of_row: Tensor, step: int, places: Tensor) -> None:
    """Warn of rows that are not finite, and so not in the table, once for a step."""
    segments = segment_of_row[places.cpu()].unique()
    names = [
        f"segment {number} of graph {catalogue.graphs[graph].name!r}" for graph, number in catalogue.picks(segments)
    ]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    warnings.warn(
        f"step {step}: embeddings of {', '.join(names[:3])}{more} are not finite; the table keeps its old rows of "
        "them: look at the features of these graphs, or lower the learning rate",
        stacklevel=2,
    )


def scale_gradient(embedded: Tensor, weights: Tensor) -> Tensor:
    """The same values, with their gradients times `weights` (one for each segment and configuration)."""
    scale = weights.to(embedded, non_blocking=True)[..., None]
    return embedded.detach() + (embedded - embedded.detach()) * scale
