"""Headers and bodies of C loops, as tokens: what a step does to which variable, where a condition is split, and whether
a body may be left early."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from experiments.reproductions.hlsyn.source.preprocess import SCALARS, Token

COMPARISONS = ("<", ">", "<=", ">=", "!=")
MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!="}
OPERATIONS = ("+", "-", "*", "/", "<<", ">>")


class Step(NamedTuple):
    """Change of a variable by one iteration.

    Args:
        name: the variable.
        sign: `+`, `-`, `*`, `/`, `<<` or `>>`.
        amount: tokens of the other operand.
        is_before: it stands before the variable (`--i`).
    """

    name: str
    sign: str
    amount: tuple[Token, ...]
    is_before: bool = False


def split(tokens: Sequence[Token], *signs: str) -> list[list[Token]]:
    """Parts between `signs` outside of brackets.

    Examples:
        >>> from experiments.reproductions.hlsyn.source.preprocess import tokens_of
        >>> [[text for _, text, _ in part] for part in split(tokens_of("i++, j = f(1, 2)", ""), ",")]
        [['i', '++'], ['j', '=', 'f', '(', '1', ',', '2', ')']]
    """
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token[1] in "([{") - (token[1] in ")]}")
        if depth == 0 and token[1] in signs:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def bare(tokens: Sequence[Token]) -> list[Token]:
    """Tokens without brackets around all of them and without casts to scalar types before them."""
    result = list(tokens)
    while result and result[0][1] == "(":
        depths = list(accumulate((text == "(") - (text == ")") for _, text, _ in result))
        end = depths.index(0) if 0 in depths else len(depths)
        inside = result[1:end]
        if inside and all(text in SCALARS for _, text, _ in inside):
            result = result[end + 1 :]
        elif end == len(result) - 1:
            result = inside
        else:
            break
    return result


def step_of(tokens: Sequence[Token]) -> Step | None:
    """Return the change of a variable by an expression: `i++`, `--i`, `i += 2`, `i = i + 2`, `i <<= 1`; else None.

    Examples:
        >>> from experiments.reproductions.hlsyn.source.preprocess import tokens_of
        >>> step = step_of(tokens_of("i = 2 + i", ""))
        >>> step.name, step.sign, step.amount[0][1]
        ('i', '+', '2')
    """
    tokens = bare(tokens)
    texts = [text for _, text, _ in tokens]
    one = (("number", "1", tokens[0][2] if tokens else 1),)
    if len(texts) == 2 and ("++" in texts or "--" in texts):
        place = 0 if texts[1] in ("++", "--") else 1
        return Step(texts[place], texts[1 - place][0], one, place == 1) if tokens[place][0] == "name" else None
    if len(texts) < 3 or tokens[0][0] != "name":
        return None
    if texts[1][:-1] in OPERATIONS and texts[1].endswith("="):
        return Step(texts[0], texts[1][:-1], tuple(tokens[2:]))
    if texts[1] != "=":
        return None
    right = bare(tokens[2:])
    for sign in OPERATIONS:
        parts = split(right, sign)
        if len(parts) == 2:
            left, other = (bare(each) for each in parts)
            if [text for _, text, _ in left] == texts[:1]:
                return Step(texts[0], sign, tuple(other))
            if [text for _, text, _ in other] == texts[:1] and sign in "+*":
                return Step(texts[0], sign, tuple(left))
    return None


def comparison(tokens: Sequence[Token]) -> tuple[list[Token], str, list[Token]] | None:
    """Left side, sign and right side of a comparison; None if there is none outside of brackets."""
    depth = 0
    for place, (_, text, _) in enumerate(tokens):
        depth += (text in "([{") - (text in ")]}")
        if depth == 0 and text in COMPARISONS:
            return list(tokens[:place]), text, list(tokens[place + 1 :])
    return None


def without_step(tokens: Sequence[Token], name: str) -> tuple[list[Token], Step | None]:
    """An expression without the `++` or `--` of a variable in it, and that step."""
    for place in range(len(tokens) - 1):
        pair = tokens[place : place + 2]
        step = step_of(pair)
        if step is not None and step.name == name and step.sign in "+-" and len(step.amount) == 1:
            kept = pair[1] if step.is_before else pair[0]
            return [*tokens[:place], kept, *tokens[place + 2 :]], step
    return list(tokens), None


def steps_in(body: list[Token], names: set[str]) -> list[Step]:
    """Return the change of each variable by the single statement of a body that changes it; none if several do."""
    body = body[1:-1] if body and body[0][1] == "{" else body
    found = [step for part in split(body, ";", ",") if (step := step_of(part)) is not None and step.name in names]
    changed = changes(body)
    return [step for step in found if changed[step.name] == 1]


def changes(tokens: list[Token]) -> Counter[str]:
    """Count the changes of scalars by tokens, by name."""
    result: Counter[str] = Counter()
    for place, (kind, text, _) in enumerate(tokens):
        before = tokens[place - 1][1] if place else ""
        after = tokens[place + 1][1] if place + 1 < len(tokens) else ""
        is_set = after.endswith("=") and after not in ("==", "<=", ">=", "!=")
        if kind == "name" and (is_set or "++" in (before, after) or "--" in (before, after)):
            result[text] += 1
    return result


def may_leave(body: list[Token]) -> bool:
    """A `break` of the loop itself, or a `return` or `goto`, may leave a body early."""
    inner: list[int] = []  # depths of loops and switches inside, whose own `break` leaves them alone
    depth, is_opening = 0, False
    for _, text, _ in body:
        depth += (text == "{") - (text == "}")
        is_opening |= text in ("for", "while", "do", "switch")
        if text == "{" and is_opening:
            inner.append(depth)
            is_opening = False
        if text == "}" and inner and depth < inner[-1]:
            inner.pop()
        if text in ("return", "goto") or (text == "break" and not inner):
            return True
    return False
