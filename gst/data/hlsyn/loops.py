"""Loop tree of a C kernel with Merlin pragmas: trip counts, nesting, statements and their dependences. The source is
parsed, never compiled or executed."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gst.data.hlsyn.headers import MIRRORED, Step, bare, comparison, split, step_of, without_step
from gst.data.hlsyn.preprocess import SCALARS, Token, tokens_of
from gst.files.untrusted import shown

KERNEL = re.compile(r"\bACCEL\s+kernel\b", re.IGNORECASE)
PLACE = re.compile(r"auto\{__(PARA|PIPE|TILE)__(\w+)\}")
REDUCTION = re.compile(r"\breduction(?:\s*=\s*(\w+))?")
TYPES = SCALARS | {
    "void", "static", "register", "volatile", "struct", "extern", "inline", "restrict", "__restrict", "__restrict__",
}  # fmt: skip
BYTES = {
    "char": 1, "short": 2, "float": 4, "double": 8, "long": 8, "bool": 1, "_Bool": 1, "int8_t": 1, "uint8_t": 1,
    "int16_t": 2, "uint16_t": 2, "int64_t": 8, "uint64_t": 8, "size_t": 8,
}  # fmt: skip
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
MOST_DEPTH = 200
MOST_STATEMENTS = 20_000  # of a kernel with its calls inlined

Affine = dict[str, int]  # variable -> coefficient; "" -> constant


@dataclass(frozen=True)
class Access:
    """One element that a statement reads or writes: an array with a subscript for each dimension, or a scalar.

    Args:
        subscripts: of each dimension, the coefficient of each loop variable, "" being the constant; None where the
            subscript is not affine (an element that data names).
    """

    name: str
    subscripts: tuple[Affine | None, ...] = ()


@dataclass(frozen=True)
class Assignment:
    """One statement that writes `target`.

    Args:
        reads: what the written value depends on, each with the operations between the read and the write.
        operations: how often each operation occurs: `fadd`, `fmul`, `fdiv`, `sqrt`, `pow`, `add`, `mul`, `div`,
            `logic`.
        depth: the longest chain of operations.
        is_guarded: an `if` stands around it.
    """

    target: Access
    reads: tuple[tuple[Access, tuple[str, ...]], ...]
    operations: Counter[str]
    depth: tuple[str, ...]
    is_guarded: bool = False


@dataclass(frozen=True)
class Loop:
    """One loop.

    Args:
        variable: its counter, unique in the kernel.
        trip_count: iterations; the mean where an outer loop decides, 1 and not `is_exact` where only data does.
        place: the place that its pragmas name (`L0_1` of `__PARA__L0_1`), empty without any.
        pragmas: kinds of its pragmas: `PARA`, `PIPE`, `TILE`.
        reduction: the variable that its parallel pragma names; "*" if it names none; empty if it is no reduction.
        body: statements and inner loops, in order.
    """

    variable: str
    trip_count: float
    is_exact: bool
    place: str
    pragmas: frozenset[str]
    reduction: str
    body: tuple[Loop | Assignment, ...]

    def walk(self) -> Iterator[Loop]:
        """This loop, then all inside it, outer before inner."""
        yield self
        for item in self.body:
            if isinstance(item, Loop):
                yield from item.walk()


@dataclass(frozen=True)
class Kernel:
    """One kernel.

    Args:
        name: of the function.
        arrays: elements of each parameter that is an array.
        bytes_of: bytes of one element of each.
        body: statements and loops at its top.
        shapes: sizes of the dimensions of each, outer first; empty where the source gives none.
    """

    name: str
    arrays: dict[str, int]
    bytes_of: dict[str, int]
    body: tuple[Loop | Assignment, ...]
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def loops(self) -> list[Loop]:
        """All loops, outer before inner, in the order of the source."""
        return [loop for item in self.body if isinstance(item, Loop) for loop in item.walk()]


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
        return _Parser(text, where).kernel()
    except RecursionError as error:
        raise ValueError(f"{where}: expressions are nested too deeply") from error


class _Pointer(NamedTuple):
    """Address of one element: array, subscripts of its outer dimensions, and subscript of the next one."""

    name: str
    outer: tuple[Affine | None, ...] = ()
    offset: Affine | None = None

    def element(self, subscripts: tuple[Affine | None, ...]) -> Access:
        """What the pointer with these subscripts behind it names."""
        first = _sum(self.offset, subscripts[0])
        return Access(self.name, (*self.outer, first, *subscripts[1:]))


@dataclass
class _Value:
    """Value of an expression while statements are read."""

    reads: tuple[tuple[Access, tuple[str, ...]], ...] = ()
    depth: tuple[str, ...] = ()
    affine: Affine | None = None
    is_float: bool = False
    access: Access | None = None  # if it can be assigned
    pointer: _Pointer | None = None  # if it is the address of an element
    choices: tuple[Affine, ...] = ()  # of which a condition takes one


@dataclass
class _Scope:
    """What is true where a statement stands: values of scalars, names and types, ranges of loop variables."""

    values: dict[str, _Value] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    is_float: dict[str, bool] = field(default_factory=dict)
    middles: dict[str, float] = field(default_factory=dict)


@dataclass
class _Function:
    """A function: parameters, where its body begins, and elements, bytes and shapes of parameters that are arrays."""

    parameters: list[tuple[str, bool]]
    begin: int
    arrays: dict[str, int]
    bytes_of: dict[str, int]
    shapes: dict[str, tuple[int, ...]]


class _Parser:
    def __init__(self, text: str, where: str) -> None:
        self.where = where
        self.tokens: list[Token] = tokens_of(text, where)
        self.at, self.nesting, self.counter, self.guards = 0, 0, 0, 0
        self.functions: dict[str, _Function] = {}
        self.dimensions: dict[str, int] = {}  # of arrays, and 1 of pointers
        self.moving: set[str] = set()  # pointers that loops change
        self.ranges: dict[str, tuple[float, float]] = {}  # least and greatest value of counters
        self.calls: list[str] = []
        self.operations: Counter[str] = Counter()
        self.sink: list[Loop | Assignment] = []
        self.statements = 0
        self.scope = _Scope()
        self.arrays: dict[str, int] = {}
        self.bytes_of: dict[str, int] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}

    # Tokens ----------------------------------------------------------------------------------------------------------

    def fail(self, problem: str) -> ValueError:
        line = self.tokens[min(self.at, len(self.tokens) - 1)][2] if self.tokens else 1
        return ValueError(f"{self.where}, line {line}: {problem}")

    def peek(self, ahead: int = 0) -> str:
        place = self.at + ahead
        return self.tokens[place][1] if place < len(self.tokens) else ""

    def take(self, wanted: str = "") -> str:
        token = self.peek()
        if not token or (wanted and token != wanted):
            got = shown(token) if token else "the end of the source"
            raise self.fail(f"got {got}, want {shown(wanted or 'more')}")
        self.at += 1
        return token

    def accept(self, *wanted: str) -> str:
        return self.take() if self.peek() in wanted and self.peek() else ""

    def skip_group(self, opening: str, closing: str) -> None:
        self.take(opening)
        depth = 1
        while depth:
            token = self.take()
            depth += (token == opening) - (token == closing)

    def is_name(self, ahead: int = 0) -> bool:
        place = self.at + ahead
        return place < len(self.tokens) and self.tokens[place][0] == "name"

    # Functions -------------------------------------------------------------------------------------------------------

    def kernel(self) -> Kernel:
        last, marked = "", ""
        is_marked = False
        while self.at < len(self.tokens):
            kind, token, _ = self.tokens[self.at]
            if kind == "pragma" or token == ";":
                is_marked |= kind == "pragma" and KERNEL.search(token) is not None
                self.at += 1
            elif self.is_name() and self.peek(1) == "(" and token not in TYPES | {"__attribute__"}:
                name = self.take()
                parameters = self.parameters()
                if self.peek() != "{":
                    continue
                self.functions[name] = _Function(parameters, self.at, self.arrays, self.bytes_of, self.shapes)
                self.skip_group("{", "}")
                last = last if name == "main" and last else name
                marked, is_marked = name if is_marked else marked, False
            elif token == "{" and self.at and self.tokens[self.at - 1][0] == "text":  # extern "C" {
                self.at += 1
            elif token == "{":
                self.skip_group("{", "}")
            elif token == "enum":
                self.enumeration()
            elif not self.global_variable():
                self.at += 1
        if not last:
            raise self.fail("there is no function in it")
        name = marked or last
        function = self.functions[name]
        self.at, self.sink = function.begin, []
        self.arrays, self.bytes_of, self.shapes = function.arrays, function.bytes_of, function.shapes
        self.scope.is_float |= dict(function.parameters)
        self.scope.names |= {each: each for each, _ in function.parameters}
        for each, _ in function.parameters:
            self.scope.values.pop(each, None)
        self.dimensions |= {each: max(len(shape), 1) for each, shape in self.shapes.items()}
        self.calls.append(name)
        self.statement()
        body = tuple(self.sink)
        return Kernel(name, self.sizes(body), self.bytes_of, body, self.shapes)

    def enumeration(self) -> None:
        """Names of an `enum` are constants."""
        while self.peek() not in ("{", ";", ""):
            self.at += 1
        if not self.accept("{"):
            return
        value = 0
        while self.is_name():
            name = self.take()
            if self.accept("="):
                value = (self.conditional().affine or {}).get("", value)
            self.scope.values[name] = _Value(affine={"": value})
            value += 1
            self.accept(",")
        self.accept("}")

    def global_variable(self) -> bool:
        """Read the declaration of a variable outside of functions; False where none stands."""
        end = self.at
        while end < len(self.tokens) and self.tokens[end][1] in TYPES | {"*"}:
            end += 1
        if end == self.at or end + 1 >= len(self.tokens) or self.tokens[end][0] != "name":
            return False
        if self.tokens[end + 1][1] not in ("=", ";", "[", ","):
            return False
        is_constant = "const" in {text for _, text, _ in self.tokens[self.at : end]}
        names = set(self.scope.values)
        self.declaration()
        if not is_constant:
            self.scope.values = {name: value for name, value in self.scope.values.items() if name in names}
        return True

    def sizes(self, body: tuple[Loop | Assignment, ...]) -> dict[str, int]:
        """Elements of each parameter that is an array; of pointers, as many as subscripts reach."""
        reach = dict(self.arrays)
        waiting = list(body)
        while waiting:
            item = waiting.pop()
            if isinstance(item, Loop):
                waiting += item.body
                continue
            for access in (item.target, *(read for read, _ in item.reads)):
                shape = self.shapes.get(access.name, ())
                if access.name not in reach or not access.subscripts or (shape and shape[0]):
                    continue
                last = self.highest(access.subscripts[0])
                if last is not None:
                    row = math.prod(shape[1:])
                    reach[access.name] = max(reach[access.name], int(last + 1) * row)
        for name, shape in self.shapes.items():
            if shape and not shape[0]:
                self.shapes[name] = (max(reach[name] // max(math.prod(shape[1:]), 1), 1), *shape[1:])
        return reach

    def highest(self, affine: Affine | None) -> float | None:
        """The greatest value; None if it is unknown."""
        if affine is None or any(name and name not in self.ranges for name in affine):
            return None
        ends = (
            max(coefficient * end for end in self.ranges[name]) if name else coefficient
            for name, coefficient in affine.items()
        )
        return float(sum(ends))

    def parameters(self) -> list[tuple[str, bool]]:
        self.take("(")
        self.arrays, self.bytes_of, self.shapes = {}, {}, {}
        parameters: list[tuple[str, bool]] = []
        words: list[str] = []
        sizes: list[int] = []
        has_array, depth = False, 0
        while True:
            token = self.take()
            if depth and token == ")":  # (*a)[8]
                depth -= 1
            elif token in (",", ")"):
                if words and words != ["void"]:
                    name = words[-1]
                    parameters.append((name, "double" in words or "float" in words))
                    if has_array:
                        self.arrays[name] = max(math.prod(sizes[1:] if sizes and not sizes[0] else sizes), 1)
                        self.shapes[name] = tuple(sizes)
                        self.bytes_of[name] = next((BYTES[word] for word in words[:-1] if word in BYTES), 4)
                words, sizes, has_array = [], [], False
                if token == ")":
                    return parameters
            elif token == "[":
                has_array = True
                self.accept("static")
                if self.peek() != "]":
                    size = self.conditional().affine
                    if size is None or set(size) != {""}:
                        raise self.fail("the size of a parameter is no constant")
                    sizes.append(size[""])
                else:
                    sizes.append(0)  # unknown
                self.take("]")
            elif token == "*":
                has_array = True
                sizes += [0] * bool(depth)
            elif token == "(":
                depth += 1
            elif token == "<":  # ap_int<8>
                while self.take() != ">":
                    pass
            elif token not in ("&", "restrict", "__restrict", "__restrict__"):
                words.append(token)

    # Statements ------------------------------------------------------------------------------------------------------

    def statement(self) -> None:
        self.nesting += 1
        self.statements += 1
        if self.nesting > MOST_DEPTH or self.statements > MOST_STATEMENTS:
            raise self.fail("too many statements, or nested too deeply")
        pragmas = []
        while self.at < len(self.tokens) and (
            self.tokens[self.at][0] == "pragma" or self.peek() == "case" or (self.is_name() and self.peek(1) == ":")
        ):
            if self.tokens[self.at][0] == "pragma":
                pragmas.append(self.take())
            elif self.accept("case"):
                self.conditional()
                self.take(":")
            else:
                self.at += 2
        token = self.peek()
        if token == "{":
            self.take()
            while self.peek() != "}":
                self.statement()
            self.take()
        elif token == "for":
            self.for_loop(pragmas)
        elif token == "while":
            self.while_loop(pragmas)
        elif token == "do":
            self.do_loop(pragmas)
        elif token in ("if", "switch"):
            self.branch()
        elif token in ("break", "continue", "goto"):
            while self.take() != ";":
                pass
        elif token == "return":
            self.take()
            if self.peek() != ";":
                self.returned = self.expression()
            self.take(";")
        elif token == "}":
            pass  # a pragma at the end of a block
        elif token == ";":
            self.take()
        elif token in TYPES or (self.is_name() and self.is_name(1)):
            self.declaration()
        else:
            self.expression()
            self.take(";")
        self.nesting -= 1

    def declaration(self) -> None:
        words = []
        while self.peek() in TYPES or (self.is_name() and self.is_name(1)):
            words.append(self.take())
        while True:
            is_pointer = False
            while self.accept("*", "restrict", "__restrict", "__restrict__", "const"):
                is_pointer = True
            name = self.take()
            is_float = "double" in words or "float" in words
            unique = name
            if name in self.scope.is_float and len(self.calls) > 1:
                self.counter += 1
                unique = f"{name}.{self.counter}"
            self.scope.names[name] = unique
            self.scope.is_float[unique] = is_float
            self.dimensions.pop(unique, None)
            while self.peek() == "[":
                self.dimensions[unique] = self.dimensions.get(unique, 0) + 1
                self.skip_group("[", "]")
            if is_pointer:
                self.dimensions[unique] = 1
                self.moving.add(unique)  # its value is known or nothing is
            if self.accept("="):
                if self.peek() == "{":
                    self.skip_group("{", "}")
                else:
                    self.assign(Access(unique), self.assignment())
            if not self.accept(","):
                break
        self.take(";")

    def branch(self) -> None:
        self.take()
        self.take("(")
        condition = self.expression()
        self.take(")")
        before = dict(self.scope.values)
        self.guards += 1
        self.statement()
        then = self.scope.values
        self.scope.values = before
        if self.accept("else"):
            self.statement()
        self.guards -= 1
        other = self.scope.values
        merged = {}
        for name in then.keys() | other.keys():
            one, two = then.get(name), other.get(name)
            if one is two and one is not None:
                merged[name] = one
            else:
                one, two = one or self.unknown(name), two or self.unknown(name)
                merged[name] = self.combine([condition, one, two], "logic")
        self.scope.values = merged

    def unknown(self, name: str) -> _Value:
        return _Value(((Access(name), ()),), (), None, self.scope.is_float.get(name, False))

    def for_loop(self, pragmas: list[str]) -> None:
        self.take("for")
        self.take("(")
        saved, self.sink = self.sink, []
        if self.peek() in TYPES:
            while self.peek() in TYPES:
                self.take()
            self.scope.names[self.peek()] = self.peek()
            self.scope.is_float[self.peek()] = False
        at, first = self.at, ""
        if self.peek() != ";":
            self.expression()
            first = next((text for kind, text, _ in self.tokens[at : self.at] if kind == "name"), "")
        self.take(";")
        condition = self.ahead(";")
        parts = split(self.ahead(")"), ",")
        body = self.tokens[self.at : self.statement_end()]
        steps = [step for part in parts if (step := step_of(part)) is not None]
        if not any(step.name in {text for _, text, _ in condition} for step in steps):
            steps += self.steps_in(body, {text for _, text, _ in condition})
        self.sink = saved
        self.counted(condition, steps, first, body, pragmas)

    def while_loop(self, pragmas: list[str]) -> None:
        self.take("while")
        self.take("(")
        condition = self.ahead(")")
        body = self.tokens[self.at : self.statement_end()]
        self.counted(condition, self.steps_in(body, {text for _, text, _ in condition}), "", body, pragmas)

    def do_loop(self, pragmas: list[str]) -> None:
        self.take("do")
        begin, end = self.at, self.statement_end()
        body, self.at = self.tokens[begin:end], end
        self.take("while")
        self.take("(")
        condition = self.ahead(")")
        after, self.at = self.at, begin
        self.counted(condition, self.steps_in(body, {text for _, text, _ in condition}), "", body, pragmas)
        self.at = after
        self.take(";")

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

    def steps_in(self, body: list[Token], names: set[str]) -> list[Step]:
        """What the one statement of a body that changes a variable named does to it; none where several change it."""
        body = body[1:-1] if body and body[0][1] == "{" else body
        found = [step for part in split(body, ";", ",") if (step := step_of(part)) is not None and step.name in names]
        changed = self.changed(body)
        return [step for step in found if changed[step.name] == 1]

    def changed(self, tokens: list[Token]) -> Counter[str]:
        """How often scalars are changed by tokens, by their names."""
        result: Counter[str] = Counter()
        for place, (kind, text, _) in enumerate(tokens):
            before = tokens[place - 1][1] if place else ""
            after = tokens[place + 1][1] if place + 1 < len(tokens) else ""
            is_set = after.endswith("=") and after not in ("==", "<=", ">=", "!=")
            if kind == "name" and (is_set or "++" in (before, after) or "--" in (before, after)):
                result[text] += 1
        return result

    def counted(
        self, condition: list[Token], steps: list[Step], first: str, body: list[Token], pragmas: list[str]
    ) -> None:  # fmt: skip
        """A loop, whose body stands ahead."""
        asked = [text for kind, text, _ in condition if kind == "name"]
        parts = split(bare(condition), "&&", "||")
        inside = [step for name in asked if (step := without_step(condition, name)[1]) is not None]
        step = next((each for each in [*inside, *steps] if each.name in asked), steps[0] if steps else None)
        variable = step.name if step else first or next(iter(asked), "none")
        name = self.scope.names.get(variable, variable)
        start = self.scope.values.get(name, _Value()).affine
        counter = self.fresh(variable)
        amount = self.amount(step)
        is_linear = step is not None and step.sign in "+-"
        is_held = start is not None and is_linear and amount not in (0, 1)
        value: Affine | None = {counter: 1} if step is None or is_linear else None
        if is_held and start is not None:  # the counter counts iterations
            value = {key: each for key, each in (start | {counter: amount}).items() if each or not key}
        trips, exact = self.trips(self.header(parts, variable, name, counter), start, step, amount)
        exact &= len(parts) == 1 and not _leaves(body)
        middle = self.middle(start) or 0.0
        span = amount * (trips - 1)
        self.scope.middles[counter] = (trips - 1) / 2 if is_held else middle + span / 2
        self.ranges[counter] = (0, trips - 1) if is_held else (middle, middle + span)
        iteration = {counter: 1} if is_held else _sum({counter: 1}, start, -1) if amount == 1 else None
        self.loop(name, counter, trips, exact, value, iteration, pragmas)

    def amount(self, step: Step | None) -> int:
        """By what a step changes its variable: a difference, or a factor; 0 if it is unknown."""
        if step is None:
            return 0
        saved = self.tokens, self.at, self.operations
        self.tokens, self.at, self.operations = list(step.amount), 0, Counter()
        try:
            affine = self.assignment().affine
            whole = self.at == len(self.tokens)
        except ValueError:
            affine, whole = None, False
        self.tokens, self.at, self.operations = saved
        constant = affine.get("", 0) if whole and affine is not None and set(affine) <= {""} else 0
        if step.sign in ("<<", ">>"):
            return 2**constant if 0 < constant < 32 else 0
        return -constant if step.sign == "-" else constant

    def header(
        self, parts: list[list[Token]], variable: str, name: str, counter: str
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
            before = self.scope.values.get(name)
            self.scope.values[name] = _Value(affine={counter: 1})
            left, right = (self.side(each) for each in (sides[0], sides[2]))
            if before is None:
                self.scope.values.pop(name)
            else:
                self.scope.values[name] = before
            sign = sides[1]
            if right.affine is not None and counter in right.affine and counter not in (left.affine or {}):
                left, right, sign = right, left, MIRRORED[sign]
            if left.affine is None or counter not in left.affine:
                continue
            moved = {key: each for key, each in left.affine.items() if key != counter}
            bounds = [self.affine("-", each, moved) for each in right.choices or (right.affine,)]
            known = [each for each in bounds if each is not None]
            return sign if len(known) == len(bounds) else "", known, left.affine[counter], step
        return "", [], 1, None

    def side(self, tokens: list[Token]) -> _Value:
        """Value of one side of a comparison."""
        saved = self.tokens, self.at
        self.tokens, self.at = tokens, 0
        value = self.level(7)
        if self.at < len(tokens):
            raise self.fail(f"got {shown(self.peek())}, want the end of a condition")
        self.tokens, self.at = saved
        return value

    def fresh(self, variable: str) -> str:
        self.counter += 1
        return f"{variable}#{self.counter}"

    def middle(self, affine: Affine | None) -> float | None:
        if affine is None or any(name and name not in self.scope.middles for name in affine):
            return None
        terms = (coefficient * (self.scope.middles[name] if name else 1) for name, coefficient in affine.items())
        return float(sum(terms))

    def trips(
        self, header: tuple[str, list[Affine], int, Step | None], start: Affine | None, step: Step | None, amount: int
    ) -> tuple[float, bool]:
        """Iterations of a loop, the mean where outer loops decide, and whether they are the same each time."""
        sign, bounds, coefficient, inside = header
        first, ends = self.middle(start), [self.middle(each) for each in bounds]
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

    def loop(
        self, name: str, counter: str, trips: float, exact: bool, value: Affine | None, iteration: Affine | None,
        pragmas: list[str],
    ) -> None:  # fmt: skip
        place, kinds, reduction = "", set(), ""
        for pragma in pragmas:
            if match := PLACE.search(pragma):
                kinds.add(match.group(1))
                place = match.group(2)
            if found := REDUCTION.search(pragma):
                reduction = found.group(1) or "*"
        outer, self.sink = self.sink, []
        written = self.written_names()
        self.moving |= written & self.dimensions.keys()
        before = dict(self.scope.values)
        self.scope.values = {key: each for key, each in before.items() if key not in written}
        self.scope.values |= self.inductions(before, iteration)
        self.scope.values[name] = _Value(affine=value)
        self.statement()
        self.scope.values = {key: each for key, each in before.items() if key not in written and key != name}
        body, self.sink = tuple(self.sink), outer
        self.sink.append(Loop(counter, trips, exact, place, frozenset(kinds), reduction, body))

    def inductions(self, before: dict[str, _Value], iteration: Affine | None) -> dict[str, _Value]:
        """Values of variables to which each iteration of the loop ahead adds the same number, once."""
        body = self.tokens[self.at : self.statement_end()]
        result = {}
        for step in self.steps_in(body, {text for kind, text, _ in body if kind == "name"}):
            start = before.get(name := self.scope.names.get(step.name, step.name), _Value()).affine
            amount = self.amount(step)
            if start is not None and iteration is not None and amount and step.sign in "+-":
                value = _sum(start, {key: amount * each for key, each in iteration.items()})
                result[name] = _Value(affine=value)
        return result

    def written_names(self) -> set[str]:
        """Scalars that the statement ahead may write."""
        changed = self.changed(self.tokens[self.at : self.statement_end()])
        return {self.scope.names.get(name, name) for name in changed}

    # Expressions -----------------------------------------------------------------------------------------------------

    def expression(self) -> _Value:
        value = self.assignment()
        while self.accept(","):
            value = self.assignment()
        return value

    def assignment(self) -> _Value:
        self.nesting += 1
        if self.nesting > MOST_DEPTH:
            raise self.fail("expressions are nested too deeply")
        left = self.conditional()
        sign = self.peek()
        if sign.endswith("=") and sign not in ("==", "<=", ">=", "!="):
            if left.access is None:
                raise self.fail(f"{shown(sign)} needs a variable or an element on its left")
            self.take()
            right = self.assignment()
            if sign != "=":
                right = self.operate(sign[:-1], replace(left, access=None), right)
            self.assign(left.access, right)
            left = replace(right, access=left.access)
        self.nesting -= 1
        return left

    def assign(self, target: Access, value: _Value) -> None:
        unique = {(repr(read), path): (read, path) for read, path in value.reads}
        # of the paths from one read, the longest decides
        longest: dict[str, tuple[Access, tuple[str, ...]]] = {}
        for (key, path), pair in unique.items():
            if key not in longest or len(path) > len(longest[key][1]):
                longest[key] = pair
        reads = tuple(longest.values())[:64]
        if not target.subscripts and value.pointer is not None:
            self.scope.values[target.name] = replace(value, access=None)
            return
        if not target.subscripts and value.affine is not None:
            self.scope.values[target.name] = value  # an index, computed beside
            self.operations = Counter()
            self.sink.append(Assignment(target, (), Counter(), (), self.guards > 0))
            return
        self.sink.append(Assignment(target, reads, self.operations, value.depth[:64], self.guards > 0))
        self.operations = Counter()
        if not target.subscripts:
            own = any(read.name == target.name for read, _ in reads)
            if own:
                self.scope.values.pop(target.name, None)
            else:
                is_float = self.scope.is_float.get(target.name, value.is_float)
                self.scope.values[target.name] = _Value(reads, value.depth, None, is_float)

    def conditional(self) -> _Value:
        value = self.level(0)
        if self.accept("?"):
            one = self.assignment()
            self.take(":")
            two = self.assignment()
            choices = () if one.affine is None or two.affine is None else (one.affine, two.affine)
            return replace(self.combine([value, one, two], "logic"), choices=choices)
        return value

    def level(self, number: int) -> _Value:
        if number == len(LEVELS):
            return self.unary()
        left = self.level(number + 1)
        while self.peek() in LEVELS[number] and self.peek():
            sign = self.take()
            left = self.operate(sign, left, self.level(number + 1))
        return left

    def operate(self, sign: str, left: _Value, right: _Value) -> _Value:
        if sign in ("+", "-") and (left.pointer or right.pointer):
            base, other = (left, right) if left.pointer else (right, left)
            pointer = base.pointer or _Pointer("")
            return replace(
                base, access=None, pointer=pointer._replace(offset=self.affine(sign, pointer.offset, other.affine))
            )
        affine = self.affine(sign, left.affine, right.affine)
        if affine is not None and not left.is_float and not right.is_float:
            return _Value(affine=affine)
        is_float = left.is_float or right.is_float
        kind = KINDS.get(sign, "logic")
        value = self.combine([left, right], "f" + kind if is_float and kind != "logic" else kind)
        return replace(value, is_float=is_float)

    def combine(self, values: list[_Value], kind: str) -> _Value:
        self.operations[kind] += 1
        reads = tuple((read, (*path, kind)) for value in values for read, path in value.reads)[:256]
        depth = (*max((value.depth for value in values), key=len), kind)
        return _Value(reads, depth, None, any(value.is_float for value in values))

    def affine(self, sign: str, left: Affine | None, right: Affine | None) -> Affine | None:
        if left is None or right is None:
            return None
        if sign in ("+", "-"):
            total = Counter(left)
            for name, coefficient in right.items():
                total[name] += coefficient if sign == "+" else -coefficient
            return {name: coefficient for name, coefficient in total.items() if coefficient or not name}
        if sign == "*":
            scale, other = (left, right) if set(left) <= {""} else (right, left)
            if set(scale) <= {""}:
                return {name: coefficient * scale.get("", 0) for name, coefficient in other.items()}
        if sign == "<<" and set(right) <= {""} and 0 <= right.get("", 0) < 32:
            return {name: coefficient << right.get("", 0) for name, coefficient in left.items()}
        if sign == "/" and set(left) | set(right) <= {""} and right.get("", 0):
            return {"": left.get("", 0) // right[""]}
        return None

    def unary(self) -> _Value:
        self.nesting += 1
        if self.nesting > MOST_DEPTH:
            raise self.fail("expressions are nested too deeply")
        try:
            if sign := self.accept("-", "+", "!", "~", "*", "&", "++", "--"):
                value = self.unary()
                if sign == "*" and value.pointer is not None:
                    return self.read(value.pointer.element(({"": 0},)), [])
                if sign == "&" and value.access is not None and value.access.subscripts:
                    *before, last = value.access.subscripts
                    return replace(value, pointer=_Pointer(value.access.name, tuple(before), last))
                if sign == "-":
                    if value.affine is not None and not value.is_float:
                        return _Value(affine={name: -each for name, each in value.affine.items()})
                    return replace(value, access=None)
                if sign in ("++", "--") and value.access is not None:
                    self.step(value, 1 if sign == "++" else -1)
                    return replace(self.scope.values.get(value.access.name, value), access=value.access)
                return value
            if self.peek() == "(" and self.peek(1) in TYPES:
                words = []
                self.take()
                while self.peek() != ")":
                    words.append(self.take())
                self.take()
                value = self.unary()
                if "double" in words or "float" in words:
                    return replace(value, is_float=True, affine=None, access=None)
                return value
            return self.postfix()
        finally:
            self.nesting -= 1

    def step(self, value: _Value, amount: int) -> None:
        if value.access is not None and not value.access.subscripts:
            before = self.scope.values.pop(value.access.name, None)
            if before is not None and before.affine is not None:
                self.scope.values[value.access.name] = _Value(affine=_sum(before.affine, {"": amount}))

    def read(self, access: Access, inside: list[_Value]) -> _Value:
        """Value of an element, or of a variable; `inside` are its subscripts."""
        reads = [(access, ())] + [(read, path) for each in inside for read, path in each.reads]
        return _Value(tuple(reads), (), None, self.scope.is_float.get(access.name, False), access)

    def postfix(self) -> _Value:
        kind, token, _ = self.tokens[self.at] if self.at < len(self.tokens) else ("", "", 0)
        if token == "(":
            self.take()
            value = self.expression()
            self.take(")")
            subscripts, inside = self.subscripts()
            if subscripts and value.pointer is not None:
                return self.read(value.pointer.element(tuple(subscripts)), inside)
            return value
        if kind == "number":
            self.take()
            if re.fullmatch(r"0[xX][0-9a-fA-F]+[uUlL]*|\d+[uUlL]*", token):
                digits = token.rstrip("uUlL")
                return _Value(affine={"": int(digits, 16 if digits[:2] in ("0x", "0X") else 10)})
            return _Value(is_float=True)
        if kind == "text":
            self.take()
            return _Value(affine={"": 0})
        if kind != "name":
            raise self.fail(f"got {shown(token) if token else 'the end of the source'}, want an expression")
        self.take()
        if token == "sizeof":
            return self.size_of()
        if self.peek() == "(":
            return self.call(token)
        name = self.scope.names.get(token, token)
        subscripts, inside = self.subscripts()
        while self.accept("->", "."):
            name = f"{name}.{self.take()}"
            more, others = self.subscripts()
            subscripts, inside = subscripts + more, inside + others
        known = self.scope.values.get(name)
        if known is not None and known.pointer is not None and subscripts:
            value = self.read(known.pointer.element(tuple(subscripts)), inside)
        elif not subscripts and known is not None:
            value = replace(known, access=Access(name))
        else:
            value = self.read(Access(name, tuple(subscripts)), inside)
        access = value.access or Access(name)
        if value.pointer is None and len(access.subscripts) < self.dimensions.get(access.name, 0):
            offset = None if access.name in self.moving else {"": 0}
            value = replace(value, pointer=_Pointer(access.name, access.subscripts, offset))
        if sign := self.accept("++", "--"):
            self.step(value, 1 if sign == "++" else -1)
        return value

    def subscripts(self) -> tuple[list[Affine | None], list[_Value]]:
        """Those ahead, and their values."""
        inside: list[_Value] = []
        while self.accept("["):
            inside.append(self.expression())
            self.take("]")
        return [each.affine for each in inside], inside

    def size_of(self) -> _Value:
        """Bytes of a type; of anything else they are unknown."""
        begin = self.at
        self.skip_group("(", ")")
        words = [text for _, text, _ in self.tokens[begin + 1 : self.at - 1]]
        if not words or any(word not in TYPES for word in words):
            return _Value()
        return _Value(affine={"": next((BYTES[word] for word in words if word in BYTES), 4)})

    def call(self, name: str) -> _Value:
        arguments = []
        self.take("(")
        while self.peek() != ")":
            arguments.append(self.assignment())
            if not self.accept(","):
                break
        self.take(")")
        if name not in self.functions or name in self.calls:
            plain = name if name in FUNCTIONS else name.removesuffix("f")
            kind = FUNCTIONS.get(plain, "logic")
            return self.combine([*arguments, _Value(is_float=plain in FUNCTIONS)], kind)
        parameters, begin = self.functions[name].parameters, self.functions[name].begin
        saved, place, counts = self.scope, self.at, self.operations
        inner = _Scope(dict(saved.values), {}, dict(saved.is_float), dict(saved.middles))
        self.counter += 1
        for (parameter, is_float), argument in zip(parameters, arguments, strict=False):
            pointer = argument.pointer
            is_inside = pointer is not None and (bool(pointer.outer) or pointer.offset != {"": 0})
            is_named = argument.access is not None and not is_inside
            unique = argument.access.name if argument.access and is_named else f"{parameter}.{self.counter}"
            inner.names[parameter] = unique
            inner.is_float[unique] = is_float
            if not is_named:
                inner.values[unique] = argument
        self.scope, self.at, self.operations = inner, begin, Counter()
        self.calls.append(name)
        self.returned = _Value()
        self.statement()
        self.calls.pop()
        self.scope, self.at, self.operations = saved, place, counts + self.operations
        return replace(self.returned, access=None)


def _sum(left: Affine | None, right: Affine | None, sign: int = 1) -> Affine | None:
    if left is None or right is None:
        return None
    total = {name: left.get(name, 0) + sign * right.get(name, 0) for name in [*left, *right]}
    return {name: each for name, each in total.items() if each or not name}


def _powers(first: float, last: float, sign: str, step: str, factor: int) -> float:
    """Iterations of a loop that multiplies its variable, or divides it."""
    if step in ("/", ">>"):
        first, last = last, first
    if factor < 2 or first < 0 or last <= 0:
        return 1.0
    span = math.log(max(last, 1) / max(first, 1), factor)
    is_inclusive = sign in ("<=", ">=") or (step in ("/", ">>") and first < 1)  # the last division leaves 0
    return max(float(math.floor(span + 1e-9) + 1) if is_inclusive else float(math.ceil(span - 1e-9)), 1.0)


def _leaves(body: list[Token]) -> bool:
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
