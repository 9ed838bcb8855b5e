"""Trip counts of loops. A condition and steps of variables go in, as tokens; which variable counts, how often and from
which value on come out."""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

from experiments.reproductions.hlsyn.source.affine import Affine, combined, middle
from experiments.reproductions.hlsyn.source.expressions import ABOVE_COMPARISONS, assignment, level
from experiments.reproductions.hlsyn.source.headers import (
    MIRRORED,
    Step,
    bare,
    comparison,
    may_leave,
    split,
    without_step,
)
from experiments.reproductions.hlsyn.source.preprocess import Token
from experiments.reproductions.hlsyn.source.reading import Reading, Value
from gst.util.untrusted import shown


class Count(NamedTuple):
    """Trip count of a loop.

    Args:
        name: the variable that its condition is about.
        counter: name of the loop variable, unique in the kernel.
        trips: iterations; the mean where outer loops decide, 1 where only data does.
        is_exact: they are the same each time.
        value: of the variable, in the body; None where it is not affine in the loop variable.
        iteration: number of the iteration; None where it is unknown.
    """

    name: str
    counter: str
    trips: float
    is_exact: bool
    value: Affine | None
    iteration: Affine | None


def counted(reading: Reading, condition: list[Token], steps: list[Step], first: str, body: list[Token]) -> Count:
    """Return the trip count of a loop from its header and body.

    Args:
        condition, body: tokens.
        steps: what an iteration does to variables.
        first: the variable that the loop begins with; empty if none.
    """
    asked = [text for kind, text, _ in condition if kind == "name"]
    parts = split(bare(condition), "&&", "||")
    inside = [step for name in asked if (step := without_step(condition, name)[1]) is not None]
    step = next((each for each in [*inside, *steps] if each.name in asked), steps[0] if steps else None)
    variable = step.name if step else first or next(iter(asked), "none")
    name = reading.scope.names.get(variable, variable)
    start = reading.scope.values.get(name, Value()).affine
    counter = reading.fresh(variable)
    amount = amount_of(reading, step)
    is_linear = step is not None and step.sign in "+-"
    is_held = start is not None and is_linear and amount not in (0, 1)
    value: Affine | None = {counter: 1} if step is None or is_linear else None
    if is_held and start is not None:  # the counter counts iterations
        value = {key: each for key, each in (start | {counter: amount}).items() if each or not key}
    trips, exact = _trips(reading.scope.middles, _header(reading, parts, variable, name, counter), start, step, amount)
    exact &= len(parts) == 1 and not may_leave(body)
    begin = middle(start, reading.scope.middles) or 0.0
    span = amount * (trips - 1)
    reading.scope.middles[counter] = (trips - 1) / 2 if is_held else begin + span / 2
    reading.ranges[counter] = (0, trips - 1) if is_held else (begin, begin + span)
    iteration = {counter: 1} if is_held else combined("-", {counter: 1}, start) if amount == 1 else None
    return Count(name, counter, trips, exact, value, iteration)


def amount_of(reading: Reading, step: Step | None) -> int:
    """By what a step changes its variable: a difference, or a factor; 0 if it is unknown."""
    if step is None:
        return 0
    saved = reading.tokens, reading.at, reading.operations
    reading.tokens, reading.at, reading.operations = list(step.amount), 0, Counter()
    try:
        affine = assignment(reading).affine
        whole = reading.at == len(reading.tokens)
    except ValueError:
        affine, whole = None, False
    reading.tokens, reading.at, reading.operations = saved
    constant = affine.get("", 0) if whole and affine is not None and set(affine) <= {""} else 0
    if step.sign in ("<<", ">>"):
        return 2**constant if 0 < constant < 32 else 0
    return -constant if step.sign == "-" else constant


def _header(
    reading: Reading, parts: list[list[Token]], variable: str, name: str, counter: str
) -> tuple[str, list[Affine], int, Step | None]:
    """Sign of a condition on a variable, what it is compared with, its coefficient, and its step in the condition;
    no sign if the condition is something else."""
    for part in parts:
        tokens, step = without_step(bare(part), variable)
        sides = comparison(tokens := bare(tokens))
        if sides is None:
            if [text for _, text, _ in tokens] == [variable]:
                return "!=", [{"": 0}], 1, step
            continue
        before = reading.scope.values.get(name)
        reading.scope.values[name] = Value(affine={counter: 1})
        left, right = (_side(reading, each) for each in (sides[0], sides[2]))
        if before is None:
            reading.scope.values.pop(name)
        else:
            reading.scope.values[name] = before
        sign = sides[1]
        if right.affine is not None and counter in right.affine and counter not in (left.affine or {}):
            left, right, sign = right, left, MIRRORED[sign]
        if left.affine is None or counter not in left.affine:
            continue
        moved = {key: each for key, each in left.affine.items() if key != counter}
        bounds = [combined("-", each, moved) for each in right.choices or (right.affine,)]
        known = [each for each in bounds if each is not None]
        return sign if len(known) == len(bounds) else "", known, left.affine[counter], step
    return "", [], 1, None


def _side(reading: Reading, tokens: list[Token]) -> Value:
    """Value of one side of a comparison."""
    saved = reading.tokens, reading.at
    reading.tokens, reading.at = tokens, 0
    value = level(reading, ABOVE_COMPARISONS)
    if reading.at < len(tokens):
        raise reading.fail(f"got {shown(reading.peek())}, want the end of a condition")
    reading.tokens, reading.at = saved
    return value


def _trips(
    middles: dict[str, float], header: tuple[str, list[Affine], int, Step | None], start: Affine | None,
    step: Step | None, amount: int,
) -> tuple[float, bool]:  # fmt: skip
    """Iterations of a loop, the mean where outer loops decide, and whether they are the same each time."""
    sign, bounds, coefficient, inside = header
    first, ends = middle(start, middles), [middle(each, middles) for each in bounds]
    if first is None or not sign or None in ends or not amount or step is None:
        return 1.0, False
    exact = set(start or {}) | {name for each in bounds for name in each} <= {""} and len(bounds) == 1
    if inside is not None and inside.is_before:
        first += amount
    lasts = [float(each or 0) / coefficient for each in ends]
    if step.sign not in "+-":
        last = min(lasts) if step.sign in ("*", "<<") else max(lasts)
        return _powers(first, last, sign, step.sign, amount), exact
    spans = [(last - first) / amount + ((1 if sign in ("<=", ">=") else 0) / abs(amount)) for last in lasts]
    span = min(spans)
    return max(float(-(-span // 1)) if exact else span, 1.0), exact


def _powers(first: float, last: float, sign: str, step: str, factor: int) -> float:
    """Iterations of a loop that multiplies its variable, or divides it."""
    if step in ("/", ">>"):
        first, last = last, first
    if factor < 2 or first < 0 or last <= 0:
        return 1.0
    span = math.log(max(last, 1) / max(first, 1), factor)
    is_inclusive = sign in ("<=", ">=") or (step in ("/", ">>") and first < 1)  # the last division leaves 0
    return max(float(math.floor(span + 1e-9) + 1) if is_inclusive else float(math.ceil(span - 1e-9)), 1.0)
