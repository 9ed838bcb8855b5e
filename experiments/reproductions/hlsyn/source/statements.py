"""Statements of a C source: declarations, branches, loops. The tokens ahead go in; loops and assignments come out in
the `sink` of the reading, values of scalars in its scope."""

from __future__ import annotations

import re

from experiments.reproductions.hlsyn.source.affine import Affine, combined
from experiments.reproductions.hlsyn.source.expressions import assign, assignment, combine, conditional, expression
from experiments.reproductions.hlsyn.source.headers import changes, split, step_of, steps_in
from experiments.reproductions.hlsyn.source.loop_tree import Access, Loop
from experiments.reproductions.hlsyn.source.reading import MOST_DEPTH, TYPES, Reading, Value
from experiments.reproductions.hlsyn.source.trip_counts import Count, amount_of, counted

PLACE = re.compile(r"auto\{__(PARA|PIPE|TILE)__(\w+)\}")
REDUCTION = re.compile(r"\breduction(?:\s*=\s*(\w+))?")
MOST_STATEMENTS = 20_000  # of a kernel with its calls inlined


def statement(reading: Reading) -> None:
    """Read the statement ahead, with all inside it.

    Raises:
        ValueError: it is too deep, or uses C that this reader does not know.
    """
    reading.nesting += 1
    reading.statements += 1
    if reading.nesting > MOST_DEPTH or reading.statements > MOST_STATEMENTS:
        raise reading.fail("too many statements, or nested too deeply")
    pragmas = []
    while reading.at < len(reading.tokens) and (
        reading.tokens[reading.at][0] == "pragma"
        or reading.peek() == "case"
        or (reading.is_name() and reading.peek(1) == ":")
    ):
        if reading.tokens[reading.at][0] == "pragma":
            pragmas.append(reading.take())
        elif reading.accept("case"):
            conditional(reading)
            reading.take(":")
        else:
            reading.at += 2
    token = reading.peek()
    if token == "{":
        reading.take()
        while reading.peek() != "}":
            statement(reading)
        reading.take()
    elif token == "for":
        _for_loop(reading, pragmas)
    elif token == "while":
        _while_loop(reading, pragmas)
    elif token == "do":
        _do_loop(reading, pragmas)
    elif token in ("if", "switch"):
        _branch(reading)
    elif token in ("break", "continue", "goto"):
        while reading.take() != ";":
            pass
    elif token == "return":
        reading.take()
        if reading.peek() != ";":
            reading.returned = expression(reading)
        reading.take(";")
    elif token == "}":
        pass  # a pragma at the end of a block
    elif token == ";":
        reading.take()
    elif token in TYPES or (reading.is_name() and reading.is_name(1)):
        declaration(reading)
    else:
        expression(reading)
        reading.take(";")
    reading.nesting -= 1


def declaration(reading: Reading) -> None:
    """Read the declaration ahead, with its initial values."""
    words = []
    while reading.peek() in TYPES or (reading.is_name() and reading.is_name(1)):
        words.append(reading.take())
    while True:
        is_pointer = False
        while reading.accept("*", "restrict", "__restrict", "__restrict__", "const"):
            is_pointer = True
        name = reading.take()
        is_float = "double" in words or "float" in words
        unique = name
        if name in reading.scope.is_float and len(reading.calls) > 1:
            reading.counter += 1
            unique = f"{name}.{reading.counter}"
        reading.scope.names[name] = unique
        reading.scope.is_float[unique] = is_float
        reading.dimensions.pop(unique, None)
        while reading.peek() == "[":
            reading.dimensions[unique] = reading.dimensions.get(unique, 0) + 1
            reading.skip_group("[", "]")
        if is_pointer:
            reading.dimensions[unique] = 1
            reading.moving.add(unique)  # its value is known or nothing is
        if reading.accept("="):
            if reading.peek() == "{":
                reading.skip_group("{", "}")
            else:
                assign(reading, Access(unique), assignment(reading))
        if not reading.accept(","):
            break
    reading.take(";")


def _branch(reading: Reading) -> None:
    reading.take()
    reading.take("(")
    condition = expression(reading)
    reading.take(")")
    before = dict(reading.scope.values)
    reading.guards += 1
    statement(reading)
    then = reading.scope.values
    reading.scope.values = before
    if reading.accept("else"):
        statement(reading)
    reading.guards -= 1
    other = reading.scope.values
    merged = {}
    for name in then.keys() | other.keys():
        one, two = then.get(name), other.get(name)
        if one is two and one is not None:
            merged[name] = one
        else:
            one, two = one or _unknown(reading, name), two or _unknown(reading, name)
            merged[name] = combine(reading, [condition, one, two], "logic")
    reading.scope.values = merged


def _unknown(reading: Reading, name: str) -> Value:
    return Value(((Access(name), ()),), (), None, reading.scope.is_float.get(name, False))


def _for_loop(reading: Reading, pragmas: list[str]) -> None:
    reading.take("for")
    reading.take("(")
    saved, reading.sink = reading.sink, []
    if reading.peek() in TYPES:
        while reading.peek() in TYPES:
            reading.take()
        reading.scope.names[reading.peek()] = reading.peek()
        reading.scope.is_float[reading.peek()] = False
    at, first = reading.at, ""
    if reading.peek() != ";":
        expression(reading)
        first = next((text for kind, text, _ in reading.tokens[at : reading.at] if kind == "name"), "")
    reading.take(";")
    condition = reading.ahead(";")
    parts = split(reading.ahead(")"), ",")
    body = reading.tokens[reading.at : reading.statement_end()]
    steps = [step for part in parts if (step := step_of(part)) is not None]
    if not any(step.name in {text for _, text, _ in condition} for step in steps):
        steps += steps_in(body, {text for _, text, _ in condition})
    reading.sink = saved
    _loop(reading, counted(reading, condition, steps, first, body), pragmas)


def _while_loop(reading: Reading, pragmas: list[str]) -> None:
    reading.take("while")
    reading.take("(")
    condition = reading.ahead(")")
    body = reading.tokens[reading.at : reading.statement_end()]
    steps = steps_in(body, {text for _, text, _ in condition})
    _loop(reading, counted(reading, condition, steps, "", body), pragmas)


def _do_loop(reading: Reading, pragmas: list[str]) -> None:
    reading.take("do")
    begin, end = reading.at, reading.statement_end()
    body, reading.at = reading.tokens[begin:end], end
    reading.take("while")
    reading.take("(")
    condition = reading.ahead(")")
    after, reading.at = reading.at, begin
    steps = steps_in(body, {text for _, text, _ in condition})
    _loop(reading, counted(reading, condition, steps, "", body), pragmas)
    reading.at = after
    reading.take(";")


def _loop(reading: Reading, count: Count, pragmas: list[str]) -> None:
    """Read the body ahead, and add the loop that counts so."""
    place, kinds, reduction = "", set(), ""
    for pragma in pragmas:
        if match := PLACE.search(pragma):
            kinds.add(match.group(1))
            place = match.group(2)
        if found := REDUCTION.search(pragma):
            reduction = found.group(1) or "*"
    outer, reading.sink = reading.sink, []
    written = _written_names(reading)
    reading.moving |= written & reading.dimensions.keys()
    before = dict(reading.scope.values)
    reading.scope.values = {key: each for key, each in before.items() if key not in written}
    reading.scope.values |= _inductions(reading, before, count.iteration)
    reading.scope.values[count.name] = Value(affine=count.value)
    statement(reading)
    reading.scope.values = {key: each for key, each in before.items() if key not in written and key != count.name}
    body, reading.sink = tuple(reading.sink), outer
    loop = Loop(count.counter, count.trips, count.is_exact, place, frozenset(kinds), reduction, body)
    reading.sink.append(loop)


def _inductions(reading: Reading, before: dict[str, Value], iteration: Affine | None) -> dict[str, Value]:
    """Values of variables to which each iteration of the loop ahead adds the same number, once."""
    body = reading.tokens[reading.at : reading.statement_end()]
    result = {}
    for step in steps_in(body, {text for kind, text, _ in body if kind == "name"}):
        start = before.get(name := reading.scope.names.get(step.name, step.name), Value()).affine
        amount = amount_of(reading, step)
        if start is not None and iteration is not None and amount and step.sign in "+-":
            value = combined("+", start, {key: amount * each for key, each in iteration.items()})
            result[name] = Value(affine=value)
    return result


def _written_names(reading: Reading) -> set[str]:
    """Scalars that the statement ahead may write."""
    changed = changes(reading.tokens[reading.at : reading.statement_end()])
    return {reading.scope.names.get(name, name) for name in changed}
