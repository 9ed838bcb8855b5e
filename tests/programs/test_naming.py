"""Steps by name, and what is said of a name that is none."""

import sys
from pathlib import Path

import pytest
import torch

from gst.lowering.calls import eager
from gst.programs import TrainingStep, capture, outputs_differ, resolve
from gst.programs.workloads.hugging_face import hugging_face
from tests.choices import with_rest


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


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r"needs the extra 'models'"):
        resolve("transformers:gpt2")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sizes"),
    with_rest([
        ("gpt2", {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 50}),
        ("t5", {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "vocab_size": 50}),
        ("vit", {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32,
                 "image_size": 8, "patch_size": 4}),
        ("bert-base-uncased", {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2,
                               "intermediate_size": 32, "vocab_size": 50}),
    ], [("gpt2", {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 50})]),
)  # fmt: skip
def test_a_model_of_transformers_is_captured(name: str, sizes: dict[str, int]) -> None:
    pytest.importorskip("transformers", reason="needs the extra 'models'")
    before = torch.get_rng_state()
    step, again, other = (hugging_face(name, sizes | {"length": 8, "seed": seed}) for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    loss, _ = step.function(*step.inputs)
    assert torch.equal(loss, again.function(*again.inputs)[0]) and loss != other.function(*other.inputs)[0]
    program = capture(step)
    assert outputs_differ(eager(program), torch.utils._pytree.tree_leaves(step.function(*step.inputs))) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("transformers:gpt3", "no model type 'gpt3'; for example"),
        ("transformers:bert-large-uncased", "no model type 'bert-large-uncased'"),
        ("transformers:gpt2:layers=2", "the configuration of 'gpt2' has no 'layers'"),
        ("transformers:gpt2:n_layer=many", "does not take"),
        ("transformers:wav2vec2", "no model of tokens or images"),
    ],
)
def test_a_wrong_model_of_transformers_is_refused(name: str, message: str) -> None:
    pytest.importorskip("transformers", reason="needs the extra 'models'")
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
