"""Arguments of a placed model's calls, by position or by keyword, as the model takes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn


class Arguments:
    """Order of the inputs of a call: first those by position, then those that must be given by keyword.

    Arguments that have their default values are no inputs.

    Args:
        function: a model, or another function of the user.
        num_positions: number of inputs by position.
        names: of the inputs by keyword.

    Examples:
        >>> def scaled(x, mask=None, *, scale=1): return x * scale
        >>> arguments, inputs = Arguments.of_call(scaled, (), {"x": 2, "scale": 3})
        >>> inputs, arguments.inputs((5, None), {"scale": 3}), arguments.by_position()(5, 3)
        ((2, 3), (5, 3), 15)
    """

    def __init__(self, function: Callable[..., Any], num_positions: int, names: Sequence[str] = ()) -> None:
        self.function, self.names, self._num_positions = function, tuple(names), num_positions
        try:
            self._signature = inspect.signature(function.forward if isinstance(function, nn.Module) else function)
        except (TypeError, ValueError):  # of a function in C
            self._signature = inspect.signature(lambda *inputs, **keywords: None)

    def __reduce__(self) -> tuple[Any, ...]:
        return Arguments, (self.function, self._num_positions, self.names)

    @staticmethod
    def of_call(
        function: Callable[..., Any], positions: Sequence[Any], keywords: Mapping[str, Any]
    ) -> tuple[Arguments, tuple[Any, ...]]:
        """Return the arguments of calls like this one, and its inputs.

        Raises:
            ValueError: the function does not take them.
        """
        try:
            values, rest = Arguments(function, 0)._split(positions, keywords)
        except TypeError as error:
            name = getattr(function, "__name__", type(function).__name__)
            raise ValueError(f"{name} does not take these example inputs: {error}") from error
        return Arguments(function, len(values), tuple(rest)), (*values, *rest.values())

    @staticmethod
    def of_examples(model: nn.Module, examples: Any) -> tuple[Arguments, tuple[Any, ...]]:
        """Return the arguments, and the inputs, of example inputs: a mapping by names, a sequence by position, or a
        single input.

        Raises:
            ValueError: the model does not take them.
        """
        if isinstance(examples, Mapping):
            takes = Arguments(model, 0)._takes(examples)
            return Arguments.of_call(model, () if takes else (examples,), examples if takes else {})
        return Arguments.of_call(model, examples if isinstance(examples, list | tuple) else (examples,), {})

    def inputs(self, positions: tuple[Any, ...], keywords: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Return the inputs of a call; None if it has other arguments than the example."""
        if not keywords and not self.names and len(positions) == self._num_positions:
            return positions
        try:
            values, rest = self._split(positions, keywords)
        except TypeError:
            return None
        is_alike = len(values) == self._num_positions and rest.keys() == set(self.names)
        return (*values, *(rest[name] for name in self.names)) if is_alike else None

    def by_position(self) -> Callable[..., Any]:
        """Return the function of inputs by position: itself if it takes all of them so."""
        if not self.names:
            return self.function
        if isinstance(self.function, nn.Module):
            return ByPosition(self.function, self.names)
        return lambda *inputs: called(self.function, self.names, inputs)

    def _takes(self, keywords: Mapping[str, Any]) -> bool:
        try:
            self._signature.bind(**keywords)
        except TypeError:
            return False
        return True

    def _split(self, positions: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments by position and by keyword, without defaults; TypeError if the function takes others."""
        given = self._signature.bind(*positions, **keywords).arguments
        values: list[Any] = []
        rest: dict[str, Any] = {}
        is_gap, kinds = False, {name: each.kind for name, each in self._signature.parameters.items()}
        has_more = any(kinds[name] == inspect.Parameter.VAR_POSITIONAL for name in given)
        for name, parameter in self._signature.parameters.items():
            value = given.get(name, parameter.default)
            if parameter.kind == parameter.VAR_POSITIONAL:
                values += given.get(name, ())
            elif parameter.kind == parameter.VAR_KEYWORD:
                rest |= given.get(name, {})
            elif value is parameter.default and parameter.kind != parameter.POSITIONAL_ONLY and not has_more:
                is_gap = True
            elif parameter.kind == parameter.KEYWORD_ONLY or is_gap:
                rest[name] = value
            else:
                values.append(value)
        return tuple(values), rest


class ByPosition(nn.Module):
    """A model whose last inputs are its arguments of these names."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names, self.training = model, tuple(names), model.training

    def forward(self, *inputs: Any) -> Any:
        return called(self.model, self.names, inputs)


def called(function: Callable[..., Any], names: Sequence[str], inputs: Sequence[Any]) -> Any:
    """Call a function whose last inputs are its arguments of these names."""
    split = len(inputs) - len(names)
    return function(*inputs[:split], **dict(zip(names, inputs[split:], strict=True)))
