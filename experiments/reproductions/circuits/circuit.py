"""And-inverter graphs: readers of `.bench` and binary AIGER files, a writer of AIGER, levels, simulation, output cones.

A literal is 2 v + 1 if variable v is inverted, else 2 v. Variable 0 is the constant false, the next ones are inputs,
the rest ANDs in topological order (Biere, The AIGER And-Inverter Graph Format, 2007). A latch is cut: its output is an
input and its next state an output, as synthesis of combinational logic sees it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt64

from gst.util.untrusted import shown

MOST_BYTES = 1 << 30  # of a file
SUFFIXES = (".bench", ".aig")


@dataclass(frozen=True, eq=False)
class Circuit:
    """And-inverter graph of combinational logic.

    Args:
        num_inputs: primary inputs, which are the variables 1 .. num_inputs.
        fanins: the two literals of each AND; AND k is the variable num_inputs + 1 + k, and both are of smaller ones.
        outputs: the literal of each primary output.

    Examples:
        >>> Circuit(2, np.array([[2, 5]]), np.array([6])).levels.tolist()
        [0, 0, 0, 1]
    """

    num_inputs: int
    fanins: Int64[np.ndarray, "ands 2"]
    outputs: Int64[np.ndarray, " outputs"]

    @property
    def num_ands(self) -> int:
        return len(self.fanins)

    @property
    def num_variables(self) -> int:
        """Constant, inputs and ANDs."""
        return 1 + self.num_inputs + self.num_ands

    @cached_property
    def levels(self) -> Int64[np.ndarray, " variables"]:
        """ANDs on the longest path from an input to each variable, itself among them."""
        return _levels(self.fanins >> 1, self.num_variables)

    @cached_property
    def by_level(self) -> list[Int64[np.ndarray, " ands"]]:
        """The ANDs of each level, from the first on, numbered from 0."""
        order, sizes = np.argsort(levels := self.levels[-self.num_ands :], kind="stable"), np.bincount(levels)[1:]
        return np.split(order, np.cumsum(sizes)[:-1]) if self.num_ands else []

    @cached_property
    def reverse_levels(self) -> Int64[np.ndarray, " variables"]:
        """ANDs on the longest path from each variable to an output, itself not among them."""
        reverse, first = np.zeros(self.num_variables, np.int64), self.num_variables - self.num_ands
        for ands in reversed(self.by_level):
            above = (reverse[first + ands] + 1)[:, None].repeat(2, 1)
            np.maximum.at(reverse, self.fanins[ands] >> 1, above)
        return reverse

    @cached_property
    def fanouts(self) -> Int64[np.ndarray, " variables"]:
        """Uses of each variable by ANDs and outputs."""
        return np.bincount(np.r_[self.fanins.ravel(), self.outputs] >> 1, minlength=self.num_variables)

    def simulate(self, inputs: UInt64[np.ndarray, "inputs words"]) -> UInt64[np.ndarray, "outputs words"]:
        """Values of the outputs, 64 input vectors to a word."""
        values = np.zeros((self.num_variables, inputs.shape[1]), np.uint64)
        values[1 : 1 + self.num_inputs] = inputs
        first = self.num_variables - self.num_ands

        def literals(numbers: np.ndarray) -> np.ndarray:
            return values[numbers >> 1] ^ (-(numbers & 1)).astype(np.uint64)[:, None]

        for ands in self.by_level:
            values[first + ands] = literals(self.fanins[ands, 0]) & literals(self.fanins[ands, 1])
        return literals(self.outputs)

    def cone(self, outputs: Int64[np.ndarray, " chosen"]) -> Circuit:
        """The part of the circuit that some of its outputs depend on; other inputs are left out."""
        first, used = self.num_variables - self.num_ands, np.zeros(self.num_variables, bool)
        used[self.outputs[outputs] >> 1] = True
        for ands in reversed(self.by_level):
            used[self.fanins[ands[used[first + ands]]].ravel() >> 1] = True
        used[0] = True
        number = np.cumsum(used) - 1
        move = lambda literals: 2 * number[literals >> 1] + (literals & 1)  # noqa: E731
        return Circuit(int(used[1:first].sum()), move(self.fanins[used[first:]]), move(self.outputs[outputs]))


def read_circuit(path: Path) -> Circuit:
    """The circuit of a `.bench` or binary AIGER `.aig` file.

    Raises:
        ValueError: the file is missing, truncated, larger than `MOST_BYTES`, of another format, uses a signal that
            nothing defines, or has a cycle; the message names the file and the line (of a binary part: the AND).
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: want a file {' or '.join(SUFFIXES)}")
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path}: {path.stat().st_size} bytes, more than the {MOST_BYTES} that are read")
    content = path.read_bytes()
    return _read_bench(path, content) if path.suffix == ".bench" else _read_aiger(path, content)


# AIGER ---------------------------------------------------------------------------------------------------------------


def write_aiger(circuit: Circuit, path: Path) -> None:
    """Write a binary AIGER file.

    Examples:
        >>> write_aiger(Circuit(2, np.array([[2, 5]]), np.array([6])), Path("and.aig"))
        >>> read_circuit(Path("and.aig")).fanins.tolist()
        [[5, 2]]
    """
    first = circuit.num_variables - circuit.num_ands
    pairs = -np.sort(-circuit.fanins, axis=1)  # the larger one first
    left = 2 * (first + np.arange(circuit.num_ands))
    deltas = np.stack([left - pairs[:, 0], pairs[:, 0] - pairs[:, 1]], axis=1).ravel()
    digits = (deltas[:, None] >> (7 * np.arange(5))) & 127
    lengths = np.maximum(1, np.ceil(np.log2(deltas + 1) / 7)).astype(np.int64)
    more = np.arange(5) < lengths[:, None] - 1
    coded = (digits | (more << 7))[np.arange(5) < lengths[:, None]].astype(np.uint8)
    numbers = [circuit.num_variables - 1, circuit.num_inputs, 0, len(circuit.outputs), circuit.num_ands]
    lines = [f"aig {' '.join(map(str, numbers))}", *map(str, circuit.outputs.tolist()), ""]
    path.write_bytes("\n".join(lines).encode() + coded.tobytes())


def _read_aiger(path: Path, content: bytes) -> Circuit:
    header = content.partition(b"\n")[0]
    if not re.fullmatch(rb"aig( \d{1,9}){5}( 0){0,4}\r?", header):
        wanted = "`aig M I L O A` without properties; an ASCII file (aag) is converted with aigtoaig"
        raise ValueError(f"{path}, line 1: got {shown(header[:40])}, want {wanted}")
    most, num_inputs, num_latches, num_outputs, num_ands = map(int, header.split()[1:6])
    if most != num_inputs + num_latches + num_ands:
        raise ValueError(f"{path}, line 1: M is {most}, and I + L + A is {num_inputs + num_latches + num_ands}")
    num_lines = 1 + num_latches + num_outputs
    if num_lines > len(content) or 2 * num_ands > len(content):
        raise ValueError(f"{path}, line 1: declares more than the {len(content)} bytes of the file; it is cut off")
    lines = content.split(b"\n", num_lines)
    literals = []
    for number, line in enumerate(lines[1:num_lines], start=2):
        word = line.split()[0] if line.split() else b""
        if not re.fullmatch(rb"\d{1,10}", word) or int(word) > 2 * most + 1:
            raise ValueError(f"{path}, line {number}: got {shown(line[:40])}, want a literal from 0 to {2 * most + 1}")
        literals.append(int(word))
    if len(lines) <= num_lines:
        raise ValueError(f"{path}, line {len(lines)}: the file ends after {len(lines) - 1} of {num_lines} lines")
    deltas = _decoded(path, lines[num_lines], 2 * num_ands).reshape(-1, 2)
    left = 2 * (1 + num_inputs + num_latches + np.arange(num_ands))
    larger = left - deltas[:, 0]
    fanins = np.stack([larger, larger - deltas[:, 1]], axis=1)
    wrong = np.flatnonzero((deltas[:, 0] < 1) | (fanins.min(1) < 0))
    if len(wrong):
        raise ValueError(f"{path}: AND {wrong[0]} of {num_ands} does not come after its inputs; the file is damaged")
    return Circuit(num_inputs + num_latches, fanins, np.array(literals, np.int64))


def _decoded(path: Path, content: bytes, count: int) -> Int64[np.ndarray, " count"]:
    """Numbers of seven bits a byte, least ones first; the last byte of each is below 128."""
    octets = np.frombuffer(content, np.uint8, min(len(content), 5 * count))
    ends = np.flatnonzero(octets < 128)[:count]
    if len(ends) < count:
        raise ValueError(f"{path}: the file ends at AND {len(ends) // 2} of {count // 2}")
    if not count:
        return np.zeros(0, np.int64)
    starts = np.r_[0, ends[:-1] + 1]
    place = np.arange(ends[-1] + 1) - np.repeat(starts, ends + 1 - starts)
    if place.max() > 4:
        raise ValueError(f"{path}: AND {np.searchsorted(ends, place.argmax()) // 2} has a number of more than 5 bytes")
    digits = (octets[: ends[-1] + 1] & 127).astype(np.int64) << (7 * place)
    return np.add.reduceat(digits, starts)


# bench ---------------------------------------------------------------------------------------------------------------

_NAME = r"[^\s()=,#]+"
_LINE = re.compile(
    rf"^[ \t]*(?:(INPUT|OUTPUT)[ \t]*\([ \t]*({_NAME})[ \t]*\)"
    rf"|({_NAME})[ \t]*=[ \t]*(?:(\w+)[ \t]*\(([^()\n]*)\)|(vdd|gnd)))[ \t\r]*$",
    re.MULTILINE | re.IGNORECASE,
)
_ARITY = dict.fromkeys(("NOT", "BUF", "BUFF", "DFF"), 1)
_ARITY |= dict.fromkeys(("AND", "NAND", "OR", "NOR", "XOR", "XNOR"), 0)  # any


def _defined(port: str, name: str, gate: str) -> list[str]:
    return [gate] if gate else [name] if port.upper() == "INPUT" else []


class _Builder:
    """Signals of a bench file as they are read: each is an input, an AND of two literals, or a literal under a name."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.text = path, text
        self.number: dict[str, int] = {}  # of each signal
        self.ands: list[tuple[int, int, int]] = []  # signal, two literals
        self.aliases: list[tuple[int, int]] = []  # signal, literal
        self.count = 1  # signal 0 is the constant
        self.owner: dict[int, str] = {}  # the name of the gate that an AND without a name is part of

    def fail(self, name: str, problem: str) -> ValueError:
        """The error of a signal, at the last line that defines it, or else the first that names it."""
        places = list(re.finditer(rf"(?<![^\s(,=]){re.escape(name)}(?![^\s),=])", self.text))
        defining = [place for place in places if re.match(r"[ \t]*=", self.text[place.end() :])] or places[:1]
        line = self.text.count("\n", 0, defining[-1].start()) + 1
        return ValueError(f"{self.path}, line {line}: signal {shown(name)} {problem}")

    def define(self, names: Sequence[str]) -> None:
        """Number inputs and gates; each name is new."""
        before = len(self.number)
        self.number.update(zip(names, range(self.count, self.count + len(names)), strict=True))
        self.count += len(names)
        if len(self.number) != before + len(names):
            lines = Counter(
                name for port, name, gate, *_ in _LINE.findall(self.text) for name in _defined(port, name, gate)
            )
            raise self.fail(max(lines, key=lines.__getitem__), "is defined twice")

    def name_of(self, signal: int) -> str:
        """Return the name of a signal, or of its gate."""
        return self.owner.get(signal) or next(name for name, number in self.number.items() if number == signal)

    def and_of(self, left: int, right: int) -> int:
        """Return the literal of a new conjunction."""
        self.ands.append((self.count, left, right))
        self.count += 1
        return 2 * (self.count - 1)

    def gate(self, kind: str, literals: list[int]) -> int:
        """The literal of a gate of one or more inputs, as a balanced tree of ANDs."""
        if kind in ("XOR", "XNOR"):
            while len(literals) > 1:
                left, right, *rest = literals
                either = self.and_of(left ^ 1, right ^ 1)
                literals = [*rest, self.and_of(either ^ 1, self.and_of(left, right) ^ 1)]
            return literals[0] ^ (kind == "XNOR")
        inverted = kind in ("OR", "NOR")
        literals = [literal ^ inverted for literal in literals]
        while len(literals) > 1:
            left, right, *rest = literals
            literals = [*rest, self.and_of(left, right)]
        return literals[0] ^ (kind in ("NAND", "OR"))


def _read_bench(path: Path, content: bytes) -> Circuit:
    text = content.decode("latin-1")
    matches = _LINE.findall(text)
    if len(matches) != sum(1 for line in text.split("\n") if line.strip() and line.lstrip()[0] != "#"):
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip() and line.lstrip()[0] != "#" and not _LINE.match(line):
                wanted = "want INPUT(a), OUTPUT(a) or a = GATE(b, c)"
                raise ValueError(f"{path}, line {number}: got {shown(line.strip()[:60])}, {wanted}")
    build = _Builder(path, text)
    inputs = [name for port, name, *_ in matches if port.upper() == "INPUT"]
    outputs = [name for port, name, *_ in matches if port.upper() == "OUTPUT"]
    gates = [(name, kind.upper() or level.lower(), words) for _, _, name, kind, words, level in matches if name]
    build.define(inputs)
    build.define([name for name, _, _ in gates])
    number = build.number
    latches: list[int] = []
    states: list[int] = []
    try:
        for name, kind, words in gates:
            target = number[name]
            if kind in ("vdd", "gnd"):
                build.aliases.append((target, int(kind == "vdd")))
                continue
            literals = [2 * number[word.strip()] for word in words.split(",")]
            if kind == "AND" and len(literals) == 2:
                build.ands.append((target, literals[0], literals[1]))
            elif kind == "NOT" and len(literals) == 1:
                build.aliases.append((target, literals[0] ^ 1))
            elif kind not in _ARITY or (_ARITY[kind] and len(literals) != _ARITY[kind]):
                problem = f"is {shown(kind)} of {len(literals)} inputs, want one of {', '.join(_ARITY)}"
                raise build.fail(name, problem)
            elif kind == "DFF":
                latches.append(target)
                states.append(literals[0])
            elif _ARITY[kind]:
                build.aliases.append((target, literals[0]))
            else:
                before = build.count
                build.aliases.append((target, build.gate(kind, literals)))
                build.owner.update(dict.fromkeys(range(before, build.count), name))
        ends = [2 * number[name] for name in outputs] + states
    except KeyError as error:
        raise build.fail(error.args[0].strip(), "is used, and nothing defines it; the file may be cut off") from None
    if not ends:
        raise ValueError(f"{path}: it has no OUTPUT(...); the file is empty or cut off")
    sources = [*range(1, 1 + len(inputs)), *latches]
    return _numbered(build, sources, np.array(ends, np.int64))


def _numbered(build: _Builder, sources: list[int], ends: Int64[np.ndarray, " outputs"]) -> Circuit:
    """Signals become variables: names of one literal are one, and ANDs come after what they use."""
    literal_of = 2 * np.arange(build.count)
    if build.aliases:
        targets, literals = np.array(build.aliases, np.int64).T
        literal_of[targets] = literals
        for _ in range(build.count.bit_length()):
            literal_of = literal_of[literal_of >> 1] ^ (literal_of & 1)
    ands = np.array(build.ands, np.int64).reshape(-1, 3)
    rank = np.full(build.count, -1)
    rank[np.r_[0, sources]] = np.arange(1 + len(sources))
    rank[ands[:, 0]] = 1 + len(sources) + np.arange(len(ands))
    lost = np.flatnonzero(rank[literal_of >> 1] < 0)
    if len(lost):
        raise build.fail(build.name_of(int(lost[0])), "is defined by itself: a cycle")
    fanin = literal_of[ands[:, 1:] >> 1] ^ (ands[:, 1:] & 1)
    fanin = 2 * rank[fanin >> 1] + (fanin & 1)
    levels = _levels(fanin >> 1, 1 + len(sources) + len(ands))
    if len(levels) and levels.min() < 0:
        circular = ands[levels[-len(ands) :] < 0, 0].tolist()
        raise build.fail(build.name_of(circular[0]), "depends on itself, or on one that does: a cycle")
    first = 1 + len(sources)
    order = np.argsort(levels[first:], kind="stable")
    place = np.arange(first + len(ands))
    place[first + order] = first + np.arange(len(ands))
    ends = literal_of[ends >> 1] ^ (ends & 1)
    renamed = lambda literals: 2 * place[literals >> 1] + (literals & 1)  # noqa: E731
    return Circuit(len(sources), renamed(fanin[order]), renamed(2 * rank[ends >> 1] + (ends & 1)))


def _levels(inputs: Int64[np.ndarray, "ands 2"], num_variables: int) -> Int64[np.ndarray, " variables"]:
    """Level of each variable, of which the last ones are the ANDs, in any order; -1 on cycles and behind them. Level by
    level, each AND once its last input is there."""
    levels, first = np.zeros(num_variables, np.int64), num_variables - len(inputs)
    levels[first:] = -1
    users = np.repeat(np.arange(first, num_variables), 2)
    order = np.argsort(inputs.ravel(), kind="stable")
    users = users[order]
    starts = np.searchsorted(inputs.ravel()[order], np.arange(num_variables + 1))
    missing = np.full(num_variables, 2)
    ready, level = np.arange(first), 0
    while len(ready):
        counts = starts[ready + 1] - starts[ready]
        begins = np.repeat(starts[ready] - np.cumsum(counts) + counts, counts)
        reached = users[begins + np.arange(counts.sum())]
        np.subtract.at(missing, reached, 1)
        ready, level = np.unique(reached[missing[reached] == 0]), level + 1
        levels[ready] = level
    return levels
