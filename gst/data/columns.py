"""The 140 node features of TpuGraphs: names of the columns and numbers of the opcodes."""

from __future__ import annotations

ELEMENT_TYPES = {
    "invalid_type": 0, "pred": 1, "s8": 2, "s16": 3, "s32": 4, "s64": 5, "u8": 6, "u16": 7, "u32": 8, "u64": 9,
    "f16": 10, "f32": 11, "f64": 12, "bf16": 16, "c64": 15, "c128": 18, "tuple": 13, "opaque_type": 14, "token": 17,
}  # fmt: skip
"""Types of elements that have a column, in the order of the columns, with their number in `xla_data.proto`. An array of
another type (f8e4m3fn, s4, ...) has a zero in all of them."""

WINDOW_NUMBERS = ("size", "stride", "padding_low", "padding_high", "window_dilation", "base_dilation")


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
    *(name for part in WINDOW_NUMBERS for name in _totalled(f"window_{part}", 6)),
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
"""Names of the columns, as in the README of google-research-datasets/tpu_graphs. A list of numbers fills columns with
its first few numbers, padded with 0, and some lists with their sum and product (1 for an empty list). Column 1 is 0."""

_IN_ORDER = """
    unknown abs add add-dependency after-all all-reduce all-to-all atan2 batch-norm-grad batch-norm-inference
    batch-norm-training bitcast bitcast-convert broadcast call ceil cholesky clamp collective-permute
    count-leading-zeros compare complex concatenate conditional constant convert convolution copy copy-done copy-start
    cosine custom-call divide domain dot dynamic-slice dynamic-update-slice exponential exponential-minus-one fft floor
    fusion gather get-dimension-size set-dimension-size get-tuple-element imag infeed iota is-finite log log-plus-one
    and not or xor map maximum minimum multiply negate outfeed pad parameter partition-id popcnt power real recv
    recv-done reduce reduce-precision reduce-window remainder replica-id reshape reverse rng rng-get-and-update-state
    rng-bit-generator round-nearest-afz rsqrt scatter select select-and-scatter send send-done shift-left
    shift-right-arithmetic shift-right-logical sign sine slice sort sqrt subtract tanh trace transpose triangular-solve
    tuple tuple-select while cbrt all-gather collective-permute-start collective-permute-done logistic dynamic-reshape
    all-reduce-start all-reduce-done reduce-scatter all-gather-start all-gather-done opt-barrier async-start
    async-update async-done round-nearest-even stochastic-convert tan
"""
OPCODE_NAMES = tuple(_IN_ORDER.split())
"""Name of each opcode number (`LEARNED_HLO_OPCODE_LIST` in hlo_opcode.h of google-research-datasets/tpu_graphs); 0
stands for every opcode that is not in the list (`erf`, `topk`, ...)."""

_NUMBERS = {name: number for number, name in enumerate(OPCODE_NAMES)}
CONFIGURABLE = frozenset(_NUMBERS[name] for name in ("convolution", "dot", "reshape"))
"""Opcodes whose layouts TpuGraphs configures: in alexnet and unet_3d every instruction of these, and no other."""


def opcode_number(name: str) -> int:
    """Return the number of an opcode in TpuGraphs, 0 for one that it does not list.

    Examples:
        >>> opcode_number("dot"), opcode_number("topk")
        (34, 0)
    """
    return _NUMBERS.get(name, 0)
