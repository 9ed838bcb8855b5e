"""Steps by name, and what is said of a name that is none."""

import sys
from pathlib import Path

import pytest
import torch

from gst.programs import TrainingStep, capture, resolve


def tiny() -> TrainingStep:
    return TrainingStep("tiny", lambda p: (p["w"].sum(), p), ({"w": torch.ones(2)},))


def no_step() -> int:
    return 3


def test_a_function_is_found_by_name() -> None:
    assert capture(resolve(f"{__name__}:tiny")).name == "tiny"


def test_a_workload_takes_arguments() -> None:
    step = resolve("rnnlm:layers=2,hidden=8,steps=3,batch=2,optimizer=adam,seed=0")
    assert step.name == "rnnlm-2" and step.inputs[1].shape == (3, 2) and "steps" in step.inputs[0]
    assert resolve("rnnlm").name == "rnnlm-4"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "gnmt, gpt, inception, moe, rnnlm, transformer_xl, wavenet"),
        ("no_such_module:f", "cannot import 'no_such_module'"),
        ("no_such_module.py:f", "names a file; write no_such_module:f"),
        (f"{__name__}:absent", "has no function 'absent'"),
        (f"{__name__}:no_step", "returned a int"),
        ("rnnlm:depth=3", "has no argument 'depth'; there are layers, hidden"),
        ("rnnlm:8", "'8' is no argument; write name=value"),
        ("rnnlm:layers=", "'layers=' is no argument"),
        ("rnnlm:layers=many", "layers is 'many', want a int"),
        ("rnnlm:layers=-1", "layers is '-1', want a int"),
        ("rnnlm:layers=0", "layers is 0, want at least 1"),
        ("gpt:optimizer=newton", "no optimizer 'newton'; want one of sgd, momentum, adam"),
        ("gpt:width=10", "width 10 cannot be divided among 6 heads"),
    ],
)
def test_a_wrong_name_is_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        resolve(name)
    assert "\n" not in str(caught.value)


def test_a_module_is_found_in_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "steps_of_a_user.py").write_text(
        "import torch\nfrom gst.programs import Step\ndef step(): return Step('mine', torch.relu, (torch.ones(2),))\n"
    )
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    monkeypatch.chdir(tmp_path)
    assert resolve("steps_of_a_user:step").name == "mine"
