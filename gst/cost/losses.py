"""Losses over the configurations of each graph. The higher a score, the longer the runtime. NaN targets are padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from gst.util.untrusted import plain

Scores = Float[Tensor, "graphs configs"]
Values = Float[Tensor, "graphs configs ..."]  # one for each target
Loss = Callable[[Tensor, Scores], Float[Tensor, ""]]
LEAST = -1e300  # stands for log(0)
SHOWN = 10  # labels in a message
PADDING = -100  # the class of targets that are NaN, which cross_entropy leaves out
WITHIN_A_GRAPH = {"pairwise_hinge", "list_mle"}
"""Losses that compare configurations of one graph: with one target a graph they are 0."""
CLASSES = {"cross_entropy"}
"""Losses whose scores have classes as their last axis."""


def check_shapes(scores: Tensor, targets: Tensor, has_classes: bool = False) -> None:
    """Refuse shapes that PyTorch would broadcast; with `has_classes` the last axis of the scores is that of classes.

    Raises:
        ValueError: there is not one score, or one row of scores, for each target.
    """
    axes = scores.shape[: scores.dim() - has_classes]
    if axes != targets.shape:
        raise ValueError(
            f"scores have shape {tuple(scores.shape)} and targets {tuple(targets.shape)}; want "
            f"{'one row of scores' if has_classes else 'one score'} for each target: reshape one of them, or give the "
            "head an output for each target"
        )


def check_positive(targets: Tensor) -> None:
    """Raise ValueError for targets, in memory of the host, that are not positive and so have no logarithm."""
    if bool((targets <= 0).any()):
        raise ValueError("log_runtime needs positive targets; rank with pairwise_hinge or list_mle instead")


def check_classes(targets: Tensor, outputs: int) -> None:
    """Raise ValueError for targets, in memory of the host, that are no whole numbers from 0 to `outputs` - 1.

    Examples:
        >>> check_classes(torch.tensor([-1.0, 1.0, torch.nan]), outputs=2)
        Traceback (most recent call last):
        ValueError: cross_entropy takes the classes 0..1 of a head with 2 outputs, and targets are -1, 1; number them \
from 0 in the source, {-1: 0, 1: 1}
    """
    labels = targets[~targets.isnan()].unique()
    if outputs > 1 and bool(((labels == labels.round()) & (labels >= 0) & (labels < outputs)).all()):
        return
    names = [f"{label:.10g}" for label in labels.tolist()]
    shown = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
    advice = f"give the head {len(names)} outputs (--model.head.init_args.outputs)"
    if names != [str(number) for number in range(len(names))]:
        numbers = ", ".join(f"{name}: {number}" for number, name in enumerate(names[:SHOWN]))
        advice = f"number them from 0 in the source, {{{numbers}{', ...' if len(names) > SHOWN else ''}}}"
        if len(names) > outputs:
            advice += f", and give the head {len(names)} outputs; numbers to predict have the loss squared_error"
    raise ValueError(
        f"cross_entropy takes the classes 0..{max(outputs, 2) - 1} of a head with {outputs} outputs, and targets are "
        f"{shown}; {advice}"
    )


def pairwise_hinge(scores: Scores, targets: Scores, margin: float = 1.0) -> Float[Tensor, ""]:
    """Return the mean of max(0, margin - (s_i - s_j)) over the pairs of one graph with y_i > y_j.

    Source: TpuGraphs (Phothilimthana et al. 2023), section 4.1.

    Examples:
        >>> pairwise_hinge(torch.tensor([[0.0, 3.0, 2.5]]), torch.tensor([[1.0, 2.0, 3.0]])).item()
        0.5
    """
    check_shapes(scores, targets)
    slower = targets[:, :, None] > targets[:, None, :]  # False where either is NaN
    gaps = scores[:, :, None] - scores[:, None, :]
    costs = torch.where(slower, (margin - gaps).clamp(min=0), 0.0)  # a mask as an index makes the host wait
    return costs.sum() / slower.sum().clamp(min=1)


def list_mle(scores: Scores, targets: Scores) -> Float[Tensor, ""]:
    """Return the negative log likelihood of the true order, fastest first, under Plackett-Luce, per configuration.

    Source: Xia et al. 2008, section 4; scores enter with a minus, because fast is good there. Each configuration is
    compared with itself and the slower ones; equal targets are not compared, so that the order of a list does not
    matter. Sums are in float64: float32 loses the gradient when scores spread over thousands.
    """
    check_shapes(scores, targets)
    order = torch.where(targets.isnan(), torch.inf, targets).argsort(dim=1, stable=True)
    sorted_targets = targets.gather(1, order)
    present = ~sorted_targets.isnan()
    goodness = torch.where(present, -scores.double().gather(1, order), LEAST)
    from_here = nn.functional.pad(goodness.flip(1).logcumsumexp(1).flip(1), (0, 1), value=LEAST)
    finite = torch.where(present, sorted_targets, torch.inf).contiguous()  # searched for the first larger target
    rest = from_here.gather(1, torch.searchsorted(finite, finite, right=True))
    terms = torch.where(present, nn.functional.softplus(rest - goodness), 0.0)
    return (terms.sum() / present.sum().clamp(min=1)).to(scores.dtype)


def log_runtime(scores: Values, targets: Values) -> Float[Tensor, ""]:
    """Return the mean squared error of scores against the natural logarithm of the targets.

    Raises:
        ValueError: a target on the CPU is not positive. Targets on an accelerator are not checked, because the host
            would wait: call `check_positive` before you move them, else the loss becomes infinite.
    """
    check_shapes(scores, targets)
    if targets.device.type == "cpu":
        check_positive(targets)
    return squared_error(scores, targets.clamp(min=0).log())


def squared_error(scores: Values, targets: Values) -> Float[Tensor, ""]:
    """Return the mean squared error of scores against the targets."""
    check_shapes(scores, targets)
    present = ~targets.isnan()
    errors = torch.where(present, scores - targets.to(scores.dtype), 0.0)  # a mask as an index makes the host wait
    return errors.square().sum() / present.sum().clamp(min=1)


def cross_entropy(scores: Float[Tensor, "graphs configs classes"], targets: Scores) -> Float[Tensor, ""]:
    """Return the mean negative log likelihood of the classes that the targets number from 0.

    Raises:
        ValueError: a target on the CPU is no class. As with `log_runtime`, those on an accelerator are not checked.
    """
    check_shapes(scores, targets, has_classes=True)
    if targets.device.type == "cpu":
        check_classes(targets, scores.shape[-1])
    present = ~targets.isnan()
    classes = torch.where(present, targets, PADDING).long()
    scores = torch.where(present[..., None], scores, 0.0)  # a NaN that is not counted would make NaN gradients
    return nn.functional.cross_entropy(scores.flatten(0, 1), classes.flatten(), ignore_index=PADDING)


LOSSES: dict[str, Loss] = {
    "pairwise_hinge": pairwise_hinge,
    "list_mle": list_mle,
    "log_runtime": log_runtime,
    "squared_error": squared_error,
    "cross_entropy": cross_entropy,
}
"""Losses by name."""


def loss_of(name: str) -> Loss:
    """Return a loss of `LOSSES`; ValueError with their names if there is no such loss.

    Examples:
        >>> loss_of("list_mle") is list_mle
        True
    """
    if name not in LOSSES:
        raise ValueError(f"there is no loss {name!r}; there are {', '.join(LOSSES)}")
    return LOSSES[name]


# Losses of one's own -------------------------------------------------------------------------------------------------


def of_rows(loss: Loss, scores: Tensor, targets: Tensor) -> Float[Tensor, ""]:
    """Return the mean of a loss that knows no padding, such as one of torch.nn, over the graphs and configurations.

    Where predictions have an axis more than targets, that of classes, targets become whole numbers.

    Args:
        loss: predictions `(rows,)` or `(rows, classes)` and targets `(rows,)`, or both `(rows, targets)`, of which some
            are NaN if they are unknown -> their mean loss, or one for each row.

    Examples:
        >>> scores, targets = torch.tensor([[1.0, 2.0], [4.0, 9.0]]), torch.tensor([[1.0, 4.0], [4.0, torch.nan]])
        >>> round(of_rows(nn.L1Loss(), scores, targets).item(), 4)
        0.6667
    """
    targets = targets.flatten(0, 1)
    rows = are_known(targets).nonzero().squeeze(1)  # on the host, if targets are: else it would wait
    scores, targets = scores.flatten(0, 1)[rows.to(scores.device)], targets[rows].to(scores.device, scores.dtype)
    return loss(scores, targets.long() if scores.dim() > targets.dim() else targets).mean()


def are_known(targets: Float[Tensor, "rows ..."]) -> Bool[Tensor, " rows"]:
    """Return True for rows with a target that is a number."""
    return ~targets[..., None].isnan().flatten(1).all(1)


def name_of(loss: Any) -> str:
    """Return the name of a function or of the class of a module."""
    return str(getattr(loss, "__name__", type(loss).__name__))


def check_own(loss: Loss, scores: Tensor, targets: Tensor, is_shared: bool) -> None:
    """Refuse a loss that cannot be computed from scores and targets of one configuration of one graph, and, if it
    `is_shared`, a sum: several processes average their losses.

    Raises:
        ValueError: the loss raises an error, returns something else than numbers, or grows with the number of rows.
    """
    repeated = [each.expand(2 + scores.shape[-1], *each.shape[1:]) for each in (scores, targets)]
    try:
        mean = of_rows(loss, *repeated)
        of_twice = of_rows(loss, *(torch.cat([each, each]) for each in repeated))
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError) as error:
        shapes = " and targets ".join(str(tuple(each.flatten(0, 1).shape)) for each in repeated)
        raise ValueError(
            f"loss {name_of(loss)} of predictions {shapes}: {type(error).__name__}: {plain(error)}"
        ) from error
    if is_shared and not torch.allclose(mean, of_twice, rtol=1e-3):
        raise ValueError(
            f"loss {name_of(loss)} becomes {float(of_twice):.4g} from {float(mean):.4g} when every row comes twice, "
            "and several processes average their losses; let it return the mean over its rows, or one value for each"
        )
