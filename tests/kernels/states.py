"""Random steps that renew a state: they shift, rotate, swap, average, accumulate, alias and view values of the step
before. `wrong` compares a step in place with the step as written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from gst.kernels.state import StepInPlace
from gst.programs import Step

CALLS = 4
OLD = (
    "{p}", "{p}.clone()", "{p}.t()", "{p} * 1", "{p} + 0", "{p}.reshape(9).view(3, 3)", "{p}[:, :]", "{p}.roll(1, 0)",
    "{p}.flip(0)", "torch.cat([{p}[:1], {q}[1:]])", "torch.cat([{p}, {p}[:0]])", "{p}.to(torch.float32)",
    "{p}.expand(1, 3, 3)[0]", "{p} * torch.ones(3, 3)", "{p} / torch.ones_like({q})", "{p} + torch.zeros_like({p})",
)  # fmt: skip
NEW = (
    "({p} + {q}) / 2", "{p} - 0.1 * x", "0.9 * {p} + 0.5 * {q}", "{p} + x.sum()",
    "0.9 * torch.where({p} > 0, {p}, {q})",
    "{p} @ {q} / 9", "{p}.sin()", "{p}.roll(1, 1) + {q}", "{p} * {s}.sin()", "{p}.t() - {p}", "0.5 * {p}", "x.clone()",
    "{p}.clone().mul_(0.5)", "{p}.cumsum(0) / 3", "torch.zeros_like({p})", "new['{p}']", "new['{p}'].t()",
    "{q} + new['{p}']",
)  # fmt: skip
SCALARS = ("{s}", "{s} + 1", "{p}.mean()", "{p}[0, 0]", "{s} * 1.0", "{t}", "{t} + {s}", "{s}.clone()")
RESULTS = ("", "{p}, ", "{p}.t(), {s}, ", "new['{p}'][0], ")


def source(choose: Callable[[int], int]) -> str:
    """Draw a step with its first state, given a function of a number that returns one below it."""
    tensors, scalars = "abcde"[: 2 + choose(4)], "st"

    def drawn(kinds: tuple[str, ...], made: str) -> str:
        kinds = tuple(each for each in kinds if made or "new" not in each)
        p, q = (tensors[choose(len(tensors))] for _ in range(2))
        s, t = (scalars[choose(2)] for _ in range(2))
        form = kinds[choose(len(kinds))].format(p=p, q=q, s=s, t=t)
        other = made[choose(len(made))] if made else ""
        return form.replace(f"new['{p}']", f"new['{other}']")

    lines = [
        "def step(state, x):",
        f"    {', '.join(tensors + scalars)} = (state[key] for key in {tensors + scalars!r})",
    ]
    lines.append("    new = {}")
    for number, key in enumerate(tensors):
        lines.append(f"    new[{key!r}] = {drawn(OLD if choose(2) else NEW, tensors[:number])}")
    lines += [f"    new[{key!r}] = {drawn(SCALARS, '')}" for key in scalars]
    loss, others = drawn(("{p}", "{q} * x"), ""), drawn(RESULTS, tensors)
    lines.append(f"    return ({loss}).sum(), {others}{{key: new[key] for key in state}}")
    lines.append(f"tied = {[(tensors[choose(len(tensors))], tensors[choose(len(tensors))]) for _ in range(choose(2))]}")
    return "\n".join(lines)


def step_of(text: str) -> Step:
    """Return the step of a source, whose first state may hold views of one tensor."""
    names: dict[str, Any] = {"torch": torch}
    exec(text, names)  # the text is this file's
    draw = torch.Generator().manual_seed(0)
    keys = text.split("for key in '")[1].split("'")[0]
    state = {key: torch.randn((3, 3) if key < "s" else (), generator=draw) for key in keys}
    for one, other in names["tied"]:
        state[one] = state[other].t()
    return Step("random", names["step"], (state, torch.randn(3, 3, generator=draw)))


def wrong(step: Step) -> str:
    """Call a step in place and as written; describe the first difference, empty if there is none."""
    placed, state = StepInPlace(step), step.inputs[0]
    for call in range(CALLS):
        x = torch.randn(3, 3, generator=torch.Generator().manual_seed(call))
        *want, state = step.function(state, x)
        got = placed(x)
        pairs = zip(pytree.tree_leaves((got, placed.state)), pytree.tree_leaves((want, state)), strict=True)
        for number, (a, b) in enumerate(pairs):
            if not torch.allclose(a, b, rtol=1e-4, atol=1e-4, equal_nan=True):
                return f"call {call}, value {number}: off by {(a - b).abs().max():.3g} of {b.abs().max():.3g}"
    return ""


class Dropping(fx.Interpreter):
    """Runs a step in place as a bad compiler would: a result that equals an argument is this argument, not a copy."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        result = super().call_function(target, args, kwargs)
        if target is torch.ops.aten.copy_.default or not isinstance(result, Tensor):
            return result
        tensors = (each for each in pytree.tree_leaves(args) if isinstance(each, Tensor))
        return next(
            (each for each in tensors if each.stride() == result.stride() and torch.equal(each, result)), result
        )
