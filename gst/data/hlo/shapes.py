"""Shapes in HLO text."""

from __future__ import annotations

import re
from typing import Any

from gst.data.hlo.features import ELEMENT_TYPES
from gst.data.hlo.tokens import Tokens

DEEPEST_TUPLE = 32
_OTHER_TYPE = re.compile(r"[sufc]\d\w*")  # of elements: f8e4m3fn, s4, ...
_NUMBER_OF_OTHER_TYPE = -1
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)


def read_shape(tokens: Tokens, shape: Any, depth: int = 0) -> None:
    """Read `f32[8,<=4]{1,0:T(8,128)}`, or a tuple `(f32[8]{0}, token[])` of such, into a `Shape`; `<=` marks the upper
    bound of a dynamic size.

    Raises:
        ValueError: it is no shape, or one of unknown size; as of every function here, the message names the line.
    """
    if tokens.token == "(":
        shape.element_type = ELEMENT_TYPES["tuple"]
        if depth == DEEPEST_TUPLE:
            raise tokens.error(f"more than {DEEPEST_TUPLE} tuples within each other")
        tokens.take()
        while tokens.token != ")":
            read_shape(tokens, shape.tuple_shapes.add(), depth + 1)
            if tokens.token != ")":
                tokens.expect(",")
        tokens.take()
        return
    name = tokens.word()
    name = {"opaque": "opaque_type"}.get(name, name)
    if name not in ELEMENT_TYPES and not _OTHER_TYPE.fullmatch(name):
        raise tokens.error(f"{name[:40]!r} is no type of elements")
    shape.element_type = ELEMENT_TYPES.get(name, _NUMBER_OF_OTHER_TYPE)
    if tokens.token != "[":
        raise tokens.error(f"got {tokens.found()}, want the sizes of {name}[...]")
    sizes = "".join(tokens.group()).replace("<=", "")
    shape.dimensions.extend(read_number(tokens, size) for size in sizes.split(",") if size)
    _layout(tokens, shape)


def _layout(tokens: Tokens, shape: Any) -> None:
    """`{1,0:T(8,128)}`: minor to major, then tiles and memory, which no feature tells of."""
    rank = len(shape.dimensions)
    order = list(range(rank - 1, -1, -1))
    if tokens.token == "{":
        given = "".join(tokens.group()).partition(":")[0]
        order = [read_number(tokens, place) for place in given.split(",") if place]
        if sorted(order) != list(range(rank)):
            raise tokens.error(f"the layout {{{given[:40]}}} does not order {rank} dimensions")
    shape.layout.minor_to_major.extend(order)


def read_number(tokens: Tokens, text: str) -> int:
    """The whole number that `text` stands for, less than 10**18 as every size is."""
    if not _NUMBER.fullmatch(text):
        raise tokens.error(f"{text[:40]!r} is no size or place (those must be known, and less than 10**18)")
    return int(text)
