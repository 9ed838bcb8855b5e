"""Numbers of the kinds of instruction, as the TpuGraphs files have them."""

from __future__ import annotations

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
"""The name of each number (`LEARNED_HLO_OPCODE_LIST` in hlo_opcode.h of google-research-datasets/tpu_graphs): 0 stands
for every kind that XLA was given later (`erf`, `topk`, ...), and will be given."""

_NUMBERS = {name: number for number, name in enumerate(OPCODE_NAMES)}
CONFIGURABLE = frozenset(_NUMBERS[name] for name in ("convolution", "dot", "reshape"))
"""What TpuGraphs configures the layouts of: in its files at hand (alexnet, unet_3d) every one of them, nothing else."""


def opcode_number(name: str) -> int:
    """The number of an opcode, 0 for one that TpuGraphs does not know."""
    return _NUMBERS.get(name, 0)
