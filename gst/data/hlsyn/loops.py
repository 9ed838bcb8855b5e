"""Loop tree of a C kernel with Merlin pragmas: trip counts, nesting, statements and their dependences. The source is
parsed, never compiled or executed."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from gst.files.untrusted import shown

TOKEN = re.compile(
    r"(?P<skip>\s+|//[^\n]*|/\*.*?\*/|\#(?!pragma)[^\n]*)|(?P<pragma>\#pragma[^\n]*)|(?P<number>0[xX][0-9a-fA-F]+[uUlL]*|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[uUlLfF]*)"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<sign><<=|>>=|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[-+*/%&|^~!<>=?:;,.(){}\[\]])"
    r"|(?P<text>\"[^\"\n]*\"|'[^'\n]*')",
    re.DOTALL,
)
CONSTANT = re.compile(r"^[ \t]*#define[ \t]+(\w+)[ \t]+\(?(\d+)\)?[ \t]*$", re.MULTILINE)
PLACE = re.compile(r"auto\{__(PARA|PIPE|TILE)__(\w+)\}")
REDUCTION = re.compile(r"\breduction(?:\s*=\s*(\w+))?")
TYPES = frozenset({
    "void", "char", "short", "int", "long", "float", "double", "signed", "unsigned", "const", "static", "register",
    "volatile", "struct", "size_t", "int8_t", "int16_t", "int32_t", "int64_t", "uint8_t", "uint16_t", "uint32_t",
    "uint64_t",
})  # fmt: skip
BYTES = {"char": 1, "short": 2, "float": 4, "double": 8, "long": 8}
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
    return _Parser(text, where).kernel()


@dataclass
class _Value:
    """Value of an expression while statements are read."""

    reads: tuple[tuple[Access, tuple[str, ...]], ...] = ()
    depth: tuple[str, ...] = ()
    affine: Affine | None = None
    is_float: bool = False
    access: Access | None = None  # if it can be assigned


@dataclass
class _Scope:
    """What is true where a statement stands: values of scalars, names and types, ranges of loop variables."""

    values: dict[str, _Value] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    is_float: dict[str, bool] = field(default_factory=dict)
    middles: dict[str, float] = field(default_factory=dict)


class _Parser:
    def __init__(self, text: str, where: str) -> None:
        self.where = where
        self.tokens: list[tuple[str, str, int]] = []
        position, line, constants = 0, 1, dict(CONSTANT.findall(text))
        while position < len(text):
            match = TOKEN.match(text, position)
            if match is None:
                raise ValueError(f"{where}, line {line}: {shown(text[position : position + 20])} is no C token")
            if match.group() in constants:
                self.tokens.append(("number", constants[match.group()], line))
            elif match.lastgroup != "skip":
                self.tokens.append((str(match.lastgroup), match.group(), line))
            line += match.group().count("\n")
            position = match.end()
        self.at, self.nesting, self.counter, self.guards = 0, 0, 0, 0
        self.functions: dict[str, tuple[list[tuple[str, bool]], int]] = {}
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
        last = ""
        while self.at < len(self.tokens):
            if self.tokens[self.at][0] == "pragma" or self.peek() == ";":
                self.at += 1
            elif self.is_name() and self.peek(1) == "(" and self.peek() not in TYPES:
                last = self.take()
                parameters = self.parameters(is_kernel=True)
                if self.peek() == ";":
                    continue
                self.functions[last] = (parameters, self.at)
                self.skip_group("{", "}")
            elif self.peek() == "{":
                self.skip_group("{", "}")
            else:
                self.at += 1
        if not last or last not in self.functions:
            raise self.fail("there is no function in it")
        parameters, self.at = self.functions[last]
        self.scope.is_float = dict(parameters)
        self.scope.names = {name: name for name, _ in parameters}
        self.calls.append(last)
        self.statement()
        return Kernel(last, self.arrays, self.bytes_of, tuple(self.sink), self.shapes)

    def parameters(self, is_kernel: bool) -> list[tuple[str, bool]]:
        self.take("(")
        self.arrays, self.bytes_of, self.shapes = {}, {}, {}
        parameters: list[tuple[str, bool]] = []
        words: list[str] = []
        sizes: list[int] = []
        has_array = False
        while True:
            token = self.take()
            if token in (",", ")"):
                if words and words != ["void"]:
                    name = words[-1]
                    parameters.append((name, "double" in words or "float" in words))
                    if has_array:
                        self.arrays[name] = math.prod(sizes)
                        self.shapes[name] = tuple(sizes)
                        self.bytes_of[name] = next((BYTES[word] for word in words[:-1] if word in BYTES), 4)
                words, sizes, has_array = [], [], False
                if token == ")":
                    return parameters
            elif token == "[":
                has_array = True
                if self.peek() != "]":
                    size = self.conditional().affine
                    if size is None or set(size) != {""}:
                        raise self.fail("the size of a parameter is no constant")
                    sizes.append(size[""])
                self.take("]")
            elif token == "*":
                has_array = True
            else:
                words.append(token)

    def integer(self, token: str) -> int:
        try:
            return int(token.rstrip("uUlL"), 0)
        except ValueError:
            raise self.fail(f"{shown(token)} is no integer") from None

    # Statements ------------------------------------------------------------------------------------------------------

    def statement(self) -> None:
        self.nesting += 1
        self.statements += 1
        if self.nesting > MOST_DEPTH or self.statements > MOST_STATEMENTS:
            raise self.fail("too many statements, or nested too deeply")
        pragmas = []
        while self.at < len(self.tokens) and (
            self.tokens[self.at][0] == "pragma" or (self.is_name() and self.peek(1) == ":" and self.peek() != "default")
        ):
            if self.tokens[self.at][0] == "pragma":
                pragmas.append(self.take())
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
        elif token == "if":
            self.branch()
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
            while self.accept("*"):
                pass
            name = self.take()
            is_float = "double" in words or "float" in words
            unique = name
            if name in self.scope.is_float and len(self.calls) > 1:
                self.counter += 1
                unique = f"{name}.{self.counter}"
            self.scope.names[name] = unique
            self.scope.is_float[unique] = is_float
            while self.peek() == "[":
                self.skip_group("[", "]")
            if self.accept("="):
                if self.peek() == "{":
                    self.skip_group("{", "}")
                else:
                    self.assign(Access(unique), self.assignment())
            if not self.accept(","):
                break
        self.take(";")

    def branch(self) -> None:
        self.take("if")
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
        variable, start, written = "", None, self.tokens[self.at][1]
        if self.peek() in TYPES:
            while self.peek() in TYPES:
                written = self.take()
            written = self.peek()
            self.scope.names[written] = written
            self.scope.is_float[written] = False
        while self.peek() == "(":  # ((i = 1, x = 1); ...)
            self.take()
        variable = written = self.peek()
        if self.peek() != ";":
            self.expression()
            while self.accept(")"):
                pass
        name = self.scope.names.get(variable, variable)
        start = self.scope.values.get(name, _Value()).affine
        self.take(";")
        counter = self.fresh(variable)
        sign, bound, offset = "", None, 0
        if self.peek() in ("--", "++"):  # for (i = 8; --i; )
            self.take()
            self.take()
            sign, bound, step = "--", {"": 0}, -1
        else:
            self.scope.values[name] = _Value(affine={counter: 1})
            left = self.level(7)
            sign = self.take()
            bound = self.level(7).affine
            offset = 0 if left.affine is None else left.affine.get("", 0)
            step = 1
        self.take(";")
        if self.peek() != ")":
            place = self.at
            text = []
            depth = 0
            while depth or self.peek() != ")":
                token = self.take()
                depth += (token == "(") - (token == ")")
                text.append(token)
            after, self.at = self.at, place
            if "--" in text or "-=" in text:
                step = -1
            if "+=" in text or "-=" in text:
                step *= self.integer(text[-1])
            self.at = after
        self.take(")")
        self.sink = saved
        trips, exact = self.trips(start, bound, sign, step, offset)
        self.loop(name, counter, trips, exact, start, bound, step, pragmas)

    def while_loop(self, pragmas: list[str]) -> None:
        self.take("while")
        self.take("(")
        written = self.peek()
        name = self.scope.names.get(written, written)
        start = self.scope.values.get(name, _Value()).affine
        counts_down = self.is_name() and self.peek(1) == "--"
        while self.peek() != ")":
            self.skip_group("(", ")") if self.peek() == "(" else self.take()
        self.take(")")
        exact = counts_down and start is not None and set(start) <= {""}
        trips = float(start[""]) if exact and start else 1.0
        self.loop(name, self.fresh(written), max(trips, 1.0), exact, start, {"": 0}, -1, pragmas)

    def fresh(self, variable: str) -> str:
        self.counter += 1
        return f"{variable}#{self.counter}"

    def middle(self, affine: Affine | None) -> float | None:
        if affine is None or any(name and name not in self.scope.middles for name in affine):
            return None
        terms = (coefficient * (self.scope.middles[name] if name else 1) for name, coefficient in affine.items())
        return float(sum(terms))

    def trips(
        self, start: Affine | None, bound: Affine | None, sign: str, step: int, offset: int
    ) -> tuple[float, bool]:
        first, last = self.middle(start), self.middle(bound)
        if first is None or last is None or not step:
            return 1.0, False
        if sign == "--":
            return max(first - 1, 1.0), True
        span = (last - offset - first) / step + ((1 if sign in ("<=", ">=") else 0) / abs(step))
        exact = set(start or {}) | set(bound or {}) <= {""}
        return max(float(-(-span // 1)) if exact else span, 1.0), exact

    def loop(
        self, name: str, counter: str, trips: float, exact: bool, start: Affine | None, bound: Affine | None, step: int,
        pragmas: list[str],
    ) -> None:  # fmt: skip
        place, kinds, reduction = "", set(), ""
        for pragma in pragmas:
            if match := PLACE.search(pragma):
                kinds.add(match.group(1))
                place = match.group(2)
            if found := REDUCTION.search(pragma):
                reduction = found.group(1) or "*"
        first = self.middle(start)
        self.scope.middles[counter] = (first or 0.0) + step * (trips - 1) / 2
        outer, self.sink = self.sink, []
        begin = self.at
        written = self.written_names()
        self.at = begin
        before = dict(self.scope.values)
        self.scope.values = {key: value for key, value in before.items() if key not in written}
        self.scope.values[name] = _Value(affine={counter: 1})
        self.statement()
        self.scope.values = {key: value for key, value in before.items() if key not in written and key != name}
        body, self.sink = tuple(self.sink), outer
        self.sink.append(Loop(counter, trips, exact, place, frozenset(kinds), reduction, body))

    def written_names(self) -> set[str]:
        """Scalars that the statement ahead may write."""
        depth, names, place = 0, set(), self.at
        while place < len(self.tokens):
            kind, token, _ = self.tokens[place]
            depth += (token == "{") - (token == "}")
            following = self.tokens[place + 1][1] if place + 1 < len(self.tokens) else ""
            if kind == "name" and (
                following in ("++", "--") or (following.endswith("=") and following not in ("==", "<=", ">=", "!="))
            ):
                names.add(self.scope.names.get(token, token))
            if depth == 0 and token in (";", "}"):
                header = sum({"(": 1, ")": -1}.get(each[1], 0) for each in self.tokens[self.at : place + 1])
                if header == 0:
                    break
            place += 1
        return names

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
            return self.combine([value, one, two], "logic")
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
                if sign == "-":
                    if value.affine is not None and not value.is_float:
                        return _Value(affine={name: -each for name, each in value.affine.items()})
                    return replace(value, access=None)
                if sign in ("++", "--") and value.access is not None:
                    self.step(value)
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

    def step(self, value: _Value) -> None:
        if value.access is not None and not value.access.subscripts:
            self.scope.values.pop(value.access.name, None)

    def postfix(self) -> _Value:
        kind, token, _ = self.tokens[self.at] if self.at < len(self.tokens) else ("", "", 0)
        if token == "(":
            self.take()
            value = self.expression()
            self.take(")")
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
        if self.peek() == "(":
            return self.call(token)
        name = self.scope.names.get(token, token)
        subscripts: list[Affine | None] = []
        inside: list[_Value] = []
        while self.peek() in ("[", "->", "."):
            if self.take() == "[":
                index = self.expression()
                self.take("]")
                subscripts.append(index.affine)
                inside.append(index)
            else:
                name = f"{name}.{self.take()}"
        if not subscripts and name in self.scope.values:
            value = replace(self.scope.values[name], access=Access(name))
        else:
            is_float = self.scope.is_float.get(name, False)
            access = Access(name, tuple(subscripts))
            reads = [(access, ())] + [(read, path) for each in inside for read, path in each.reads]
            value = _Value(tuple(reads), (), None, is_float, access)
        if self.accept("++", "--"):
            self.step(value)
        return value

    def call(self, name: str) -> _Value:
        arguments = []
        self.take("(")
        while self.peek() != ")":
            arguments.append(self.assignment())
            if not self.accept(","):
                break
        self.take(")")
        if name not in self.functions or name in self.calls:
            kind = name if name in ("sqrt", "pow", "exp", "log") else "logic"
            return self.combine([*arguments, _Value(is_float=kind != "logic")], kind)
        parameters, begin = self.functions[name]
        saved, place, counts = self.scope, self.at, self.operations
        inner = _Scope(dict(saved.values), {}, dict(saved.is_float), dict(saved.middles))
        self.counter += 1
        for (parameter, is_float), argument in zip(parameters, arguments, strict=False):
            unique = argument.access.name if argument.access else f"{parameter}.{self.counter}"
            inner.names[parameter] = unique
            inner.is_float[unique] = is_float
            if argument.access is None:
                inner.values[unique] = argument
        self.scope, self.at, self.operations = inner, begin, Counter()
        self.calls.append(name)
        self.returned = _Value()
        self.statement()
        self.calls.pop()
        self.scope, self.at, self.operations = saved, place, counts + self.operations
        return replace(self.returned, access=None)
