"""+F as a callback: from its epoch on the encoder stands still and the head goes on, whenever training is resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from reference import rows_in_use
from torch import Tensor

from gst.data import SyntheticPrograms
from gst.nn import SAGE, Head
from gst.training import HeadFinetuning, SegmentDataModule, SegmentTrainingModule
from tests.choices import with_rest

EPOCHS, FINETUNED, STEPS = 4, 2, 3  # steps of an epoch


class Watch(L.Callback):
    """Encoder, head and the steps at which rows of the table were written, as they are after each step."""

    def __init__(self) -> None:
        self.encoders: list[dict[str, Tensor]] = []
        self.heads: list[dict[str, Tensor]] = []
        self.written: list[list[int]] = []

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
        self.encoders.append(copied(pl_module.estimator.encoder))
        self.heads.append(copied(pl_module.estimator.head))
        self.written.append(rows_in_use(pl_module.estimator.table)[2].tolist())


def copied(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


def fit(
    directory: Path, resume: Path | None = None, epochs: int = EPOCHS, finetuned: int = FINETUNED
) -> tuple[SegmentTrainingModule, Watch]:
    """A few epochs on a small program, with a checkpoint after every step."""
    L.seed_everything(0)
    module = SegmentTrainingModule(SAGE(8, 2, num_opcodes=8, config_symbols=7), Head(8), "mean", 2, 0.5, table=True)
    module.configure_optimizers = lambda: torch.optim.Adam(module.parameters(), 0.01)  # type: ignore[method-assign]
    data = SegmentDataModule(
        SyntheticPrograms(num_nodes=300, num_configs=20), str(directory / "stores"), 60, num_valid=4, num_test=4,
        configs_per_graph=4,
    )  # fmt: skip
    watch = Watch()
    checkpoints = ModelCheckpoint(directory / "checkpoints", "{step}", every_n_train_steps=1, save_top_k=-1)
    trainer = L.Trainer(
        max_epochs=epochs, callbacks=[HeadFinetuning(finetuned), watch, checkpoints], logger=False, accelerator="cpu",
        default_root_dir=directory, enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0,
    )  # fmt: skip
    trainer.fit(module, datamodule=data, ckpt_path=resume, weights_only=True)
    return module, watch


def test_from_its_epoch_on_the_encoder_stands_still_and_the_head_goes_on(tmp_path: Path) -> None:
    module, watch = fit(tmp_path)
    frozen = (EPOCHS - FINETUNED) * STEPS
    assert len(watch.encoders) == EPOCHS * STEPS and module.estimator.encoder_frozen
    assert not any(map(same, watch.encoders[: frozen - 1], watch.encoders[1:frozen]))
    assert all(same(watch.encoders[frozen - 1], encoder) for encoder in watch.encoders[frozen:])
    assert not any(map(same, watch.heads, watch.heads[1:]))
    assert not any(parameter.requires_grad for parameter in module.estimator.encoder.parameters())

    # rows of younger encoders are forgotten
    assert min(watch.written[frozen - 1]) <= frozen < min(watch.written[frozen])
    segments = module.trainer.datamodule.parts[0][0][0].num_segments
    assert segments > 2 and len(watch.written[frozen]) >= segments


@pytest.mark.parametrize("step", with_rest([2, 6, 7], [6]))
def test_resumed_finetuning_is_bit_identical(step: int, tmp_path: Path) -> None:
    module, watch = fit(tmp_path)
    resumed, rest = fit(tmp_path, resume=tmp_path / "checkpoints" / f"step={step}.ckpt")
    assert len(rest.heads) == EPOCHS * STEPS - step
    assert all(map(same, rest.heads, watch.heads[step:]))
    assert all(map(same, rest.encoders, watch.encoders[step:]))
    assert rest.written == watch.written[step:]
    assert resumed.estimator.encoder_frozen and resumed.estimator.step == module.estimator.step


def test_a_checkpoint_is_loaded_from_python(tmp_path: Path) -> None:
    """With new modules: the checkpoint holds their weights, the rows of the table and nothing to unpickle."""
    module, _ = fit(tmp_path, epochs=2, finetuned=1)
    path = tmp_path / "checkpoints" / f"step={2 * STEPS}.ckpt"
    modules = {"encoder": SAGE(8, 2, num_opcodes=8, config_symbols=7), "head": Head(8)}
    loaded = SegmentTrainingModule.load_from_checkpoint(path, **modules, weights_only=True)
    graph = module.trainer.datamodule.parts[0][0][0]
    assert loaded.estimator.exact([graph]).equal(module.estimator.exact([graph]))
    for ours, theirs in zip(*(rows_in_use(each.estimator.table) for each in (loaded, module)), strict=True):
        assert ours.equal(theirs)
    assert loaded.estimator.keep_probability == 0.5 and loaded.estimator.encoder_frozen


def test_the_encoder_has_to_learn_first(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2 epochs of finetuning, but max_epochs is 2"):
        fit(tmp_path, epochs=2, finetuned=2)
