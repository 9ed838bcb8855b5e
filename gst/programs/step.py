"""Training and inference steps as pure functions of tensors: their random numbers, optimizers, weights and data.

Random numbers depend on a seed among the inputs alone, in whatever order operations run. Within `drawn_from(seed)` each
random operation of PyTorch becomes a pure one, `gst::uniform(seed, number, size)` with the number of the draw. Numbers
are of Philox4x64-10 (Salmon et al., SC 2011), with seed and number as its key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from gst.programs.optimizers import State, named_optimizer, pure_update, same_optimizer

DIGITS = {torch.float16: 11, torch.bfloat16: 8}  # of the significand: with more, numbers would be rounded up to 1
_is_seeded: ContextVar[bool] = ContextVar("_is_seeded", default=True)
aten = torch.ops.aten


def drawn_from(seed: Tensor) -> AbstractContextManager[Any]:
    """Let dropout and other random operations draw from `seed`: equal seeds give equal numbers, other seeds and each
    further draw give others.

    It replaces `dropout`, `bernoulli`, `rand`, `randn`, `uniform_`, `normal_` and compositions of them.

    Args:
        seed: a whole number, `torch.tensor(0)`: an input of the step.

    Raises:
        ValueError: the seed is no single whole number.

    Examples:
        >>> def dropped(seed):
        ...     with drawn_from(torch.tensor(seed)):
        ...         return torch.nn.functional.dropout(torch.ones(1000), 0.25)
        >>> bool((dropped(0) == dropped(0)).all()), bool((dropped(0) == dropped(1)).all())
        (True, False)
    """
    if seed.numel() != 1 or seed.is_floating_point():
        raise ValueError(f"the seed is {seed.dtype} {tuple(seed.shape)}; want one whole number, torch.tensor(0)")
    return _Draws(seed) if _is_seeded.get() else nullcontext()


@contextmanager
def unseeded() -> Iterator[None]:
    """Disable `drawn_from`: a step takes as long as one that draws from the generator of the process."""
    token = _is_seeded.set(False)
    try:
        yield
    finally:
        _is_seeded.reset(token)


class _Draws(TorchDispatchMode):
    """Replaces random operations, which it numbers 0, 1, ... in the order of the calls.

    The number is the seed of the process's generator, whose state is put back at the end. So code that is run again
    with the state of before, such as `torch.utils.checkpoint` in a backward pass, draws the same numbers again.
    """

    def __init__(self, seed: Tensor) -> None:
        super().__init__()
        self.seed = seed

    def __enter__(self) -> Any:
        self._state = torch.get_rng_state()
        torch.default_generator.manual_seed(0)
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        torch.set_rng_state(self._state)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in DRAWS and kwargs.get("generator") is None:
            return DRAWS[func](self, *args, **{key: value for key, value in kwargs.items() if key != "generator"})
        if torch.Tag.nondeterministic_seeded not in getattr(func, "tags", ()):
            return func(*args, **kwargs)
        number = torch.initial_seed()
        torch.set_rng_state(self._state)
        try:
            return func(*args, **kwargs)
        finally:
            self._state = torch.get_rng_state()
            torch.default_generator.manual_seed(number)

    def draw(self, kind: str, size: Sequence[int], dtype: torch.dtype | None) -> Tensor:
        """Return uniform or normal numbers of the seed and the number of this draw."""
        if dtype is not None and dtype.is_complex:
            raise ValueError(f"random numbers of a seed are real; {dtype} is not drawn")
        seed: Tensor = self.seed
        if torch._is_functional_tensor(seed):  # operations in place are being taken away above this mode
            torch._sync(seed)
            seed = torch._from_functional_tensor(seed)
        number = torch.initial_seed()
        torch.default_generator.manual_seed(number + 1)
        result: Tensor = getattr(torch.ops.gst, kind).default(
            seed, number, list(size), dtype or torch.get_default_dtype()
        )
        return result


# Operations of PyTorch and what each is made of ----------------------------------------------------------------------


def _like(kind: str, draws: _Draws, value: Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return draws.draw(kind, value.shape, dtype or value.dtype)


def _of_size(kind: str, draws: _Draws, size: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return draws.draw(kind, size, dtype)


def _bernoulli(draws: _Draws, value: Tensor, probability: Any = None) -> Tensor:
    """Return ones with a probability, that of a value if None, and zeros otherwise, of the dtype of the value."""
    probability = value if probability is None else probability
    below = aten.lt.Tensor if isinstance(probability, Tensor) else aten.lt.Scalar
    mask = below(draws.draw("uniform", value.shape, torch.float32), probability)
    return aten._to_copy.default(mask, dtype=value.dtype)


def _bernoulli_in_place(draws: _Draws, value: Tensor, probability: Any = 0.5) -> Tensor:
    return _in_place(_bernoulli, draws, value, probability)


def _uniform(draws: _Draws, value: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    return low + (high - low) * draws.draw("uniform", value.shape, value.dtype)


def _normal(draws: _Draws, value: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    return mean + std * draws.draw("normal", value.shape, value.dtype)


def _in_place(draw: Callable[..., Tensor], draws: _Draws, value: Tensor, *arguments: Any) -> Tensor:
    return aten.copy_.default(value, draw(draws, value, *arguments))


def _dropout(draws: _Draws, value: Tensor, probability: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """Return the result of `native_dropout`: the scaled values that are kept, and the mask."""
    if train is False:
        return value.clone(), torch.ones_like(value, dtype=torch.bool)
    mask = aten.lt.Scalar(draws.draw("uniform", value.shape, torch.float32), 1 - probability)
    return value * mask * (0.0 if probability == 1 else 1 / (1 - probability)), mask


DRAWS: dict[Any, Callable[..., Any]] = {
    aten.bernoulli.default: _bernoulli,
    aten.bernoulli.p: _bernoulli,
    aten.bernoulli.Tensor: _bernoulli,
    aten.bernoulli_.float: _bernoulli_in_place,
    aten.bernoulli_.Tensor: _bernoulli_in_place,
    aten.native_dropout.default: _dropout,
    aten.rand.default: partial(_of_size, "uniform"),
    aten.rand_like.default: partial(_like, "uniform"),
    aten.randn.default: partial(_of_size, "normal"),
    aten.randn_like.default: partial(_like, "normal"),
    aten.uniform.default: _uniform,
    aten.uniform_.default: partial(_in_place, _uniform),
    aten.normal_functional.default: _normal,
    aten.normal_.default: partial(_in_place, _normal),
}


# The operators --------------------------------------------------------------------------------------------------------

_LIBRARY = torch.library.Library("gst", "FRAGMENT")


def _numbers(kind: str, seed: Tensor, number: int, size: Sequence[int], dtype: torch.dtype) -> Tensor:
    key = np.array([int(seed) & 0xFFFF_FFFF_FFFF_FFFF, number], np.uint64)
    generator = np.random.Generator(np.random.Philox(key=key))
    wide: Any = np.float64 if dtype == torch.float64 else np.float32
    if kind == "normal":
        values = generator.standard_normal(tuple(size), wide)
    else:
        values = generator.random(tuple(size), wide)
        if dtype in DIGITS:
            values = np.floor(values * 2.0 ** DIGITS[dtype]) / wide(2.0 ** DIGITS[dtype])
    return torch.from_numpy(np.asarray(values, wide)).to(seed.device, dtype)


def _shape(seed: Tensor, number: int, size: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty(size, dtype=dtype, device=seed.device)


for _kind in ("uniform", "normal"):
    _LIBRARY.define(
        f"{_kind}(Tensor seed, int number, int[] size, ScalarType dtype) -> Tensor",
        tags=(torch.Tag.cudagraph_unsafe, torch.Tag.pt2_compliant_tag),  # the host reads the seed
    )
    _LIBRARY.impl(_kind, partial(_numbers, _kind), "CompositeExplicitAutograd")
    torch.library.register_fake(f"gst::{_kind}", _shape, lib=_LIBRARY)


SEED = "random/seed"  # entry of a state


@dataclass(frozen=True, eq=False)
class Step:
    """One step of training, or of inference, as a pure function, with example inputs.

    Args:
        name: unique within a dataset of programs.
        function: leaves its inputs as they are. A step of training is `function(state, *tensors) -> (loss, new_state)`;
            the dictionaries `state` and `new_state` have the same keys in the same order. A step of inference takes and
            returns any structure of tensors.
        inputs: of `function`: tensors in tuples, lists and dictionaries.
        ordinary: returns the ordinary loop of the same training on a device: called with a batch, it renews a copy of
            the model. None if there is none.
    """

    name: str
    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    ordinary: Callable[[torch.device], Callable[..., Tensor]] | None = None


TrainingStep = Step
"""The name of a `Step` that renews parameters."""


class _Loss(nn.Module):
    """A model, its loss and the backward pass as one module, so that `functional_call` reaches the parameters wherever
    they are used: a backward pass may run parts of the model again (`torch.utils.checkpoint`)."""

    def __init__(self, model: nn.Module, loss_of: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model, self.loss_of = model, loss_of

    def forward(self, names: Sequence[str], *tensors: Tensor) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """Return the loss, and its gradients for the parameters of these names; None for one without a use."""
        leaves = [attrgetter(name)(self.model) for name in names]  # before the model may replace some
        loss = self.loss_of(self.model, *tensors)
        return loss.detach(), torch.autograd.grad(loss, leaves, allow_unused=True)


def training_step(
    name: str,
    model: nn.Module,
    loss_of: Callable[..., Tensor],
    tensors: Sequence[Tensor],
    optimizer: str | torch.optim.Optimizer = "sgd",
    rate: float | Tensor = 0.1,
    seed: int | None = None,
    max_norm: float | None = None,
) -> TrainingStep:
    """Return the step `(state, *tensors) -> (loss, new_state)`: forward, backward and the optimizer's update.

    The state holds the parameters and buffers of the model by name and, for each trained parameter, the optimizer's
    memory (`weight/momentum`). A frozen parameter (`requires_grad` is False) stays.

    Args:
        name: of the step.
        model: called with the parameters and buffers of the state; its own are read once and stay as they are.
        loss_of: `loss_of(model, *tensors)`, a scalar.
        tensors: one batch of data.
        optimizer: SGD, Adam or AdamW of `torch.optim`, new or after steps; its learning rates are in the state, its
            other options stay, see `gst.programs.optimizers.pure_update`. Or a name of `OPTIMIZERS` there.
        rate: learning rate of a named optimizer; a tensor is part of the state, as `rate`.
        seed: for random operations of the first step, see `drawn_from`; the state holds it as `random/seed`, and each
            step adds 1. None = there are none.
        max_norm: of all gradients that the optimizer takes, together, as `torch.nn.utils.clip_grad_norm_`.

    Raises:
        ValueError: there is no such optimizer, it has other parameters than the model, or there is nothing to train.

    Examples:
        >>> loss = lambda model, x, y: (model(x) - y).square().mean()
        >>> step = training_step("line", nn.Linear(2, 1), loss, (torch.ones(4, 2), torch.ones(4, 1)), rate=0.1)
        >>> loss, state = step.function(*step.inputs)
        >>> sorted(state)
        ['bias', 'weight']
    """
    trained = {key: value for key, value in model.named_parameters() if value.requires_grad}
    if not trained:
        raise ValueError(f"step {name!r} trains nothing: no parameter of the model requires a gradient")
    has_rates = isinstance(rate, Tensor) or not isinstance(optimizer, str)
    if isinstance(optimizer, str):
        optimizer = named_optimizer(optimizer, trained.values(), rate)
    memory, update = pure_update(optimizer, trained, has_rates)
    optimizer._opt_called = True  # type: ignore[attr-defined]  # else a schedule warns that it takes no steps
    optimized = {id(value) for group in optimizer.param_groups for value in group["params"]}
    trained = {key: value for key, value in trained.items() if id(value) in optimized}
    parameters = {key: value.detach() for key, value in trained.items()}
    frozen = {key: value.detach() for key, value in model.named_parameters() if key not in trained}
    buffers = {key: value.detach() for key, value in model.named_buffers()}
    seeds = {} if seed is None else {SEED: torch.tensor(seed)}
    if taken := (parameters | frozen | buffers).keys() & (memory | seeds).keys():
        raise ValueError(f"step {name!r}: the optimizer needs the name {min(taken)!r}; rename that tensor of the model")
    loss_module = _Loss(model, loss_of)

    def step(state: State, *tensors: Tensor) -> tuple[Tensor, State]:
        leaves = {key: state[key].detach().requires_grad_() for key in parameters}
        renewed = {key: state[key].clone() for key in buffers}  # a forward pass in training mode writes into them
        constant = {key: state[key] for key in frozen}
        named = {f"model.{key}": value for key, value in (leaves | constant | renewed).items()}
        with drawn_from(state[SEED]) if seeds else nullcontext():
            loss, values = functional_call(loss_module, named, (list(leaves), *tensors))
        gradients = {key: value for key, value in zip(leaves, values, strict=True) if value is not None}
        if max_norm is not None:
            norm = nn.utils.get_total_norm(list(gradients.values()), foreach=False)
            gradients = {key: value * (max_norm / (norm + 1e-6)).clamp(max=1.0) for key, value in gradients.items()}
        renewed = {key: named[f"model.{key}"] for key in renewed}  # those that it replaced, too
        new = state | update(state, gradients) | renewed | {key: state[key] + 1 for key in seeds}
        return loss, new

    def ordinary(device: torch.device) -> Callable[..., Tensor]:
        own = deepcopy(model).to(device)
        values = dict(own.named_parameters())
        renews = same_optimizer(optimizer, trained, values)

        def loop(*tensors: Tensor) -> Tensor:
            renews.zero_grad()
            loss = loss_of(own, *tensors)
            loss.backward()
            if max_norm is not None:
                nn.utils.clip_grad_norm_([values[key] for key in trained], max_norm)
            renews.step()
            return loss.detach()

        return loop

    return TrainingStep(name, step, (parameters | frozen | buffers | memory | seeds, *tensors), ordinary)


def inference_step(model: nn.Module, inputs: Sequence[Any], name: str | None = None) -> Step:
    """Return the step `(parameters and buffers, *inputs) -> output of the model`, without gradients.

    Args:
        model: in the mode in which it is to be captured; `model.eval()` switches dropout off.
        inputs: of the model.
        name: of the step; the name of the model's class if not given.

    Examples:
        >>> step = inference_step(nn.ReLU(), (torch.tensor([-1.0, 2.0]),))
        >>> step.name, step.function(*step.inputs)
        ('relu', tensor([0., 2.]))
    """
    named = dict(model.named_parameters()) | dict(model.named_buffers())
    state = {key: value.detach() for key, value in named.items()}

    def step(state: State, *inputs: Any) -> Any:
        now = dict(state)
        with torch.no_grad():
            outputs = functional_call(model, now, inputs)
        if replaced := [key for key in state if now[key] is not state[key]]:
            raise ValueError(f"the model replaces its {replaced[0]} when it runs")
        return outputs

    return Step(name or type(model).__name__.lower(), step, (state, *inputs))


def drawn(build: Callable[[], nn.Module], generator: torch.Generator) -> nn.Module:
    """Return a model with weights from `generator`, uniform within +-1/sqrt(fan in), and biases 0."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model = build()
        for name, value in model.named_parameters():
            if value.ndim > 1:
                bound = value[0].numel() ** -0.5
                value.uniform_(-bound, bound, generator=generator)
            elif not name.endswith("weight"):
                value.zero_()
    return model


def tokens(
    steps: int, batch: int, vocabulary: int, generator: torch.Generator
) -> tuple[Int64[Tensor, "steps batch"], Int64[Tensor, "steps batch"]]:
    """Return random tokens, and random targets for them: numbers 0 .. vocabulary - 1."""
    first, second = (torch.randint(vocabulary, (steps, batch), generator=generator) for _ in range(2))
    return first, second


def divided(width: int, parts: int, what: str) -> int:
    """Return `width / parts`; raise ValueError if there is a remainder."""
    if width % parts:
        raise ValueError(f"width {width} cannot be divided among {parts} {what}; take a multiple of {parts}")
    return width // parts
