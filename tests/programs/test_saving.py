"""A saved program is the program; a damaged one is refused; no file of it can hold code."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gst.lowering.calls import eager
from gst.programs import WORKLOADS, Program, Reference, Step, capture, outputs_differ
from gst.programs.operation import form_of, form_of_target, value_of
from tests.checks import without_checks
from tests.choices import with_rest
from tests.programs.small import SMALL, small_program

SIZES = {"layers": 1, "hidden": 8, "steps": 2, "batch": 2, "vocabulary": 10, "optimizer": "adam"}


@pytest.fixture(scope="module")
def tiny() -> Program:
    with without_checks():
        return capture(WORKLOADS["rnnlm"](**SIZES))


@pytest.fixture
def saved(tiny: Program, tmp_path: Path) -> Path:
    tiny.save(tmp_path / "program")
    return tmp_path / "program"


@pytest.mark.parametrize("name", with_rest(SMALL, ["rnnlm"]))
def test_a_saved_program_is_the_program(name: str, tmp_path: Path) -> None:
    """As captured now; those that other tests load are of the same content."""
    with without_checks():
        program = capture(WORKLOADS[name](**SMALL[name]))
    assert small_program(name).key == program.key
    program.save(tmp_path / "program")
    again = Program.load(tmp_path / "program")
    assert (again.name, again.key, again.outputs) == (program.name, program.key, program.outputs)
    for a, b in zip(again.operations, program.operations, strict=True):
        for field in dataclasses.fields(a):
            if field.name != "constant":
                assert getattr(a, field.name) == getattr(b, field.name), (a.name, field.name)
    assert again.graph.digest() == program.graph.digest()
    assert np.array_equal(again.colocation, program.colocation)
    assert np.array_equal(again.parameter_home, program.parameter_home)
    assert all(torch.equal(a, b) for a, b in zip(again.inputs, program.inputs, strict=True))
    assert outputs_differ(eager(again), eager(program)) is None
    assert again.output_spec == program.output_spec


def test_constants_and_unusual_arguments_are_saved(tmp_path: Path) -> None:
    mask = torch.tensor([True, False, True])
    inputs = torch.tensor([1.0, 2.0, 3.0]), torch.ones(1, 2, 2, 2)

    def function(x: torch.Tensor, image: torch.Tensor) -> dict:
        hidden = x.masked_fill(mask, float("-inf"))
        channels_last = image.clone(memory_format=torch.channels_last).to(torch.float64)
        return {"hidden": hidden, "parts": (x.split([1, 2]), channels_last), "number": 3, "nothing": None}

    program = capture(Step("unusual", function, inputs))
    program.save(tmp_path / "program")
    again = Program.load(tmp_path / "program")
    assert again.key == program.key and outputs_differ(eager(again), eager(program)) is None
    assert again.unflatten(eager(again))["number"] == 3


def test_the_key_is_that_of_the_content(tiny: Program) -> None:
    key = tiny.key
    assert len(key) == 16 and int(key, 16) >= 0
    other_seed = capture(WORKLOADS["rnnlm"](**SIZES, seed=5))
    assert other_seed.key == key, "values of inputs do not count"
    assert dataclasses.replace(tiny, name="another").key == key
    changed = {
        capture(WORKLOADS["rnnlm"](**(SIZES | change))).key
        for change in ({"batch": 3}, {"hidden": 9}, {"optimizer": "sgd"})
    }
    assert len(changed | {key}) == 4
    assert dataclasses.replace(tiny, outputs=tiny.outputs[::-1]).key != key


def test_the_key_sees_values_of_constants_and_arguments() -> None:
    def key(constant: float, factor: float) -> str:
        mask = torch.tensor([constant, 1.0])
        return capture(Step("masked", lambda x: x * mask * factor, (torch.ones(2),))).key

    assert key(2.0, 3.0) == key(2.0, 3.0) and len({key(2.0, 3.0), key(2.5, 3.0), key(2.0, 3.5)}) == 3


@pytest.mark.e2e
@pytest.mark.slow
def test_the_key_is_the_same_in_another_process(tiny: Program) -> None:
    code = f"from gst.programs import WORKLOADS, capture\nprint(capture(WORKLOADS['rnnlm'](**{SIZES!r})).key)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == tiny.key


@pytest.mark.parametrize("file", ["program.json", "graph.npz", "tensors.pt", "checksums.json"])
@pytest.mark.parametrize("damage", ["missing", "cut", "changed", "empty"])
def test_damage_is_refused_in_one_line(saved: Path, file: str, damage: str) -> None:
    path = saved / file
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        middle = len(content) // 2
        changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        path.write_bytes({"cut": content[:middle], "changed": changed, "empty": b""}[damage])
    with pytest.raises(ValueError, match=r"cannot be read|is missing") as caught:
        Program.load(saved)
    assert "\n" not in str(caught.value) and str(saved) in str(caught.value)


def test_another_version_and_an_unknown_operator_are_refused(saved: Path) -> None:
    for old, new, message in (
        ('"schema": 1', '"schema": 99', "schema 99, this version reads 1"),
        ("aten::mm.default", "nowhere::mm.default", "no operator 'nowhere::mm.default' here"),
    ):
        text = (saved / "program.json").read_text()
        _write_checked(saved, text.replace(old, new))
        with pytest.raises(ValueError, match=message):
            Program.load(saved)
        _write_checked(saved, text)


@pytest.mark.parametrize("name", ["x=globals().update(attacked=1)", "x): pass\n  def forward(self", "lambda", ""])
def test_a_name_that_is_no_identifier_is_refused(saved: Path, name: str) -> None:
    """Names of inputs are Python code of a module of torch.fx, where a default argument runs at once."""
    record = json.loads((saved / "program.json").read_text())
    record["operations"][0]["name"] = name
    _write_checked(saved, json.dumps(record))
    with pytest.raises(ValueError, match=r"the name of node 0 is .*, want a Python identifier") as caught:
        Program.load(saved)
    assert "\n" not in str(caught.value)


def _write_checked(saved: Path, text: str) -> None:
    from gst.programs.program import _checksum

    (saved / "program.json").write_text(text)
    checksums = json.loads((saved / "checksums.json").read_text())
    checksums["program.json"] = _checksum(saved / "program.json")
    (saved / "checksums.json").write_text(json.dumps(checksums))


def test_nothing_is_overwritten_and_nothing_half_written_stays(
    tiny: Program, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="is there already"):
        tiny.save(saved)
    monkeypatch.setattr(torch, "save", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        tiny.save(saved.with_name("other"))
    assert [each.name for each in saved.parent.iterdir()] == ["program"]
    with pytest.raises(ValueError, match="no such directory"):
        Program.load(saved.with_name("other"))


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, -2.5, float("inf"), float("-inf"), 1 + 2j, "mean", [1, [2, Reference(3)]], (1, (Reference(0),)),
        torch.float32, torch.bool, torch.strided, torch.channels_last, torch.preserve_format, torch.device("cpu"),
        torch.device("cuda:1"),
    ],
)  # fmt: skip
def test_arguments_survive_json(value: object) -> None:
    again = value_of(json.loads(json.dumps(form_of(value), allow_nan=False)))
    assert again == value and type(again) is type(value)


def test_what_has_no_form_is_refused() -> None:
    with pytest.raises(ValueError, match="an argument is a object"):
        form_of([object()])
    with pytest.raises(ValueError, match="no registered operator"):
        form_of_target(print)
    for form in ({"node": 1, "tuple": []}, {"dtype": "load"}, {"dtype": "strided"}, {"code": "1"}, {}):
        with pytest.raises(ValueError, match="is no kind of argument"):
            value_of(form)
