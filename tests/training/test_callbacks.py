"""Trainers of others with the backend: Lightning by a callback, Hugging Face by `model.compile`; the same training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from gst.placement.api.backend import backend
from gst.training import PlacedSteps
from gst.util.compiled import compiler
from tests.choices import with_rest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")]


class Regression(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))

    def training_step(self, batch: list[Tensor]) -> Tensor:
        loss = (self.model(batch[0]) - batch[1]).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 0.01)


@pytest.fixture(autouse=True)
def registered() -> None:
    """By name, as the entry point does where this version is installed."""
    from torch._dynamo.backends import registry

    registry._lazy_import()
    registry._BACKENDS.pop("gst", None)
    registry._COMPILER_FNS.pop("gst", None)
    torch._dynamo.register_backend(backend, name="gst")


def fitted(directory: Path, *callbacks: L.Callback) -> tuple[Regression, dict[str, Any]]:
    L.seed_everything(0)
    module, x = Regression(), torch.linspace(-1, 1, 96).reshape(16, 6)
    trainer = L.Trainer(
        max_epochs=2, callbacks=list(callbacks), logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=directory,
    )  # fmt: skip
    trainer.fit(module, DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 4))
    return module, trainer.callback_metrics


@pytest.mark.parametrize("name", with_rest(["aot_eager", "gst"], ["aot_eager"]))
def test_lightning_trains_the_same_module_to_the_same_weights(name: str, tmp_path: Path) -> None:
    want, want_logged = fitted(tmp_path)
    module, logged = fitted(tmp_path, PlacedSteps({"seconds": 0.5} if name == "gst" else None, name))
    assert list(module.state_dict()) == list(want.state_dict())
    torch.testing.assert_close(dict(module.state_dict()), dict(want.state_dict()))
    torch.testing.assert_close(logged, want_logged)
    assert not {"training_step", "log"} & set(vars(module)), "the steps it had"


@pytest.mark.e2e
def test_hugging_face_trains_the_same_model_to_the_same_weights(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra 'models'")
    pytest.importorskip("accelerate", reason="needs the extra 'dev'")
    tokens = torch.arange(64).reshape(8, 8) % 30
    weights = {}
    for compiled in (False, True):
        transformers.set_seed(0)
        config = transformers.GPT2Config(vocab_size=30, n_positions=8, n_embd=8, n_layer=1, n_head=2, use_cache=False)
        model = transformers.GPT2LMHeadModel(config)
        if compiled:
            model.compile(backend="gst", options={"seconds": 0.5})
        options = transformers.TrainingArguments(
            str(tmp_path), max_steps=3, per_device_train_batch_size=4, report_to=[], use_cpu=True, save_strategy="no",
            disable_tqdm=True,
        )  # fmt: skip
        data = [{"input_ids": each, "labels": each} for each in tokens]
        transformers.Trainer(model, options, train_dataset=data).train()
        weights[compiled] = dict(model.state_dict())
    torch.testing.assert_close(weights[True], weights[False], rtol=1e-3, atol=1e-5)
