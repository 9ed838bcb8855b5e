"""The 140 numbers that TpuGraphs (Phothilimthana et al. 2023) knows of an instruction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

LARGEST_RANK = 64  # far above any array that was ever compiled, and what keeps sums and products cheap
ELEMENT_TYPES = {
    "invalid_type": 0, "pred": 1, "s8": 2, "s16": 3, "s32": 4, "s64": 5, "u8": 6, "u16": 7, "u32": 8, "u64": 9,
    "f16": 10, "f32": 11, "f64": 12, "bf16": 16, "c64": 15, "c128": 18, "tuple": 13, "opaque_type": 14, "token": 17,
}  # fmt: skip
"""Types of elements that have a column, in the order of the columns, with their number in `xla_data.proto`. An array of
another type (f8e4m3fn, s4, ...) has a zero in all of them."""

_WINDOW = ("size", "stride", "padding_low", "padding_high", "window_dilation", "base_dilation")


def _named(name: str, length: int, *totals: str) -> list[str]:
    return [f"{name}_{end}" for end in (*range(length), *totals)]


def _totalled(name: str, length: int) -> list[str]:
    return _named(name, length, "sum", "product")


NODE_FEATURES = (
    "is_root",
    "element_size_in_bits",
    *(f"shape_element_type_is_{name}" for name in ELEMENT_TYPES),
    *_totalled("shape_dimensions", 6),
    "shape_tuple_shapes_size",
    "parameter_number",
    *_named("dimensions", 6),
    *(name for part in _WINDOW for name in _totalled(f"window_{part}", 6)),
    *_named("window_window_reversal", 6, "true_count", "false_count"),
    *(f"convolution_dim_numbers_input_{name}_dim" for name in ("batch", "feature")),
    *_named("convolution_dim_numbers_input_spatial_dims", 4),
    *(f"convolution_dim_numbers_kernel_{name}_feature_dim" for name in ("input", "output")),
    *_named("convolution_dim_numbers_kernel_spatial_dims", 4),
    *(f"convolution_dim_numbers_output_{name}_dim" for name in ("batch", "feature")),
    "feature_group_count",
    "batch_group_count",
    *(name for part in ("start", "stride", "limit") for name in _totalled(f"slice_dims_{part}", 2)),
    *_totalled("dynamic_slice_sizes", 2),
    *(name for end in ("low", "high") for name in _totalled(f"padding_config_edge_padding_{end}", 2)),
    "is_stable",
    *_named("layout_minor_to_major", 6),
)
"""The columns, named as in the README of google-research-datasets/tpu_graphs. A list of numbers has its first few,
padded with 0, some also the sum and the product of all: the product of none is 1. Column 1 is always 0."""


def node_features(instruction: Any, is_root: bool) -> list[int]:
    """The columns `NODE_FEATURES` of one `HloInstruction`, as the published extraction of TpuGraphs has them
    (`FeaturizeHloInstruction` in featurizers.h).

    Raises:
        ValueError: a list is longer than any array has dimensions, a size is negative, or a product exceeds 64 bits.
    """
    shape, slices = instruction.shape, instruction.slice_dimensions
    window, padding = instruction.window.dimensions, instruction.padding_config.dimensions
    convolution = instruction.convolution_dimension_numbers
    if any(size < 0 for size in shape.dimensions):
        raise ValueError(f"its shape has a dimension of size {min(shape.dimensions)}; sizes must be known")
    return [
        int(is_root),
        0,
        *(int(number == shape.element_type) for number in ELEMENT_TYPES.values()),
        *_with_totals(shape.dimensions, 6),
        len(shape.tuple_shapes),
        instruction.parameter_number,
        *_first(instruction.dimensions, 6),
        *(number for part in _WINDOW for number in _with_totals(_each(window, part), 6)),
        *_flags(_each(window, "window_reversal"), 6),
        convolution.input_batch_dimension,
        convolution.input_feature_dimension,
        *_first(convolution.input_spatial_dimensions, 4),
        convolution.kernel_input_feature_dimension,
        convolution.kernel_output_feature_dimension,
        *_first(convolution.kernel_spatial_dimensions, 4),
        convolution.output_batch_dimension,
        convolution.output_feature_dimension,
        instruction.feature_group_count,
        instruction.batch_group_count,
        *(number for part in ("start", "stride", "limit") for number in _with_totals(_each(slices, part), 2)),
        *_with_totals(instruction.dynamic_slice_sizes, 2),
        *(number for end in ("low", "high") for number in _with_totals(_each(padding, f"edge_padding_{end}"), 2)),
        int(instruction.is_stable),
        *_first(shape.layout.minor_to_major, 6),
    ]


def _each(messages: Iterable[Any], field: str) -> list[int]:
    return [getattr(message, field) for message in messages]


def _first(numbers: Sequence[int], length: int) -> list[int]:
    if len(numbers) > LARGEST_RANK:
        raise ValueError(f"it lists {len(numbers)} numbers where an array has at most {LARGEST_RANK} dimensions")
    first = list(numbers[:length])
    return first + [0] * (length - len(first))


def _with_totals(numbers: Sequence[int], length: int) -> list[int]:
    first = _first(numbers, length)
    totals = [sum(numbers), prod(numbers)]
    if max(map(abs, totals)) >= 2**63:
        raise ValueError(f"the sum or the product of its {list(numbers[:6])} exceeds 64 bits; no such array exists")
    return first + totals


def _flags(flags: Sequence[bool | int], length: int) -> list[int]:
    return [*_first([int(flag) for flag in flags], length), sum(flags), len(flags) - sum(flags)]
