"""Floating-point operations of an HLO module, counted as XLA's own cost analysis counts them (`HloCostAnalysis`)."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

TRANSCENDENTAL = frozenset({
    "atan2", "cbrt", "cosine", "erf", "exponential", "exponential-minus-one", "log", "log-plus-one", "logistic",
    "power", "rsqrt", "sine", "sqrt", "tan", "tanh",
})  # fmt: skip
ELEMENTWISE = frozenset({
    "abs", "add", "and", "ceil", "clamp", "clz", "compare", "complex", "convert", "count-leading-zeros", "divide",
    "floor", "imag", "is-finite", "maximum", "minimum", "multiply", "negate", "not", "or", "popcnt", "real",
    "reduce-precision", "remainder", "round-nearest-afz", "round-nearest-even", "select", "shift-left",
    "shift-right-arithmetic", "shift-right-logical", "sign", "stochastic-convert", "subtract", "xor",
})  # fmt: skip


class Counts(NamedTuple):
    """Operations of a program.

    Args:
        flops: floating-point operations, transcendental functions apart; two for a multiplication with its addition.
        transcendentals: results of exp, log, tanh and the like.
    """

    flops: float
    transcendentals: float

    def times(self, count: int) -> Counts:
        """Return the operations of `count` runs."""
        return Counts(self.flops * count, self.transcendentals * count)


def counts_of(module: Any) -> Counts:
    """Count the operations of a module as XLA's cost analysis does.

    The body of a loop counts once, positions of a convolution's window on padding do not count, and a conditional
    counts as its costliest branch. Collectives, sorts, Fourier transforms, decompositions and custom calls count 0.

    Examples:
        >>> from gst.data.hlo.text import parse_module
        >>> lines = ["HloModule m", "ENTRY e {", "x = f32[2,3] parameter(0)", "y = f32[3,4] parameter(1)"]
        >>> lines += ["ROOT z = f32[2,4] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}", "}"]
        >>> counts_of(parse_module("\\n".join(lines)))
        Counts(flops=48.0, transcendentals=0.0)
    """
    done: dict[int, Counts] = {}
    for computation in module.computations:  # callees stand before their callers
        shapes = {each.id: each.shape for each in computation.instructions}
        parts = [_counts(each, shapes, done) for each in computation.instructions]
        done[computation.id] = Counts(
            float(sum(each.flops for each in parts)), float(sum(each.transcendentals for each in parts))
        )
    return done.get(entry_of(module).id, Counts(0.0, 0.0))


def entry_of(module: Any) -> Any:
    """Return the computation that a module begins with; raise ValueError if it has none."""
    if not module.computations:
        raise ValueError("the module has no computation; the file is damaged")
    by_id = {each.id: each for each in module.computations}
    return by_id.get(module.entry_computation_id, module.computations[-1])


def elements(shape: Any) -> int:
    """Return the number of elements of an array, or of the first array of a tuple."""
    return elements(shape.tuple_shapes[0]) if shape.tuple_shapes else int(prod(shape.dimensions))


def _counts(instruction: Any, shapes: dict[int, Any], done: dict[int, Counts]) -> Counts:
    opcode, size = instruction.opcode, elements(instruction.shape)
    operands = [shapes[each] for each in instruction.operand_ids if each in shapes]
    called = [done[each] for each in instruction.called_computation_ids if each in done]
    if opcode in TRANSCENDENTAL:
        return Counts(0.0, float(size))
    if opcode in ELEMENTWISE:
        return Counts(float(size), 0.0)
    if opcode == "dot" and operands:
        contracted = list(instruction.dot_dimension_numbers.lhs_contracting_dimensions)
        return Counts(2.0 * size * prod(dimensions_of(operands[0], contracted)), 0.0)
    if opcode == "convolution" and len(operands) > 1:
        return Counts(_convolution(instruction, operands), 0.0)
    if not called or not (operands or opcode in ("fusion", "call", "async-start")):
        return Counts(0.0, 0.0)
    match opcode:
        case "reduce":
            return called[0].times(max(elements(operands[0]) - size, 0))
        case "reduce-window":
            return called[0].times(size * max(prod(each.size for each in instruction.window.dimensions) - 1, 0))
        case "select-and-scatter":
            window = prod(each.size for each in instruction.window.dimensions)
            select, scatter = called[0], called[-1]
            source = elements(operands[1])
            first, second = select.times(source * max(window - 1, 0)), scatter.times(source)
            return Counts(first.flops + second.flops, first.transcendentals + second.transcendentals)
        case "scatter":
            return called[0].times(elements(operands[-1]))
        case "map":
            return called[0].times(size)
        case "conditional":
            return max(called)
        case "call" | "fusion" | "while" | "async-start":
            return Counts(sum(each.flops for each in called), sum(each.transcendentals for each in called))
    return Counts(0.0, 0.0)


def dimensions_of(shape: Any, places: list[int]) -> list[int]:
    """Return the sizes of the named dimensions; raise ValueError if the shape lacks one."""
    sizes = list(shape.dimensions)
    if places and not 0 <= min(places) <= max(places) < len(sizes):
        raise ValueError(f"an instruction names dimension {max(places)} of an array of {len(sizes)} dimensions")
    return [sizes[place] for place in places]


def _convolution(instruction: Any, operands: list[Any]) -> float:
    """Count two for each pair of an output and an element of its window that is neither padding nor a hole."""
    numbers = instruction.convolution_dimension_numbers
    valid = 1
    spatial = zip(numbers.input_spatial_dimensions, instruction.window.dimensions, strict=False)
    for place, window in spatial:
        (size,) = dimensions_of(operands[0], [place])
        valid *= _valid_positions(size, window)
    (features,) = dimensions_of(operands[1], [numbers.kernel_input_feature_dimension])
    (outputs,) = dimensions_of(operands[1], [numbers.kernel_output_feature_dimension])
    (batch,) = dimensions_of(operands[0], [numbers.input_batch_dimension])
    return 2.0 * valid * features * outputs * batch / max(instruction.batch_group_count, 1)


def _valid_positions(size: int, window: Any) -> int:
    """Count the pairs of an output and a window position that meet an element of the input, in one dimension."""
    base, dilation, stride = (max(each, 1) for each in (window.base_dilation, window.window_dilation, window.stride))
    dilated = (size - 1) * base + 1 if size else 0
    span = (window.size - 1) * dilation + 1
    outputs = max((dilated + window.padding_low + window.padding_high - span) // stride + 1, 0)
    if outputs > 1_000_000 or window.size > 1_000_000 or outputs * window.size > 10_000_000:
        return outputs * window.size  # so large a convolution has next to no padding
    if base == 1:  # per place of the window the outputs form an interval
        total = 0
        for place in range(window.size):
            shift = place * dilation - window.padding_low
            first = max(-(shift // stride) if shift < 0 else 0, 0)
            total += max(min((dilated - 1 - shift) // stride, outputs - 1) - first + 1, 0)
        return total
    return sum(
        0 <= (at := output * stride + place * dilation - window.padding_low) < dilated and at % base == 0
        for place in range(window.size) for output in range(outputs)
    )  # fmt: skip
