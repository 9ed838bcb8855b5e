"""A C source while it is read: its tokens and the place in them, and what is known at that place. Text goes in; what
is read of it, statement by statement, gathers in `sink`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from experiments.reproductions.hlsyn.source.affine import Affine, combined
from experiments.reproductions.hlsyn.source.loop_tree import Access, Assignment, Loop
from experiments.reproductions.hlsyn.source.preprocess import SCALARS, Token, tokens_of
from gst.util.untrusted import shown

TYPES = SCALARS | {
    "void", "static", "register", "volatile", "struct", "extern", "inline", "restrict", "__restrict", "__restrict__",
}  # fmt: skip
BYTES = {
    "char": 1, "short": 2, "float": 4, "double": 8, "long": 8, "bool": 1, "_Bool": 1, "int8_t": 1, "uint8_t": 1,
    "int16_t": 2, "uint16_t": 2, "int64_t": 8, "uint64_t": 8, "size_t": 8,
}  # fmt: skip
MOST_DEPTH = 200


class Pointer(NamedTuple):
    """Address of one element: array, subscripts of its outer dimensions, and subscript of the next one."""

    name: str
    outer: tuple[Affine | None, ...] = ()
    offset: Affine | None = None

    def element(self, subscripts: tuple[Affine | None, ...]) -> Access:
        """Return the element that the pointer with these subscripts names."""
        first = combined("+", self.offset, subscripts[0])
        return Access(self.name, (*self.outer, first, *subscripts[1:]))


@dataclass
class Value:
    """Value of an expression while statements are read."""

    reads: tuple[tuple[Access, tuple[str, ...]], ...] = ()
    depth: tuple[str, ...] = ()
    affine: Affine | None = None
    is_float: bool = False
    access: Access | None = None  # if it can be assigned
    pointer: Pointer | None = None  # if it is the address of an element
    choices: tuple[Affine, ...] = ()  # of which a condition takes one


@dataclass
class Scope:
    """State at a statement: values of scalars, names and types, ranges of loop variables."""

    values: dict[str, Value] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    is_float: dict[str, bool] = field(default_factory=dict)
    middles: dict[str, float] = field(default_factory=dict)


@dataclass
class Function:
    """A function: parameters, where its body begins, and elements, bytes and shapes of parameters that are arrays."""

    parameters: list[tuple[str, bool]]
    begin: int
    arrays: dict[str, int]
    bytes_of: dict[str, int]
    shapes: dict[str, tuple[int, ...]]


class Reading:
    """The place in the tokens of a source, and what is known there.

    Args:
        text: the source.
        where: its name, for messages.
        statement: reads the statement ahead; calls are inlined with it.
    """

    def __init__(self, text: str, where: str, statement: Callable[[Reading], None]) -> None:
        self.statement = statement
        self.where = where
        self.tokens: list[Token] = tokens_of(text, where)
        self.at, self.nesting, self.counter, self.guards = 0, 0, 0, 0
        self.functions: dict[str, Function] = {}
        self.dimensions: dict[str, int] = {}  # of arrays, and 1 of pointers
        self.moving: set[str] = set()  # pointers that loops change
        self.ranges: dict[str, tuple[float, float]] = {}  # least and greatest value of counters
        self.calls: list[str] = []
        self.operations: Counter[str] = Counter()
        self.sink: list[Loop | Assignment] = []
        self.statements = 0
        self.scope = Scope()
        self.returned = Value()

    def fail(self, problem: str) -> ValueError:
        """The error for a problem at this place."""
        line = self.tokens[min(self.at, len(self.tokens) - 1)][2] if self.tokens else 1
        return ValueError(f"{self.where}, line {line}: {problem}")

    def peek(self, ahead: int = 0) -> str:
        """The token that stands so many ahead; empty behind the last."""
        place = self.at + ahead
        return self.tokens[place][1] if place < len(self.tokens) else ""

    def take(self, wanted: str = "") -> str:
        """The token ahead, which must be the one wanted."""
        token = self.peek()
        if not token or (wanted and token != wanted):
            got = shown(token) if token else "the end of the source"
            raise self.fail(f"got {got}, want {shown(wanted or 'more')}")
        self.at += 1
        return token

    def accept(self, *wanted: str) -> str:
        """Take the token ahead if it is one of those wanted; empty if not."""
        return self.take() if self.peek() in wanted and self.peek() else ""

    def skip_group(self, opening: str, closing: str) -> None:
        """Take all from an opening bracket to the one that closes it."""
        self.take(opening)
        depth = 1
        while depth:
            token = self.take()
            depth += (token == opening) - (token == closing)

    def is_name(self, ahead: int = 0) -> bool:
        """The token that stands so many ahead is a name."""
        place = self.at + ahead
        return place < len(self.tokens) and self.tokens[place][0] == "name"

    def ahead(self, closing: str) -> list[Token]:
        """Tokens up to `closing`, which is taken too."""
        begin, depth = self.at, 0
        while depth or self.peek() != closing:
            token = self.take()
            depth += (token in "([{") - (token in ")]}")
        self.at += 1
        return self.tokens[begin : self.at - 1]

    def statement_end(self) -> int:
        """The place after the statement ahead."""
        place, depth, is_do = self.at, 0, self.peek() == "do"
        while place < len(self.tokens):
            token = self.tokens[place][1]
            depth += (token in "([{") - (token in ")]}")
            place += 1
            following = self.tokens[place][1] if place < len(self.tokens) else ""
            if depth <= 0 and (token == ";" or (token == "}" and not is_do)) and following != "else":
                break
        return place

    def fresh(self, variable: str) -> str:
        """A name for a loop variable that no other has."""
        self.counter += 1
        return f"{variable}#{self.counter}"
