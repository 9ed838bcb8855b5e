"""Readers of circuits: hand-worked files, both formats beside each other, and files that are damaged."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from experiments.reproductions.circuits.circuit import Circuit, read_circuit, write_aiger
from experiments.reproductions.circuits.features import circuit_graph
from tests.reproductions.circuits.made_circuits import random_circuit

GATES = """# every kind of gate, out of order
INPUT(a)
INPUT(b)
input( c )
OUTPUT(y)
OUTPUT(z)
OUTPUT(a)
OUTPUT(n)
z = XNOR(x, c)

y = NAND(o, m, c)
x = XOR(a, b, c)
o  = OR(a, nb)
m = NOR(a, b, c)
nb = NOT(b)
n = BUFF(one)
one = vdd
"""


def written(tmp_path: Path, text: str | bytes, name: str = "c.bench") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def all_inputs(count: int) -> np.ndarray:
    rows = np.array(list(product([0, 1], repeat=count)), np.uint64).T
    return (rows << np.arange(rows.shape[1], dtype=np.uint64)).sum(1, dtype=np.uint64)[:, None]


def test_every_kind_of_gate_computes_what_its_name_says(tmp_path: Path) -> None:
    circuit = read_circuit(written(tmp_path, GATES))
    bits = circuit.simulate(all_inputs(3))[:, 0]
    for row, (a, b, c) in enumerate(product([0, 1], repeat=3)):
        values = [int(word >> np.uint64(row)) & 1 for word in bits]
        odd, least_one, none = a ^ b ^ c, a | (1 - b), int(not (a or b or c))
        assert values == [int(not (least_one and none and c)), int(odd == c), a, 1]


def test_and_inverter_graph_by_hand(tmp_path: Path) -> None:
    circuit = read_circuit(
        written(tmp_path, "INPUT(a)\nINPUT(b)\nOUTPUT(o)\nn = NOT(t)\no = AND(n, b)\nt = AND(a, b)\n")
    )
    assert circuit.fanins.tolist() == [[2, 4], [7, 4]] and circuit.outputs.tolist() == [8]
    assert circuit.levels.tolist() == [0, 0, 0, 1, 2]
    assert circuit.reverse_levels.tolist() == [0, 2, 2, 1, 0]
    assert circuit.fanouts.tolist() == [0, 1, 2, 1, 1]


def test_binary_aiger_of_the_report(tmp_path: Path) -> None:
    """The half adder of Biere 2007: 5 inputs' worth of text, ANDs 6, 8, 10 as differences."""
    content = b"aig 5 2 0 2 3\n10\n6\n" + bytes([2, 2, 3, 2, 1, 2])
    circuit = read_circuit(written(tmp_path, content, "c.aig"))
    assert circuit.fanins.tolist() == [[4, 2], [5, 3], [9, 7]]
    total, carry = circuit.simulate(all_inputs(2))[:, 0]
    assert (int(total) & 15, int(carry) & 15) == (0b0110, 0b1000)


def as_bench(circuit: Circuit) -> str:
    signal = lambda literal: f"{'n' if literal & 1 else 'v'}{literal >> 1}"  # noqa: E731
    first = circuit.num_variables - circuit.num_ands
    lines = [f"INPUT(v{1 + i})" for i in range(circuit.num_inputs)] + [
        f"OUTPUT(o{i})" for i in range(len(circuit.outputs))
    ]
    lines += [f"o{i} = BUFF({signal(literal)})" for i, literal in enumerate(circuit.outputs)] + ["v0 = gnd"]
    lines += [f"v{first + k} = AND({signal(a)}, {signal(b)})" for k, (a, b) in enumerate(circuit.fanins)]
    lines += [f"n{v} = NOT(v{v})" for v in range(circuit.num_variables)]
    return "\n".join(lines)


@pytest.mark.parametrize("seed", range(5))
def test_both_formats_hold_the_same_function(tmp_path: Path, seed: int) -> None:
    circuit, inputs = random_circuit(seed), np.random.default_rng(seed).integers(0, 2**64, (6, 4), np.uint64)
    write_aiger(circuit, tmp_path / "c.aig")
    aiger = read_circuit(tmp_path / "c.aig")
    bench = read_circuit(written(tmp_path, as_bench(circuit)))
    assert np.array_equal(np.sort(circuit.fanins), np.sort(aiger.fanins)) and bench.num_ands == circuit.num_ands
    for other in (aiger, bench):
        assert np.array_equal(other.simulate(inputs), circuit.simulate(inputs))
    assert np.array_equal(np.sort(bench.levels), np.sort(circuit.levels))


def test_a_cone_computes_the_same_outputs_with_no_more_than_it_needs() -> None:
    circuit = random_circuit(3)
    inputs = np.random.default_rng(0).integers(0, 2**64, (6, 2), np.uint64)
    part = circuit.cone(np.array([4]))
    used, waiting = set(), [int(circuit.outputs[4]) >> 1]
    while waiting:
        variable = waiting.pop()
        if variable not in used:
            used.add(variable)
            if variable > 6:
                waiting += (circuit.fanins[variable - 7] >> 1).tolist()
    kept = [v - 1 for v in sorted(used) if 1 <= v <= 6]
    assert part.num_ands == sum(v > 6 for v in used) and part.num_inputs == len(kept)
    assert np.array_equal(part.simulate(inputs[kept]), circuit.simulate(inputs)[[4]])


HEAD = "INPUT(a)\nOUTPUT(o)\n"
LITERAL = b"aig 3 2 0 1 1\n6\n"


@pytest.mark.parametrize(
    ("content", "name", "wanted"),
    [
        (HEAD + "o = AND(a, lost)\n", "c.bench", "line 3: signal 'lost' is used, and nothing defines it"),
        (HEAD, "c.bench", "line 2: signal 'o' is used, and nothing defines it"),
        (HEAD + "o = AND(a, b", "c.bench", r"line 3: got 'o = AND\(a, b'"),
        (HEAD + "o = AND(a, t)\nt = OR(o, a)\n", "c.bench", "a cycle"),
        (HEAD + "o = NOT(a)\no = NOT(a)\n", "c.bench", "line 4: signal 'o' is defined twice"),
        (HEAD + "o = MAJ(a, a, a)\n", "c.bench", "line 3: signal 'o' is 'MAJ' of 3 inputs"),
        (HEAD + "o = NOT(a, a)\n", "c.bench", "line 3: signal 'o' is 'NOT' of 2 inputs"),
        ("", "c.bench", "has no OUTPUT"),
        (b"\xff\xfe\x00\x01", "c.bench", "line 1: got"),
        (b"aag 1 1 0 1 0\n2\n2\n", "c.aig", "an ASCII file"),
        (b"aig 9 2 0 1 1\n6\n\x02\x02", "c.aig", "line 1: M is 9, and I \\+ L \\+ A is 3"),
        (b"aig 999999999 2 0 1 999999997\n6\n\x02\x02", "c.aig", "line 1: declares more than"),
        (LITERAL, "c.aig", "AND 0 of 1"),
        (LITERAL + b"\x02", "c.aig", "ends at AND 0 of 1"),
        (LITERAL + b"\x00\x02", "c.aig", "AND 0 of 1 does not come after its inputs"),
        (LITERAL + b"\x81\x81\x81\x81\x81\x01\x02", "c.aig", "a number of more than 5 bytes"),
        (b"aig 3 2 0 1 1\n8\n\x02\x02", "c.aig", "line 2: got '?b?'?8.*want a literal from 0 to 7"),
        (b"blif", "c.blif", "want a file .bench or .aig"),
    ],
)  # fmt: skip
def test_damaged_files_are_refused_in_one_line(tmp_path: Path, content: str | bytes, name: str, wanted: str) -> None:
    path = written(tmp_path, content, name)
    with pytest.raises(ValueError, match=wanted) as caught:
        read_circuit(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_the_graph_of_a_circuit(tmp_path: Path) -> None:
    graph = circuit_graph(read_circuit(written(tmp_path, "INPUT(a)\nINPUT(b)\nOUTPUT(o)\no = XOR(a, b)\n")))
    assert graph.opcodes.tolist() == [0, 1, 1, 4, 2, 5, 7]
    assert graph.num_edges == 7 and graph.edges[0].max() < graph.num_nodes
