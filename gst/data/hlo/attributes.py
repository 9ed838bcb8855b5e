"""Attributes of an instruction in HLO text that the features tell of."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_SLICE = re.compile(r"\[(\d+):(\d+)(?::(\d+))?\]")
_DIM_LABELS = re.compile(r"([bf?\d]+)_([io?\d]+)->([bf?\d]+)")
_WINDOW = {
    "size": "size", "stride": "stride", "lhs_dilate": "base_dilation", "rhs_dilate": "window_dilation",
    "rhs_reversal": "window_reversal",
}  # fmt: skip


def _numbers(tokens: list[str]) -> list[int]:
    return [int(number) for number in "".join(tokens).split(",") if number]


def _dimensions(instruction: Any, tokens: list[str]) -> None:
    instruction.dimensions.extend(_numbers(tokens))


def _dynamic_slice_sizes(instruction: Any, tokens: list[str]) -> None:
    instruction.dynamic_slice_sizes.extend(_numbers(tokens))


def _feature_group_count(instruction: Any, tokens: list[str]) -> None:
    instruction.feature_group_count = int("".join(tokens))


def _batch_group_count(instruction: Any, tokens: list[str]) -> None:
    instruction.batch_group_count = int("".join(tokens))


def _is_stable(instruction: Any, tokens: list[str]) -> None:
    instruction.is_stable = tokens == ["true"]


def _slice(instruction: Any, tokens: list[str]) -> None:
    """`[0:10:2],[3:4]`: start, limit and stride, which is 1 if it is not given."""
    text = "".join(tokens)
    for bounds in text.split(",") if text else []:
        if not (match := _SLICE.fullmatch(bounds)):
            raise ValueError(bounds)
        start, limit, stride = match.groups("1")
        instruction.slice_dimensions.add(start=int(start), limit=int(limit), stride=int(stride))


def _padding(instruction: Any, tokens: list[str]) -> None:
    """`1_2x0_3_1`: low and high edge, and what is put between elements, which no feature tells of."""
    text = "".join(tokens)
    for edges in text.split("x") if text else []:
        low, high, *_ = map(int, edges.split("_"))
        instruction.padding_config.dimensions.add(edge_padding_low=low, edge_padding_high=high)


def _window(instruction: Any, tokens: list[str]) -> None:
    """`size = 3 x 3 stride = 2 x 2 pad = 0_1 x 0_1`: what is not given is a stride or dilation of 1, a padding of 0."""
    given = {name: value.split("x") for name, value in zip(tokens[::3], tokens[2::3], strict=True)}
    window = instruction.window.dimensions
    for size in given.get("size", []):
        window.add(size=int(size), stride=1, window_dilation=1, base_dilation=1)
    for name, values in given.items():
        for dimension, value in zip(window, values, strict=True):
            if name == "pad":
                dimension.padding_low, dimension.padding_high = map(int, value.split("_"))
            else:
                field = _WINDOW[name]
                setattr(dimension, field, value != "0" if field == "window_reversal" else int(value))


def _dim_labels(instruction: Any, tokens: list[str]) -> None:
    """`b01f_01io->b01f`: at which place input, kernel and output have batch, feature and each spatial dimension."""
    match = _DIM_LABELS.fullmatch("".join(tokens))
    if not match:
        raise ValueError("".join(tokens))
    source, kernel, output = match.groups()
    numbers = instruction.convolution_dimension_numbers
    numbers.input_batch_dimension, numbers.input_feature_dimension = source.index("b"), source.index("f")
    numbers.kernel_input_feature_dimension = kernel.index("i")
    numbers.kernel_output_feature_dimension = kernel.index("o")
    numbers.output_batch_dimension, numbers.output_feature_dimension = output.index("b"), output.index("f")
    for spatial in range(sum(label.isdigit() for label in source)):
        numbers.input_spatial_dimensions.append(source.index(str(spatial)))
        numbers.kernel_spatial_dimensions.append(kernel.index(str(spatial)))


ATTRIBUTES: dict[str, Callable[[Any, list[str]], None]] = {
    "dimensions": _dimensions,
    "iota_dimension": _dimensions,
    "inferred_dimension": _dimensions,
    "dynamic_slice_sizes": _dynamic_slice_sizes,
    "feature_group_count": _feature_group_count,
    "batch_group_count": _batch_group_count,
    "is_stable": _is_stable,
    "slice": _slice,
    "padding": _padding,
    "window": _window,
    "dim_labels": _dim_labels,
}
"""Writes the value of an attribute, given as its tokens without the outer brackets, into an `HloInstruction`.

Raises:
    ValueError, KeyError: it is not written as XLA prints it.
"""

CALLEES = frozenset({
    "to_apply", "calls", "called_computations", "branch_computations", "true_computation", "false_computation",
    "condition", "body", "select", "scatter",
})  # fmt: skip
"""Attributes that name the computations an instruction calls."""
