"""Bad XLA programs: one line that says what is wrong, and little time and memory spent on it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gst.data import read_hlo
from gst.data.hlo.messages import HloModule, ModuleTuningData
from tests.files import FIXTURES

HLO = FIXTURES / "hlo"
HUGE = 10**17


def assert_refused(path: Path, content: bytes, problem: str) -> None:
    path.write_bytes(content)
    started = time.process_time()
    with pytest.raises(ValueError) as caught:
        read_hlo(path)
    assert time.process_time() - started < 5
    message = str(caught.value)
    assert problem in message
    assert message.startswith(f"{path}: ") and "\n" not in message
    assert len(message) < len(str(path)) + 250


LINES = {
    "c = f32[2]{0} add(a, missing)": "line 5: 'missing' is no earlier instruction",
    "c = f32[2]{0} call(a), to_apply=main": "line 5: 'main' is no earlier computation",
    "a = f32[2]{0} negate(a)": "line 5: 'a' is declared twice",
    "c = f32[2]{0} negate a": "line 5: got 'a', want the operands of 'c'",
    "c = negate(a)": "line 5: 'negate' is no type of elements",
    "c = f32[?] negate(a)": "line 5: f32[?] has a size without a bound",
    "c = f32[12345678901234567890]{0} negate(a)": "line 5: '12345678901234567890' is no size",
    f"c = f32[{HUGE},{HUGE}] negate(a)": f"instruction 'c': the sum or the product of its [{HUGE}, {HUGE}] exceeds",
    "c = f32[2,3]{1,1} negate(a)": "line 5: the layout {1,1} does not order 2 dimensions",
    f"c = {'(' * 30_000} negate(a)": "line 5: more than 32 tuples within each other",
    f"c = f32[2]{{0}} negate({'(' * 30_000}": "the text ends within (",
    "c = f32[2]{0} negate(a), window={size=3 sighs=3}": "line 5: the window of 'c' cannot be read",
    "c = f32[2]{0} negate(a), dim_labels=b0_io0->b0": "line 5: the dim_labels of 'c' cannot be read",
    f"c = f32[2]{{0}} negate(a), dimensions={{{'9,' * 10_000}}}": "instruction 'c': it lists 10000 numbers",
    "c = f32[2]{0} negate(a), slice={[0:9], [3]}": "line 5: the slice of 'c' cannot be read",
    "c = f32[2]{0} negate(a), feature_group_count=many": "line 5: the feature_group_count of 'c' cannot be read",
    "c = f32[2]{0} slice-start(a), slice={[0:2]}": "'c' has no tuple of operands and result",
    'c = f32[2]{0} negate(a), metadata={op_name="x}': 'line 5: " is opened and never closed',
}


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_a_bad_line(line: str, tmp_path: Path) -> None:
    text = f"HloModule m\n\nENTRY main {{\n  a = f32[2]{{0}} parameter(0)\n  {line}\n}}\n"
    assert_refused(tmp_path / "bad.txt", text.encode(), LINES[line])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "it holds no XLA program"),
        (b"HloModule m\n", "it has no nodes"),
        (b"HloModule m\nfunction_of {\n}\n", "computation 'function_of' lacks its root"),
        (b"HloModule m\n\nENTRY main {\n  a = f32[] parameter(0)\n", "line 5: got the end of the text, want a name"),
        (b"module @jit_f attributes {mhlo.num_partitions = 1 : i32} {\n", "StableHLO"),
        (b"\x0a\x06broken", "it holds no XLA program"),
        (b"\x1a" * 100_000, "it holds no XLA program"),
    ],
)
def test_what_is_no_program(content: bytes, problem: str, tmp_path: Path) -> None:
    assert_refused(tmp_path / "bad", content, problem)


def _of(module: Any) -> list[Any]:
    return list(module.computations[-1].instructions)


MODULES: dict[str, Callable[[Any], Any]] = {
    "its operand 12345 is no earlier instruction": lambda m: _of(m)[9].operand_ids.append(12345),
    "is no earlier instruction of its computation": lambda m: _of(m)[3].operand_ids.append(_of(m)[7].id),
    "it calls 777, which is no earlier computation": lambda m: _of(m)[3].called_computation_ids.append(777),
    "has the id of another": lambda m: setattr(_of(m)[3], "id", _of(m)[2].id),
    "lacks its root": lambda m: setattr(m.computations[-1], "root_id", 12345),
    "a dimension of size -2": lambda m: _of(m)[3].shape.dimensions.append(-2),
    "exceeds 64 bits": lambda m: _of(m)[3].shape.dimensions.extend([2**62, 2**62]),
    "it lists 100000 numbers": lambda m: _of(m)[3].dynamic_slice_sizes.extend([2**62] * 100_000),
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
