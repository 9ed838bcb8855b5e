"""Functions of a C source, and the kernel among them. Text goes in, a loop tree comes out. The source is parsed, never
compiled or executed."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from experiments.reproductions.hlsyn.source.affine import highest
from experiments.reproductions.hlsyn.source.expressions import conditional
from experiments.reproductions.hlsyn.source.loop_tree import Assignment, Kernel, Loop
from experiments.reproductions.hlsyn.source.reading import BYTES, TYPES, Function, Reading, Value
from experiments.reproductions.hlsyn.source.statements import declaration, statement

KERNEL = re.compile(r"\bACCEL\s+kernel\b", re.IGNORECASE)


def parse_kernel(text: str, where: str = "source") -> Kernel:
    """The loop tree of the last function of a C source, with its calls inlined.

    Examples:
        >>> kernel = parse_kernel('''
        ... void kernel(double a[8], double s[1]) {
        ...   int i;
        ...   #pragma ACCEL PARALLEL reduction=s FACTOR=auto{__PARA__L0}
        ...   for (i = 0; i < 8; i++) { s[0] += a[i]; }
        ... }''')
        >>> [(loop.trip_count, loop.place, loop.reduction) for loop in kernel.loops()]
        [(8.0, 'L0', 's')]

    Args:
        where: name of the source, for messages.

    Raises:
        ValueError: it holds no function, ends early, or uses C that this reader does not know; the message names the
            source and the line.
    """
    try:
        return _kernel(Reading(text, where, statement))
    except RecursionError as error:
        raise ValueError(f"{where}: expressions are nested too deeply") from error


def _kernel(reading: Reading) -> Kernel:
    last, marked = "", ""
    is_marked = False
    while reading.at < len(reading.tokens):
        kind, token, _ = reading.tokens[reading.at]
        if kind == "pragma" or token == ";":
            is_marked |= kind == "pragma" and KERNEL.search(token) is not None
            reading.at += 1
        elif reading.is_name() and reading.peek(1) == "(" and token not in TYPES | {"__attribute__"}:
            name = reading.take()
            function = _function(reading)
            if reading.peek() != "{":
                continue
            reading.functions[name] = function
            reading.skip_group("{", "}")
            last = last if name == "main" and last else name
            marked, is_marked = name if is_marked else marked, False
        elif token == "{" and reading.at and reading.tokens[reading.at - 1][0] == "text":  # extern "C" {
            reading.at += 1
        elif token == "{":
            reading.skip_group("{", "}")
        elif token == "enum":
            _enumeration(reading)
        elif not _global_variable(reading):
            reading.at += 1
    if not last:
        raise reading.fail("there is no function in it")
    name = marked or last
    function = reading.functions[name]
    reading.at, reading.sink = function.begin, []
    reading.scope.is_float |= dict(function.parameters)
    reading.scope.names |= {each: each for each, _ in function.parameters}
    for each, _ in function.parameters:
        reading.scope.values.pop(each, None)
    reading.dimensions |= {each: max(len(shape), 1) for each, shape in function.shapes.items()}
    reading.calls.append(name)
    statement(reading)
    body = tuple(reading.sink)
    return Kernel(name, _elements(reading, function, body), function.bytes_of, body, function.shapes)


def _enumeration(reading: Reading) -> None:
    """Names of an `enum` are constants."""
    while reading.peek() not in ("{", ";", ""):
        reading.at += 1
    if not reading.accept("{"):
        return
    value = 0
    while reading.is_name():
        name = reading.take()
        if reading.accept("="):
            value = (conditional(reading).affine or {}).get("", value)
        reading.scope.values[name] = Value(affine={"": value})
        value += 1
        reading.accept(",")
    reading.accept("}")


def _global_variable(reading: Reading) -> bool:
    """Read the declaration of a variable outside of functions; False where none stands."""
    end = reading.at
    while end < len(reading.tokens) and reading.tokens[end][1] in TYPES | {"*"}:
        end += 1
    if end == reading.at or end + 1 >= len(reading.tokens) or reading.tokens[end][0] != "name":
        return False
    if reading.tokens[end + 1][1] not in ("=", ";", "[", ","):
        return False
    is_constant = "const" in {text for _, text, _ in reading.tokens[reading.at : end]}
    names = set(reading.scope.values)
    declaration(reading)
    if not is_constant:
        reading.scope.values = {name: value for name, value in reading.scope.values.items() if name in names}
    return True


def _function(reading: Reading) -> Function:
    """The function whose parameters stand ahead; they are taken, its body is not."""
    reading.take("(")
    function = Function([], 0, {}, {}, {})
    words: list[str] = []
    sizes: list[int] = []
    has_array, depth = False, 0
    while True:
        token = reading.take()
        if depth and token == ")":  # (*a)[8]
            depth -= 1
        elif token in (",", ")"):
            if words and words != ["void"]:
                name = words[-1]
                function.parameters.append((name, "double" in words or "float" in words))
                if has_array:
                    function.arrays[name] = max(math.prod(sizes[1:] if sizes and not sizes[0] else sizes), 1)
                    function.shapes[name] = tuple(sizes)
                    function.bytes_of[name] = next((BYTES[word] for word in words[:-1] if word in BYTES), 4)
            words, sizes, has_array = [], [], False
            if token == ")":
                return replace(function, begin=reading.at)
        elif token == "[":
            has_array = True
            reading.accept("static")
            if reading.peek() != "]":
                size = conditional(reading).affine
                if size is None or set(size) != {""}:
                    raise reading.fail("the size of a parameter is no constant")
                sizes.append(size[""])
            else:
                sizes.append(0)  # unknown
            reading.take("]")
        elif token == "*":
            has_array = True
            sizes += [0] * bool(depth)
        elif token == "(":
            depth += 1
        elif token == "<":  # ap_int<8>
            while reading.take() != ">":
                pass
        elif token not in ("&", "restrict", "__restrict", "__restrict__"):
            words.append(token)


def _elements(reading: Reading, function: Function, body: tuple[Loop | Assignment, ...]) -> dict[str, int]:
    """Elements of each parameter that is an array; of pointers, as many as subscripts reach."""
    reach = dict(function.arrays)
    waiting = list(body)
    while waiting:
        item = waiting.pop()
        if isinstance(item, Loop):
            waiting += item.body
            continue
        for access in (item.target, *(read for read, _ in item.reads)):
            shape = function.shapes.get(access.name, ())
            if access.name not in reach or not access.subscripts or (shape and shape[0]):
                continue
            last = highest(access.subscripts[0], reading.ranges)
            if last is not None:
                row = math.prod(shape[1:])
                reach[access.name] = max(reach[access.name], int(last + 1) * row)
    for name, shape in function.shapes.items():
        if shape and not shape[0]:
            function.shapes[name] = (max(reach[name] // max(math.prod(shape[1:]), 1), 1), *shape[1:])
    return reach
