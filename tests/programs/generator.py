"""Small random programs, and the check that gst runs them as PyTorch does.

A program is the source text of a module: operations on a few tensors, with views, writing in place, aliases, buffers,
hidden state, random numbers, autocast, hooks, checkpoints and parts without gradients among them. `source` draws one.
`difference` calls it five times with changed inputs, as written and by one of `RUNNERS`, with steps of an optimizer
between them where there are gradients, and compares all that a user can see afterwards.
"""

from __future__ import annotations

import copy
import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import gst
from gst.placement.planning import Settings
from gst.util.progress import no_progress

Choose = Callable[[int], int]  # of a number, one below it
Runner = Callable[[nn.Module, Sequence[Any]], Callable[..., Any]]  # of a module and the inputs of its first call

CALLS = 5
ATTRIBUTES = ("hidden", "calls", "cache", "training")  # of the model, that programs write
ROWS, COLUMNS = 4, 6
HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

OUTSIDE = torch.linspace(-1, 1, 6)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6) / 3)
        self.linear, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(6))
        self.hidden, self.calls, self.cache = None, 0, {}
        HOOK

    def forward(self, x, k, mask):
"""

PURE = (
    "{n} = torch.sin({a})", "{n} = {a}.tanh() * {b}", "{n} = {a} @ self.weight", "{n} = self.linear({a})",
    "{n} = F.gelu({a}) - {b}", "{n} = {a}.t().reshape(4, 6)", "{n} = {a}[:, ::2].repeat(1, 2)",
    "{n} = torch.where({a} > {b}, {a}, 0.5)", "{n} = {a}.masked_fill(mask, -1.0).softmax(1)", "{n} = {a}.cumsum(1)",
    "{n} = {a}[:1].expand(4, 6) + {b}", "{n} = torch.gather({a}, 1, k % 6)", "{n} = {a} * mask + k.clamp(max=3)",
    "{n} = F.embedding(k % 6, self.weight).mean(1)", "{n} = torch.cat([{a}[:2], {b}[2:]])",
    "{n} = {a}.detach() * {b}", "{n} = {a} + OUTSIDE", "{n} = {a}.max(1, keepdim=True).values - {b}",
    "{n} = {a}.view(6, 4).transpose(0, 1).contiguous().view(4, 6)", "{n}, _ = {a}.sort(1)",
    "{n} = ({a} > 0).to(torch.int64).sum() + {b}", "{n} = {a} if x.shape[0] > 2 else {b}",
    "{n} = F.layer_norm({a}, (6,))", "{n} = torch.einsum('ij,kj->ik', {a}, self.weight)",
    "{n} = {a}.double().exp().float()", "{n} = torch.stack([{a}, {b}]).amax(0)",
    "{n} = {a}.roll(1, 0) / (1 + {b}.abs())", "{n} = (k * 2 - k // 3).float() + {a}",
)  # fmt: skip
IN_PLACE = (
    "{n} = {a}.clone(); {n}[1:3].add_(1)",
    "{n} = {a} * 1; {n}.mul_({b})",
    "{n} = {a} + 0; {n}[0] = {b}[1]",
    "{n} = {a} + 0; {n}.view(-1)[::5].zero_()",
    "{n} = torch.zeros(4, 6).index_add_(0, k[:, 0] % 4, {a})",
    "{n} = {a} + 0; {n}.index_put_((k[:, 0] % 4,), {b}[:4], accumulate=True)",
    "{n} = {a}.clone(); {n} += {b}; {n}.relu_()",
    "{n} = {a} + 0; view = {n}.t(); view.sub_(0.25)",
    "{n} = {a} + 0; torch._foreach_add_([{n}], [{b}])",
)
IMPURE = (
    "self.count.add_(1); {n} = {a} + self.count",
    "self.mean = 0.9 * self.mean + 0.1 * {a}.detach().mean(0); {n} = {a} - self.mean",
    "{n} = self.norm({a})",
    "with torch.no_grad(): x.add_(0.5)\n{n} = x * {a}",
    "with torch.no_grad(): x[0].zero_()\n{n} = {a} - x",
    "{n} = {a} if self.hidden is None else {a} + self.hidden; self.hidden = {a}.detach()",
    "self.calls += 1; {n} = {a} * self.calls",
    "k.remainder_(5); {n} = {a} + k",
    "if 'w' not in self.cache: self.cache['w'] = self.weight.detach().exp()\n{n} = {a} @ self.cache['w']",
    "with torch.no_grad(): OUTSIDE.mul_(0.5)\n{n} = {a} * OUTSIDE",
)
RANDOM = ("{n} = F.dropout({a}, 0.5, self.training)", "{n} = {a} + torch.rand_like({a})", "{n} = {a} * torch.randn(6)")
MODES = (
    "with torch.no_grad(): {n} = {a} * 2",
    "with torch.autocast('cpu', torch.bfloat16): {n} = ({a} @ self.weight).float()",
    "with torch.enable_grad(): {n} = {a} * {b}",
)
CHECKPOINTS = (
    "{n} = checkpoint(lambda value: F.dropout(value.tanh(), 0.5, self.training) * {b}, {a}, use_reentrant=False)",
    "{n} = checkpoint(lambda value: F.dropout(value.tanh(), 0.5, self.training) * {b}, {a}, use_reentrant=True)",
    "{n} = checkpoint(self.linear, {a}, use_reentrant=False) + torch.rand_like({b})",
)
HOOKED = (
    "{n} = {a} * self.weight[0]\nif {n}.requires_grad: {n}.register_hook(lambda gradient: gradient * 2)",
    "hook = self.linear.register_forward_hook(lambda module, inputs, output: output * 2)\n"
    "{n} = self.linear({a})\nhook.remove()",
)
HOOKS = (
    "pass", "pass", "self.linear.register_forward_hook(lambda module, inputs, output: output * 2)",
    "self.norm.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))",
    "self.linear.register_full_backward_pre_hook(lambda module, gradients: (gradients[0] * 2,))",
    "self.weight.register_hook(lambda gradient: gradient * 2)",
    "self.register_forward_hook(lambda module, inputs, output: setattr(self, 'calls', self.calls + 1))",
)  # fmt: skip
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "": {}, "SGD": {"momentum": 0.9}, "Adam": {"amsgrad": True}, "AdamW": {}, "RMSprop": {"centered": True},
}  # fmt: skip
RESULTS = (
    "{a}", "{a}, {b}", "{a}, {a}", "{{'out': {a}, 'again': {b}}}", "{a}, {a}[1]", "{a}, {a}.t()", "{a}, x",
    "x[:2], {a}", "{a}, k", "{a}, mask & (k > 2)", "[{a}, None, 'text', 3]", "{a}.sum(), ({b}, {{'k': k.sum()}})",
    "{a}.detach(), {b}", "{a}, self.weight",
)  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """A program and its inputs.

    Args:
        text: source of the module.
        training: in training mode, with gradients; else in evaluation mode, its parameters without.
        layout: of `x`: contiguous, transposed, every second column, or a row that is expanded.
        optimizer: of `torch.optim`, which steps after each backward pass; empty without.
    """

    text: str
    training: bool
    layout: str
    optimizer: str = ""

    def model(self) -> nn.Module:
        """Return the module with the same weights each time, and constants of its own."""
        name = f"<program {abs(hash(self.text))}>"
        linecache.cache[name] = (len(self.text), None, self.text.splitlines(keepends=True), name)
        names: dict[str, Any] = {"__name__": "generated"}
        torch.manual_seed(0)
        exec(compile(self.text, name, "exec"), names)  # the text is this file's
        model: nn.Module = names["Model"]()
        return model.train() if self.training else model.eval().requires_grad_(False)

    def inputs(self, call: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the inputs of a call: other values each time, of one shape and layout."""
        draw = torch.Generator().manual_seed(call)
        x = torch.randn(ROWS, 2 * COLUMNS, generator=draw)
        laid = {
            "contiguous": x[:, :COLUMNS].contiguous(), "columns": x[:, ::2],
            "transposed": x[:, :COLUMNS].t().contiguous().t(), "expanded": x[:1, :COLUMNS].expand(ROWS, COLUMNS),
        }  # fmt: skip
        k = torch.randint(8, (ROWS, COLUMNS), generator=draw)
        return laid[self.layout], k, torch.rand(ROWS, COLUMNS, generator=draw) < 0.3


def source(choose: Choose) -> Trial:
    """Draw a program. The kinds of operations are in the order of their numbers."""
    text, values = [], ["x.float()"]
    kinds = (PURE, PURE, PURE, PURE, IN_PLACE, IN_PLACE, IMPURE, RANDOM, MODES, CHECKPOINTS, HOOKED)
    for number in range(1 + choose(6)):
        kind = kinds[choose(len(kinds))]
        a, b = (values[choose(len(values))] for _ in range(2))
        name = f"v{number}"
        text += kind[choose(len(kind))].format(n=name, a=a, b=b).split("\n")
        values.append(name)
    result = RESULTS[choose(len(RESULTS))].format(a=values[-1], b=values[choose(len(values))])
    body = "".join(f"        {line}\n" for line in [*text, f"return {result}"])
    layouts = ("contiguous", "transposed", "columns", "expanded")
    head = HEAD.replace("HOOK", HOOKS[choose(len(HOOKS))])
    return Trial(head + body, bool(choose(2)), layouts[choose(len(layouts))], list(OPTIMIZERS)[choose(len(OPTIMIZERS))])


@dataclass
class Seen:
    """What a user can see of the calls of a module: results, gradients, inputs afterwards, state and random numbers."""

    calls: list[dict[str, Any]] = field(default_factory=list)

    def difference(self, other: Seen) -> str:
        """Return where another record differs, empty if nowhere."""
        for number, (mine, others) in enumerate(zip(self.calls, other.calls, strict=True)):
            for what, value in mine.items():
                if difference := _difference(value, others[what]):
                    return f"call {number}, {what}: {difference}"
        return ""


def seen(trial: Trial, model: nn.Module, run: Callable[..., Any], gradients: bool, backend: str = "eager") -> Seen:
    """Call `run` five times with changed inputs and record what can be seen, the state of `model` too; the optimizer's
    step is compiled by `backend`."""
    record, optimizer, step = Seen(), None, None
    if gradients and trial.optimizer:
        optimizer = getattr(torch.optim, trial.optimizer)(model.parameters(), lr=0.01, **OPTIMIZERS[trial.optimizer])
        step = optimizer.step if backend == "eager" else torch.compile(optimizer.step, backend=backend)
    outside = type(model).forward.__globals__
    for call in range(CALLS):
        inputs = trial.inputs(call)
        model.zero_grad(set_to_none=True)
        torch.manual_seed(call)
        with torch.set_grad_enabled(gradients):
            outputs = run(*inputs)
        leaves = [each for each in pytree.tree_leaves(outputs) if isinstance(each, Tensor)]
        tops = [each for each in leaves if each.requires_grad and not each.is_leaf]
        if tops:
            torch.autograd.backward([each.float().square().mean() for each in tops])
        if tops and step is not None:
            step()
        record.calls.append(_copied({
            "parameters": list(model.parameters()), "optimizer": optimizer.state_dict()["state"] if optimizer else {},
            "outputs": outputs, "gradients": [each.grad for each in model.parameters()], "inputs": inputs,
            "buffers": dict(model.named_buffers()), "random state": torch.get_rng_state(),
            "attributes": {name: getattr(model, name) for name in ATTRIBUTES},
            "requires_grad": [each.requires_grad for each in leaves] if gradients else [],
            "outside": outside["OUTSIDE"],
        }))  # fmt: skip
    return record


def difference(trial: Trial, runner: Runner, gradients: bool) -> str:
    """Compare a program run by a runner with the program as written; empty if nothing differs.

    Raises:
        ValueError: the runner refuses it.
    """
    model = trial.model()
    want = seen(trial, model, model, gradients)
    again, fresh = trial.model(), _copied(_state(trial.model()))
    with torch.set_grad_enabled(gradients):
        try:
            run = runner(again, trial.inputs(0))
        finally:
            changed = _difference(_copied(_state(again)), fresh)
    if changed:
        return f"the model after it was placed: {changed}"
    return seen(trial, again, run, gradients, "gst" if runner is RUNNERS["backend"] else "eager").difference(want)


def is_valid(trial: Trial, gradients: bool) -> bool:
    """True if PyTorch runs the program; some write into what a gradient needs, or view what has no view."""
    model = trial.model()
    try:
        seen(trial, model, model, gradients)
    except RuntimeError:
        return False
    return True


def _placed(model: nn.Module, inputs: Sequence[Any]) -> Callable[..., Any]:
    return gst.place(model, inputs, budget=0, seconds=1, settings=UNCOMPILED, progress=no_progress).module()


def _placed_step(model: nn.Module, inputs: Sequence[Any]) -> Callable[..., Any]:
    return gst.placed(seconds=1, settings=UNCOMPILED)(lambda x, k, mask: model(x, k, mask))


def _planned(model: nn.Module, inputs: Sequence[Any]) -> Callable[..., Any]:
    devices = "cpu:0,cpu:1"
    placed = gst.place(model, inputs, devices, 0, seconds=None, settings=UNCOMPILED, progress=no_progress)
    return placed.module("plan")


def _compiled(model: nn.Module, inputs: Sequence[Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(model, backend="gst", options={"seconds": 1})


UNCOMPILED = Settings(compile_step=False, patience_s=0.0)
RUNNERS: dict[str, Runner] = {
    "place": _placed, "placed": _placed_step, "plan": _planned, "backend": _compiled,
}  # fmt: skip
"""By `gst.place(...).module()`, `@gst.placed`, `.module("plan")` and `torch.compile(backend="gst")`, with gradients."""


def _state(model: nn.Module) -> dict[str, Any]:
    return {
        "state": model.state_dict(), "gradients": [each.grad for each in model.parameters()],
        "attributes": {name: getattr(model, name) for name in ATTRIBUTES}, "random state": torch.get_rng_state(),
    }  # fmt: skip


def _copied(value: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda each: each.detach().clone(), copy.copy(value))


def _difference(got: Any, want: Any) -> str:
    got_leaves, got_form = pytree.tree_flatten(got)
    want_leaves, want_form = pytree.tree_flatten(want)
    if got_form != want_form:
        return f"structure {got_form}, want {want_form}"
    for a, b in zip(got_leaves, want_leaves, strict=True):
        if type(a) is not type(b):
            return f"a {type(a).__name__}, want a {type(b).__name__}"
        if not isinstance(a, Tensor):
            if a != b:
                return f"{a}, want {b}"
        elif (a.shape, a.dtype) != (b.shape, b.dtype):
            return f"{a.dtype} {tuple(a.shape)}, want {b.dtype} {tuple(b.shape)}"
        elif not torch.allclose(a.double(), b.double(), rtol=2e-3, atol=2e-3, equal_nan=True):
            return f"off by {float((a.double() - b.double()).abs().max()):.3g}"
    return ""
