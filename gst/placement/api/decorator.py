"""`@gst.placed`: a training step, or another pure function of tensors, that is placed with its first call."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, overload

from gst.placement.api.placed import Placed, place
from gst.placement.api.placed_module import PlacedModule
from gst.placement.planning import BUDGET, Settings
from gst.programs import Step


class PlacedFunction:
    """A function whose first call places it, see `placed`; later calls run whichever way was fastest.

    Args:
        function: of tensors in tuples, lists and dictionaries.
        options: keyword arguments of `gst.place`.

    Attributes:
        placed: what the first call found, with `explain()` and `save(path)`; None before it.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self.placed: Placed | None = None
        self._function, self._options = function, options
        self._module: PlacedModule | None = None
        self._turn = threading.Lock()

    def __call__(self, *inputs: Any) -> Any:
        with self._turn:
            if self._module is None:
                step = Step(getattr(self._function, "__name__", "step"), self._function, inputs)
                self.placed = place(step, **self._options)
                self._module = self.placed.module()
        return self._module(*inputs)

    def close(self) -> None:
        """End the threads of its plan, if it runs by one; the next call starts others."""
        if self._module is not None:
            self._module.close()


@overload
def placed(function: Callable[..., Any]) -> PlacedFunction: ...


@overload
def placed(
    *,
    devices: Sequence[str] | str | None = None,
    budget: int = BUDGET,
    settings: Settings | None = None,
    seconds: float | None = 60.0,
) -> Callable[[Callable[..., Any]], PlacedFunction]: ...


def placed(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Decorator of a step of training or of inference: its first call places it with the inputs of that call.

        @gst.placed
        def step(state, x, y):            # parameters and what the optimizer remembers, and a batch
            ...
            return loss, new_state

        for x, y in batches:
            loss, state = step(state, x, y)

    Inputs of other shapes or dtypes run the function as written, with one warning.

    Args:
        function: a pure function of tensors: it returns what is new and changes nothing, see `gst.programs.Step`.
            Random numbers need a seed among the inputs, see `gst.programs.drawn_from`.
        options: `devices`, `budget`, `settings` and `seconds` of `gst.place`.

    Raises:
        ValueError: with the first call, as `gst.place`.

    Examples:
        >>> @placed(devices="cpu:0-1", seconds=30)
        ... def step(state, x):
        ...     loss = (state["weight"] * x).square().mean()
        ...     return loss, {"weight": state["weight"] - 0.1 * (2 * state["weight"] * x.square()).mean()}
        >>> step.__name__, step.placed is None  # nothing is placed before the first call
        ('step', True)
    """
    if function is None:
        return functools.partial(PlacedFunction, options=options)
    return PlacedFunction(function, options)
