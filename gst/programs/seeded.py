"""Random numbers that depend on a seed among the inputs alone, in whatever order operations run.

Within `drawn_from(seed)` each random operation of PyTorch becomes a pure one, `gst::uniform(seed, number, size)` with
the number of the draw. Numbers are of Philox4x64-10 (Salmon et al., SC 2011), with seed and number as its key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

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
