"""Bad XLA programs: one line that says what is wrong, and little time and memory spent on it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gst.data import read_hlo
from gst.data.hlo.modules import HloModule, ModuleTuningData
from tests.files import FIXTURES

HLO = FIXTURES / "hlo"
HUGE = 10**17


def assert_refused(path: Path, content: bytes, problem: str) -> None:
    path.write_bytes(content)
    started = time.process_time()
    with pytest.raises(ValueError) as caught:
        read_hlo(path)
    assert time.process_time() - started < 5  # not of the process that parses text
    message = str(caught.value)
    assert problem in message
    assert message.startswith(f"{path}: ") and "\n" not in message
    assert len(message) < len(str(path)) + 250


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "it holds no XLA program"),
        (b"HloModule m\n", "text that jaxlib does not take"),
        (b"HloModule m\n\nENTRY main {\n  a = f32[] made-up()\n}\n", "text that jaxlib does not take: was parsing 4:"),
        (b"HloModule m\n\nENTRY main {\n  a = f32[?] parameter(0)\n}\n", "sizes must be known"),
        (b"module @jit_f attributes {mhlo.num_partitions = 1 : i32} {\n", "text that jaxlib does not take"),
        (b"\x7fELF\x02\x01\x01\x00" + bytes(100), "it holds no XLA program"),
        (b"PK\x03\x04" + bytes(100), "it holds no XLA program"),
        (b"\x0a\x06broken", "it holds no XLA program"),
        (b"\x1a" * 100_000, "it holds no XLA program"),
    ],
)
def test_what_is_no_program(content: bytes, problem: str, tmp_path: Path) -> None:
    assert_refused(tmp_path / "bad", content, problem)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no such file"):
        read_hlo(tmp_path / "absent.pb")


def _of(module: Any) -> list[Any]:
    return list(module.computations[-1].instructions)


MODULES: dict[str, Callable[[Any], Any]] = {
    "its operand 12345 is no earlier instruction": lambda m: _of(m)[9].operand_ids.append(12345),
    "is no earlier instruction of its computation": lambda m: _of(m)[3].operand_ids.append(_of(m)[7].id),
    "is no earlier instruction of its computation ": lambda m: _of(m)[3].operand_ids.append(_of(m)[3].id),
    "it calls 777, which is no earlier computation": lambda m: _of(m)[3].called_computation_ids.append(777),
    "which is no earlier computation": lambda m: _of(m)[3].called_computation_ids.append(m.computations[-1].id),
    "has the id of another": lambda m: setattr(_of(m)[3], "id", _of(m)[2].id),
    "has the id of another ": lambda m: setattr(m.computations[1], "id", m.computations[0].id),
    "lacks its root": lambda m: setattr(m.computations[-1], "root_id", 12345),
    "it has no opcode": lambda m: setattr(_of(m)[3], "opcode", ""),
    "a dimension of size -2": lambda m: _of(m)[3].shape.dimensions.append(-2),
    "exceeds 64 bits": lambda m: _of(m)[3].shape.dimensions.extend([2**62, 2**62]),
    "it lists 100000 numbers": lambda m: _of(m)[3].dynamic_slice_sizes.extend([2**62] * 100_000),
    "it lists 72 numbers": lambda m: [_of(m)[3].window.dimensions.add() for _ in range(70)],
}  # fmt: skip


@pytest.mark.parametrize("problem", MODULES)
def test_a_bad_module(problem: str, tmp_path: Path) -> None:
    module = HloModule.FromString((HLO / "zoo.pb").read_bytes())
    MODULES[problem](module)
    assert_refused(tmp_path / "bad.pb", module.SerializeToString(), problem.strip())


def _nodes(tuning: Any) -> Any:
    return tuning.runs[0].module_config.layout_config.nodes


TUNINGS: dict[str, Callable[[Any], Any]] = {
    "configurations name node 18446744073709551615": lambda t: t.config_index_to_node.append(2**64 - 1),
    "config_nodes names a node twice": lambda t: _repeat_a_node(t),
    "a run configures 12 nodes, but 11 are": lambda t: _nodes(t).add(),
    "a run configures 11 nodes, but 12 are": lambda t: t.config_index_to_node.append(3),
    "layouts of 4 tensors": lambda t: [_nodes(t)[0].tensors.add() for _ in range(4 - len(_nodes(t)[0].tensors))],
    "has the layout [300]": lambda t: _nodes(t)[0].tensors[0].dims.insert(0, 300),
}


def _repeat_a_node(tuning: Any) -> None:
    tuning.config_index_to_node[0] = tuning.config_index_to_node[1]


@pytest.mark.parametrize("problem", TUNINGS)
def test_bad_measurements(problem: str, tmp_path: Path) -> None:
    tuning = ModuleTuningData.FromString((HLO / "unet_3d_part.pb").read_bytes())
    TUNINGS[problem](tuning)
    assert_refused(tmp_path / "bad.pb", tuning.SerializeToString(), problem)
