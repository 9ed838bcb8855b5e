"""Expressions of a C source: what is read, which operations lie between, which index or address comes out. The tokens
ahead go in, a `Value` comes out; assignments add statements to the loop tree, and calls are inlined."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

from experiments.reproductions.hlsyn.source.affine import Affine, combined
from experiments.reproductions.hlsyn.source.loop_tree import Access, Assignment
from experiments.reproductions.hlsyn.source.reading import BYTES, MOST_DEPTH, TYPES, Pointer, Reading, Scope, Value
from gst.util.untrusted import shown

FUNCTIONS = {"sqrt": "sqrt", "pow": "pow", "log": "log"} | dict.fromkeys(
    ("exp", "exp2", "expm1", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "atan2"), "exp"
) | dict.fromkeys(("log2", "log10", "log1p"), "log") | dict.fromkeys(
    ("fabs", "fmax", "fmin", "floor", "ceil", "round"), "logic"
)  # fmt: skip
"""Kinds of operations that functions of floating-point numbers are; those that end in `f` are the same."""
LEVELS = (
    ("||", ), ("&&", ), ("|", ), ("^", ), ("&", ), ("==", "!="), ("<", ">", "<=", ">="), ("<<", ">>"), ("+", "-"),
    ("*", "/", "%"),
)  # fmt: skip
KINDS = {"+": "add", "-": "add", "*": "mul", "/": "div", "%": "div"}
MOST_DIGITS = 20  # of a whole number, as C has
ABOVE_COMPARISONS = 7  # the first of `LEVELS` that binds closer than comparisons do


def expression(reading: Reading) -> Value:
    """The value of an expression with commas: that of its last part."""
    value = assignment(reading)
    while reading.accept(","):
        value = assignment(reading)
    return value


def assignment(reading: Reading) -> Value:
    """The value of an expression without commas outside of brackets."""
    reading.nesting += 1
    if reading.nesting > MOST_DEPTH:
        raise reading.fail("expressions are nested too deeply")
    left = conditional(reading)
    sign = reading.peek()
    if sign.endswith("=") and sign not in ("==", "<=", ">=", "!="):
        if left.access is None:
            raise reading.fail(f"{shown(sign)} needs a variable or an element on its left")
        reading.take()
        right = assignment(reading)
        if sign != "=":
            right = _operate(reading, sign[:-1], replace(left, access=None), right)
        assign(reading, left.access, right)
        left = replace(right, access=left.access)
    reading.nesting -= 1
    return left


def assign(reading: Reading, target: Access, value: Value) -> None:
    """Add a statement that writes a value to the loop tree; what it tells of a scalar is known from here on."""
    unique = {(repr(read), path): (read, path) for read, path in value.reads}
    # of the paths from one read, the longest decides
    longest: dict[str, tuple[Access, tuple[str, ...]]] = {}
    for (key, path), pair in unique.items():
        if key not in longest or len(path) > len(longest[key][1]):
            longest[key] = pair
    reads = tuple(longest.values())[:64]
    if not target.subscripts and value.pointer is not None:
        reading.scope.values[target.name] = replace(value, access=None)
        return
    if not target.subscripts and value.affine is not None:
        reading.scope.values[target.name] = value  # an index, computed in parallel
        reading.operations = Counter()
        reading.sink.append(Assignment(target, (), Counter(), (), reading.guards > 0))
        return
    reading.sink.append(Assignment(target, reads, reading.operations, value.depth[:64], reading.guards > 0))
    reading.operations = Counter()
    if not target.subscripts:
        own = any(read.name == target.name for read, _ in reads)
        if own:
            reading.scope.values.pop(target.name, None)
        else:
            is_float = reading.scope.is_float.get(target.name, value.is_float)
            reading.scope.values[target.name] = Value(reads, value.depth, None, is_float)


def conditional(reading: Reading) -> Value:
    """The value of an expression without assignments outside of brackets."""
    value = level(reading, 0)
    if reading.accept("?"):
        one = assignment(reading)
        reading.take(":")
        two = assignment(reading)
        choices = () if one.affine is None or two.affine is None else (one.affine, two.affine)
        return replace(combine(reading, [value, one, two], "logic"), choices=choices)
    return value


def level(reading: Reading, number: int) -> Value:
    """The value of an expression of operations that bind as close as `LEVELS[number]` or closer."""
    if number == len(LEVELS):
        return _unary(reading)
    left = level(reading, number + 1)
    while reading.peek() in LEVELS[number] and reading.peek():
        sign = reading.take()
        left = _operate(reading, sign, left, level(reading, number + 1))
    return left


def _operate(reading: Reading, sign: str, left: Value, right: Value) -> Value:
    if sign in ("+", "-") and (left.pointer or right.pointer):
        base, other = (left, right) if left.pointer else (right, left)
        pointer = base.pointer or Pointer("")
        return replace(base, access=None, pointer=pointer._replace(offset=combined(sign, pointer.offset, other.affine)))
    affine = combined(sign, left.affine, right.affine)
    if affine is not None and not left.is_float and not right.is_float:
        return Value(affine=affine)
    is_float = left.is_float or right.is_float
    kind = KINDS.get(sign, "logic")
    value = combine(reading, [left, right], "f" + kind if is_float and kind != "logic" else kind)
    return replace(value, is_float=is_float)


def combine(reading: Reading, values: list[Value], kind: str) -> Value:
    """Return the result of one operation on values, and count it for the current statement."""
    reading.operations[kind] += 1
    reads = tuple((read, (*path, kind)) for value in values for read, path in value.reads)[:256]
    depth = (*max((value.depth for value in values), key=len), kind)
    return Value(reads, depth, None, any(value.is_float for value in values))


def _unary(reading: Reading) -> Value:
    reading.nesting += 1
    if reading.nesting > MOST_DEPTH:
        raise reading.fail("expressions are nested too deeply")
    try:
        if sign := reading.accept("-", "+", "!", "~", "*", "&", "++", "--"):
            value = _unary(reading)
            if sign == "*" and value.pointer is not None:
                return _element(reading, value.pointer.element(({"": 0},)), [])
            if sign == "&" and value.access is not None and value.access.subscripts:
                *before, last = value.access.subscripts
                return replace(value, pointer=Pointer(value.access.name, tuple(before), last))
            if sign == "-":
                if value.affine is not None and not value.is_float:
                    return Value(affine={name: -each for name, each in value.affine.items()})
                return replace(value, access=None)
            if sign in ("++", "--") and value.access is not None:
                _add(reading, value, 1 if sign == "++" else -1)
                return replace(reading.scope.values.get(value.access.name, value), access=value.access)
            return value
        if reading.peek() == "(" and reading.peek(1) in TYPES:
            words = []
            reading.take()
            while reading.peek() != ")":
                words.append(reading.take())
            reading.take()
            value = _unary(reading)
            if "double" in words or "float" in words:
                return replace(value, is_float=True, affine=None, access=None)
            return value
        return _postfix(reading)
    finally:
        reading.nesting -= 1


def _add(reading: Reading, value: Value, amount: int) -> None:
    if value.access is not None and not value.access.subscripts:
        before = reading.scope.values.pop(value.access.name, None)
        if before is not None and before.affine is not None:
            reading.scope.values[value.access.name] = Value(affine=combined("+", before.affine, {"": amount}))


def _element(reading: Reading, access: Access, inside: list[Value]) -> Value:
    """Value of an element, or of a variable; `inside` are its subscripts."""
    reads = [(access, ())] + [(read, path) for each in inside for read, path in each.reads]
    return Value(tuple(reads), (), None, reading.scope.is_float.get(access.name, False), access)


def _postfix(reading: Reading) -> Value:
    kind, token, _ = reading.tokens[reading.at] if reading.at < len(reading.tokens) else ("", "", 0)
    if token == "(":
        reading.take()
        value = expression(reading)
        reading.take(")")
        subscripts, inside = _subscripts(reading)
        if subscripts and value.pointer is not None:
            return _element(reading, value.pointer.element(tuple(subscripts)), inside)
        return value
    if kind == "number":
        reading.take()
        if re.fullmatch(r"0[xX][0-9a-fA-F]+[uUlL]*|\d+[uUlL]*", token):
            digits = token.rstrip("uUlL")
            if len(digits) > MOST_DIGITS:
                raise reading.fail(f"got a number of {len(digits)} digits")
            return Value(affine={"": int(digits, 16 if digits[:2] in ("0x", "0X") else 10)})
        return Value(is_float=True)
    if kind == "text":
        reading.take()
        return Value(affine={"": 0})
    if kind != "name":
        raise reading.fail(f"got {shown(token) if token else 'the end of the source'}, want an expression")
    reading.take()
    if token == "sizeof":
        return _size_of(reading)
    if reading.peek() == "(":
        return _call(reading, token)
    name = reading.scope.names.get(token, token)
    subscripts, inside = _subscripts(reading)
    while reading.accept("->", "."):
        name = f"{name}.{reading.take()}"
        more, others = _subscripts(reading)
        subscripts, inside = subscripts + more, inside + others
    known = reading.scope.values.get(name)
    if known is not None and known.pointer is not None and subscripts:
        value = _element(reading, known.pointer.element(tuple(subscripts)), inside)
    elif not subscripts and known is not None:
        value = replace(known, access=Access(name))
    else:
        value = _element(reading, Access(name, tuple(subscripts)), inside)
    access = value.access or Access(name)
    if value.pointer is None and len(access.subscripts) < reading.dimensions.get(access.name, 0):
        offset = None if access.name in reading.moving else {"": 0}
        value = replace(value, pointer=Pointer(access.name, access.subscripts, offset))
    if sign := reading.accept("++", "--"):
        _add(reading, value, 1 if sign == "++" else -1)
    return value


def _subscripts(reading: Reading) -> tuple[list[Affine | None], list[Value]]:
    """Those ahead, and their values."""
    inside: list[Value] = []
    while reading.accept("["):
        inside.append(expression(reading))
        reading.take("]")
    return [each.affine for each in inside], inside


def _size_of(reading: Reading) -> Value:
    """Bytes of a type; of anything else they are unknown."""
    begin = reading.at
    reading.skip_group("(", ")")
    words = [text for _, text, _ in reading.tokens[begin + 1 : reading.at - 1]]
    if not words or any(word not in TYPES for word in words):
        return Value()
    return Value(affine={"": next((BYTES[word] for word in words if word in BYTES), 4)})


def _call(reading: Reading, name: str) -> Value:
    arguments = []
    reading.take("(")
    while reading.peek() != ")":
        arguments.append(assignment(reading))
        if not reading.accept(","):
            break
    reading.take(")")
    if name not in reading.functions or name in reading.calls:
        plain = name if name in FUNCTIONS else name.removesuffix("f")
        kind = FUNCTIONS.get(plain, "logic")
        return combine(reading, [*arguments, Value(is_float=plain in FUNCTIONS)], kind)
    parameters, begin = reading.functions[name].parameters, reading.functions[name].begin
    saved, place, counts = reading.scope, reading.at, reading.operations
    inner = Scope(dict(saved.values), {}, dict(saved.is_float), dict(saved.middles))
    reading.counter += 1
    for (parameter, is_float), argument in zip(parameters, arguments, strict=False):
        pointer = argument.pointer
        is_inside = pointer is not None and (bool(pointer.outer) or pointer.offset != {"": 0})
        is_named = argument.access is not None and not is_inside
        unique = argument.access.name if argument.access and is_named else f"{parameter}.{reading.counter}"
        inner.names[parameter] = unique
        inner.is_float[unique] = is_float
        if not is_named:
            inner.values[unique] = argument
    reading.scope, reading.at, reading.operations = inner, begin, Counter()
    reading.calls.append(name)
    reading.returned = Value()
    reading.statement(reading)
    reading.calls.pop()
    reading.scope, reading.at, reading.operations = saved, place, counts + reading.operations
    return replace(reading.returned, access=None)
