"""Options of Lightning's trainer that reach into the data: graphs come as from a plain DataLoader."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import (
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    StochasticWeightAveraging,
    WeightAveraging,
)
from made_targets import small
from torch.utils.data import DataLoader, TensorDataset

from gst import Graph, segment
from gst.data import GraphSource
from gst.data.loader import Step
from gst.method.draws import Peers
from gst.nn import Head
from gst.training import SegmentDataModule, SegmentTrainingModule
from tests.choices import with_rest
from tests.outcomes import same

NUM_GRAPHS, HELD_OUT, TOGETHER = 14, 3, 2


class Chains(GraphSource):
    """Chains of 12 nodes, named by their number."""

    def __iter__(self) -> Iterator[Graph]:
        for number in range(NUM_GRAPHS):
            x = np.random.default_rng(number).normal(size=(12, 3)).astype(np.float32)
            edges = np.stack([np.arange(11), np.arange(1, 12)])
            yield Graph(x, edges, targets=x.mean(keepdims=True)[0].astype(np.float64), name=str(number))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 8)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.layer(x).relu()


class Noisy(Net):
    """With dropout."""

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(super().forward(x, edge_index), training=self.training)


class Plain(L.LightningModule):
    """The same training with PyTorch's loader."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        return self.layer(batch[0]).square().mean()

    def validation_step(self, batch: Any, index: int) -> None:
        self.layer(batch[0])

    def train_dataloader(self) -> DataLoader:
        return DataLoader(TensorDataset(torch.arange(NUM_GRAPHS - 2.0 * HELD_OUT)[:, None]), TOGETHER, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(TensorDataset(torch.arange(float(HELD_OUT))[:, None]), 1)


class Watch(L.Callback):
    """Graphs of the `steps` of each epoch, and `events`, which do not depend on the order of graphs."""

    def __init__(self) -> None:
        self.steps: dict[int, list[list[int]]] = {}
        self.events: list[Any] = []

    def on_train_batch_start(self, trainer: L.Trainer, module: Any, batch: Any, index: int) -> None:
        self.steps.setdefault(trainer.current_epoch, []).append(_numbers(batch))
        self.events.append(("train", trainer.current_epoch, index, trainer.global_step))

    def on_validation_batch_start(self, trainer: L.Trainer, module: Any, batch: Any, index: int, *_: Any) -> None:
        self.events.append(("validate", trainer.sanity_checking, index, trainer.global_step))


def _numbers(batch: Any) -> list[int]:
    return [int(each.name) for each in batch.graphs] if hasattr(batch, "graphs") else batch[0].flatten().int().tolist()


def fit(
    module: L.LightningModule, folder: Path, together: int = TOGETHER, resume: Path | None = None, **options: Any
) -> Watch:
    L.seed_everything(0)
    watch, more = Watch(), options.pop("callbacks", [])
    module.configure_optimizers = lambda: torch.optim.SGD(module.parameters(), 0.01)
    data = SegmentDataModule(
        Chains(), str(folder / "stores"), max_nodes=5, split_by="graphs", num_valid=HELD_OUT, num_test=HELD_OUT,
        graphs_per_step=together,
    )  # fmt: skip
    trainer = L.Trainer(
        **{"max_epochs": 4, "num_sanity_val_steps": 0} | options, callbacks=[watch, *more], logger=False,
        accelerator="cpu", default_root_dir=folder, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module, datamodule=None if isinstance(module, Plain) else data, ckpt_path=resume, weights_only=True)
    return watch


def segmented(encoder: type[torch.nn.Module] = Net, **options: Any) -> SegmentTrainingModule:
    torch.manual_seed(0)
    return SegmentTrainingModule(encoder(), Head(8), loss="squared_error", **options)


FLAGS: dict[str, dict[str, Any]] = {
    "none": {},
    "overfit one": {"overfit_batches": 1},
    "overfit half": {"overfit_batches": 0.5},
    "limit train": {"limit_train_batches": 1},
    "limit train share": {"limit_train_batches": 0.5},
    "no training": {"limit_train_batches": 0},
    "limit valid": {"limit_val_batches": 2},
    "no validation": {"limit_val_batches": 0},
    "reload": {"reload_dataloaders_every_n_epochs": 1},
    "reload and limit": {"reload_dataloaders_every_n_epochs": 2, "limit_train_batches": 1},
    "reload and overfit": {"reload_dataloaders_every_n_epochs": 1, "overfit_batches": 1},
    "fast": {"fast_dev_run": True},
    "fast two": {"fast_dev_run": 2},
    "sampler": {"use_distributed_sampler": False},
    "sanity": {"num_sanity_val_steps": 2},
    "sanity all": {"num_sanity_val_steps": -1},
    "accumulate": {"accumulate_grad_batches": 3},
    "schedule": {"callbacks": [GradientAccumulationScheduler({0: 1, 2: 2})]},
    "check within": {"val_check_interval": 0.5},
    "check each": {"val_check_interval": 1},
    "check across": {"val_check_interval": 3, "check_val_every_n_epoch": None},
    "check seldom": {"check_val_every_n_epoch": 2},
    "steps": {"max_epochs": -1, "max_steps": 4},
    "SWA": {"callbacks": [StochasticWeightAveraging(0.01, swa_epoch_start=2)]},
    "averages": {"callbacks": [WeightAveraging()]},
    "EMA": {"callbacks": [EMAWeightAveraging()]},
    "barebones": {"barebones": True},
}


@pytest.mark.parametrize("name", with_rest([*FLAGS], ["overfit one", "reload", "check across", "EMA"]))
def test_graphs_come_as_from_a_plain_loader(name: str, tmp_path: Path) -> None:
    """Steps and validations are the same, and so are the epochs that repeat the steps of another one."""
    plain = fit(Plain(), tmp_path, **FLAGS[name])
    ours = fit(segmented(table=True), tmp_path, **FLAGS[name])
    assert ours.events == plain.events
    assert repeats(ours) == repeats(plain)


def repeats(watch: Watch) -> list[list[bool]]:
    return [[one == other for other in watch.steps.values()] for one in watch.steps.values()]


@pytest.mark.parametrize(
    ("options", "other", "together"),
    [
        ({"accumulate_grad_batches": 2, "overfit_batches": 4}, {"overfit_batches": 2}, 2),
        ({"num_sanity_val_steps": -1, "val_check_interval": 1}, {}, 1),
    ],
    ids=["accumulated", "validated"],
)
def test_weights_are_those_of_a_training_that_does_the_same(
    options: dict[str, Any], other: dict[str, Any], together: int, tmp_path: Path
) -> None:
    """Gradients of two steps are those of one step of twice as many graphs, and validation changes nothing."""
    exact = {"num_fresh": 9} if together > 1 else {"table": True}
    one, two = segmented(**exact), segmented(**exact)
    fit(one, tmp_path, together=1, **options)
    fit(two, tmp_path, together=together, **other)
    for name, weight in two.state_dict().items():
        if isinstance(weight, torch.Tensor):
            torch.testing.assert_close(one.state_dict()[name], weight, msg=name)


def test_a_running_average_is_that_of_the_weights_after_each_step(tmp_path: Path) -> None:
    seen = []

    class Weights(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, module: Any, *_: Any) -> None:
            seen.append(module.estimator.encoder.layer.weight.detach().clone())

    module = segmented(table=True)
    fit(module, tmp_path, callbacks=[Weights(), WeightAveraging()])
    torch.testing.assert_close(module.estimator.encoder.layer.weight, torch.stack(seen).mean(0))


def test_processes_that_would_all_train_on_all_graphs_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--trainer.devices=2", "--trainer.strategy=ddp", "--trainer.use_distributed_sampler=false"]
    assert small("fit", *flags) == 2
    assert "--trainer.use_distributed_sampler false is for samplers" in capsys.readouterr().err


def test_a_resumed_training_draws_the_random_numbers_of_one_that_never_stopped(tmp_path: Path) -> None:
    class Save(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
            if trainer.global_step == 6:  # within the second epoch
                trainer.save_checkpoint(tmp_path / "6.ckpt")

    whole, resumed = segmented(Noisy, table=True), segmented(Noisy, table=True)
    fit(whole, tmp_path, callbacks=[Save()])
    fit(resumed, tmp_path, resume=tmp_path / "6.ckpt")
    assert same(whole.state_dict(), resumed.state_dict())


def test_a_process_counts_by_its_share_of_the_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    module, graphs = segmented(num_fresh=9), tuple(segment(graph, 5) for graph, _ in zip(Chains(), "123", strict=False))
    configs, targets = torch.zeros(3, 1, dtype=torch.int64), torch.arange(3.0).double()[:, None]
    monkeypatch.setattr(module, "log", lambda *_, **__: None)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda together: None)
    losses = []
    for peers in (None, Peers(0, 2, graphs, configs, targets)):
        losses.append(module.training_step(Step(graphs[::2], configs[::2], targets[::2], peers=peers), 0).item())
    assert losses[1] == pytest.approx(losses[0] * 2 * 2 / 3)
