"""`gst fit` by padded steps trains as it does without them, step for step; where it cannot, it says why."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor, nn
from torch.nn.utils import prune

from gst.data import SyntheticPrograms
from gst.data.source import GraphSource
from gst.graphs.graph import Graph
from gst.nn import SAGE, Head, plans
from gst.training import HeadFinetuning, PlacedSteps, SegmentDataModule, SegmentTrainingModule, recorded_step
from gst.training.recorded_step import ACCUMULATES, PaddedSteps
from tests.choices import with_rest
from tests.method.host_waits import TakesSegments

VARIANTS: dict[str, dict[str, Any]] = {
    "GST-One": {"estimate": "fresh", "pooling": "max"},
    "dropout": {"table": True, "keep_probability": 0.5, "num_fresh": 2},
    "difference": {"table": True, "pooling": "sum", "loss": "log_runtime"},
    "list_mle": {"estimate": "fresh", "loss": "list_mle", "num_fresh": 9},
}
EPOCHS, STEPS = 2, 3  # lists of 5, 5, 5 and 2 configurations of each of two graphs make steps of 3, 3 and 2 of them


class Messages(nn.Module):
    """An encoder of somebody else."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.others = nn.LazyLinear(8), nn.Linear(8, 8)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.own(x.sign()).relu()
        return h + self.others(torch.zeros_like(h).index_add(0, edge_index[1], h[edge_index[0]]))


class Watch(L.Callback):
    """Losses, learning rates and parameters after each step."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.rates: list[float] = []
        self.parameters: list[list[Tensor]] = []
        self.was_padded: list[bool] = []
        self.module: Any = None

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
        self.module = pl_module
        self.losses.append(float(trainer.callback_metrics["train/loss"]))
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])
        self.parameters.append([each.detach().clone() for each in pl_module.parameters()])
        self.was_padded.append(pl_module._padded is not None and pl_module._padded.has_gradients)


def fit(
    directory: Path, record_step: bool | None, variant: str = "dropout", resume: Path | None = None,
    encoder: Callable[[], nn.Module] = lambda: SAGE(8, 2, num_opcodes=8, config_symbols=7),
    callbacks: list[L.Callback] | None = None, head: Callable[[], nn.Module] = lambda: Head(8),
    kind: type[SegmentTrainingModule] = SegmentTrainingModule, saves: bool = False, **options: Any,
) -> Watch:  # fmt: skip
    """Two epochs on two small programs of different sizes; it `saves` a checkpoint after every step."""
    L.seed_everything(0)
    module = kind(encoder(), head(), record_step=record_step, **VARIANTS[variant])

    def configure_optimizers() -> Any:
        optimizer = torch.optim.SGD(module.parameters(), 0.01, momentum=0.9)  # Adam makes steps of rounding errors
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]

    module.configure_optimizers = configure_optimizers  # type: ignore[method-assign]
    data = SegmentDataModule(
        Programs(), str(directory / "stores"), 60, num_valid=2, num_test=1, configs_per_graph=5, graphs_per_step=3
    )
    watch = Watch()
    checkpoints = [ModelCheckpoint(directory / "checkpoints", "{step}", every_n_train_steps=1, save_top_k=-1)]
    trainer = L.Trainer(
        max_epochs=EPOCHS, callbacks=[watch, *checkpoints[: int(saves)], *(callbacks or [])], logger=False,
        accelerator="cpu", enable_checkpointing=saves, default_root_dir=directory, enable_progress_bar=False,
        enable_model_summary=False,
        **{"gradient_clip_val": 1.0} | options,
    )  # fmt: skip
    trainer.fit(module, datamodule=data, ckpt_path=resume, weights_only=True)
    return watch


class Programs(GraphSource):
    """Synthetic programs of different sizes with 20 configurations."""

    shift = 0.0  # of all targets

    def __iter__(self) -> Iterator[Graph]:
        for nodes in (300, 130):
            for graph in SyntheticPrograms(num_nodes=nodes, num_configs=20, seed=nodes):
                yield replace(graph, targets=graph.targets + self.shift)


def listen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is logged of padded steps from now on."""
    said: list[str] = []
    monkeypatch.setattr(recorded_step, "rank_zero_info", said.append)
    return said


def assert_same(ours: Watch, theirs: Watch, after: int = 0) -> None:
    """To the rounding of other shapes of matrices."""
    assert len(theirs.losses) == EPOCHS * STEPS and len(ours.losses) == EPOCHS * STEPS - after
    assert ours.losses == pytest.approx(theirs.losses[after:], rel=1e-4)
    assert ours.rates == theirs.rates[after:] and len(set(theirs.rates)) > 1
    for one, other in zip(ours.parameters, theirs.parameters[after:], strict=True):
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


@pytest.fixture(scope="module")
def unpadded(tmp_path_factory: pytest.TempPathFactory) -> Watch:
    return fit(tmp_path_factory.mktemp("unpadded"), False)


@pytest.mark.parametrize("variant", with_rest(VARIANTS, ["GST-One", "dropout", "difference"]))
def test_padded_steps_are_the_steps_of_the_training(variant: str, tmp_path: Path) -> None:
    padded, eager = fit(tmp_path, True, variant), fit(tmp_path, False, variant)
    assert all(padded.was_padded) and not any(eager.was_padded)
    assert_same(padded, eager)
    assert len(set(eager.losses)) == EPOCHS * STEPS
    assert padded.module._padded is None, "nothing is left after the training"
    assert all(parameter.grad is None for parameter in padded.module.parameters())


def test_steps_that_are_too_large_for_their_padding_are_not_padded(
    unpadded: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounds from a single step, less a part of it: some steps of the training exceed them."""
    monkeypatch.setattr(plans, "SMALL", 0)
    monkeypatch.setattr(plans, "MARGIN", 0.75)
    monkeypatch.setattr(plans, "DRAWN", 1)
    said = listen(monkeypatch)
    padded = fit(tmp_path, True)
    assert 0 < sum(padded.was_padded) < EPOCHS * STEPS
    assert sum("too large for the size" in each for each in said) == 1
    assert_same(padded, unpadded)


def test_a_resumed_training_by_padded_steps_is_bit_identical(unpadded: Watch, tmp_path: Path) -> None:
    """From within an epoch, and from its end; also to steps that are not padded, to rounding."""
    whole = fit(tmp_path, True, saves=True)
    for step in (2, 3):
        resumed = fit(tmp_path / str(step), True, resume=tmp_path / "checkpoints" / f"step={step}.ckpt")
        assert resumed.losses == whole.losses[step:]
        for one, other in zip(resumed.parameters, whole.parameters[step:], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
        assert_same(resumed, unpadded, after=step)


def test_finetuning_of_the_head_goes_on_without_padding(tmp_path: Path) -> None:
    padded, eager = (fit(tmp_path, each, callbacks=[HeadFinetuning(1)]) for each in (True, False))
    assert padded.was_padded == [True] * STEPS + [False] * STEPS
    assert_same(padded, eager)


class Placing(PlacedSteps):
    """It compiles nothing here."""

    setup = teardown = L.Callback.setup


class NormedConfigs(nn.Module):
    """A head that normalises over the configurations of a step."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, pooled: Tensor) -> Tensor:
        return self.norm(pooled.flatten(0, -2)).view_as(pooled)


class OwnForward(SegmentTrainingModule):
    def forward(self, step: Any) -> Tensor:
        return 2 * super().forward(step)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "accumulation": ({"accumulate_grad_batches": 2}, "the trainer accumulates them"),
    "no plans": (
        {"encoder": lambda: TakesSegments(SAGE(8, 1, num_opcodes=8, config_symbols=7))},
        "needs plans of fixed shapes of an encoder that takes a SegmentBatch",
    ),
    "ddp": ({"strategy": "ddp"}, "on one device, not for strategy DDPStrategy"),
    "statistics": ({"head": lambda: nn.Sequential(NormedConfigs(8), Head(8))}, "BatchNorm of the head"),
    "a subclass": ({"kind": OwnForward}, "OwnForward has its own forward"),
    "placed": ({"callbacks": [Placing()]}, "PlacedSteps runs the steps"),
}


def test_losses_that_a_scaler_scales_are_not_padded() -> None:
    """Lightning makes a scaler on a GPU alone."""
    trainer: Any = SimpleNamespace(precision="16-mixed", callbacks=[], strategy=SingleDeviceStrategy("cpu"))
    said = recorded_step._refusal_of_training(trainer, SimpleNamespace(world_size=1), [])  # type: ignore[arg-type]
    assert said == "they compute in 32-true or bf16-mixed, and --trainer.precision is 16-mixed"


@pytest.mark.parametrize("case", REFUSED)
def test_what_padded_steps_cannot_do_is_said_and_trained_without_them(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = listen(monkeypatch)
    options, words = REFUSED[case]
    threads = torch.get_num_threads()
    watch = fit(tmp_path, True, limit_val_batches=0, limit_train_batches=1, **options)
    if dist.is_initialized():
        dist.destroy_process_group()
    torch.set_num_threads(threads)  # ddp sets it
    assert not any(watch.was_padded) and len(watch.losses) == EPOCHS
    assert len(said) == 1 and said[0].startswith("steps are neither padded nor recorded: ") and words in said[0]


def test_nobody_pads_unasked_on_a_cpu_and_the_reason_for_not_recording_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = listen(monkeypatch)
    assert inspect.signature(SegmentTrainingModule).parameters["record_step"].default is None
    fit(tmp_path, None)
    assert said == []
    fit(tmp_path, True)
    assert said == ["steps are padded, and not recorded: graphs are recorded on an accelerator; the model is on cpu"]


@pytest.mark.parametrize("most", [1.0, 9.0])
def test_unasked_steps_on_an_accelerator_are_padded_unless_they_grow_too_much(
    most: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = listen(monkeypatch)
    monkeypatch.setattr(recorded_step, "MOST_PADDING", most)

    class Unasked(L.Callback):
        def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
            loader = trainer.train_dataloader
            steps = PaddedSteps.of(trainer, pl_module.estimator, pl_module._loss, loader, [], is_asked=False)
            assert (steps is None) == (most < 9)

    fit(tmp_path, None, limit_val_batches=0, limit_train_batches=1, callbacks=[Unasked()])
    refused = re.fullmatch(r".*they would be [1-3]\.\d times as large; --model.record_step true records .*", said[0])
    assert len(said) == 1 and bool(refused) == (most < 9), said


class AfterTwo(L.Callback):
    """Changes a training after its second step, in the middle of an epoch."""

    def __init__(self, change: Callable[[L.Trainer, Any], object]) -> None:
        self.change = change

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
        if trainer.global_step == 2:
            self.change(trainer, pl_module)


def lose_a_tensor(trainer: L.Trainer, module: Any) -> None:
    """As if the graphs of the third step had other data."""
    if (fixed := module._padded and module._padded.step) is not None:
        del fixed.step._fixed._packed.layout["inclusion"]


CHANGES: dict[str, tuple[Callable[[L.Trainer, Any], object], str]] = {
    "accumulate": (lambda trainer, module: vars(trainer).update(accumulate_grad_batches=2), ACCUMULATES),
    "freeze parameters": (lambda trainer, module: module.estimator.encoder.requires_grad_(False), ""),
    "prune": (
        lambda trainer, module: prune.l1_unstructured(module.estimator.encoder.others, "weight", amount=0.5),
        "runs no hooks, and module 'encoder.others' has one",
    ),
    "lose a tensor": (lose_a_tensor, "inclusion of a step has the shape"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_training_that_changes_on_its_way_goes_on(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step that was read before the change is trained unpadded, too."""
    said, (action, words) = listen(monkeypatch), CHANGES[change]
    ours, theirs = (fit(tmp_path, each, encoder=Messages, callbacks=[AfterTwo(action)]) for each in (True, False))
    assert_same(ours, theirs)
    assert ours.was_padded == [True] * 2 + [not words] * 4
    assert len(said) == 1 + bool(words) and words in said[-1]


@pytest.mark.parametrize("record_step", [True, False])
def test_targets_without_logarithm_are_refused_on_the_host(
    record_step: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Programs, "shift", -1e9)
    with pytest.raises(ValueError, match="log_runtime needs positive targets"):
        fit(tmp_path, record_step, "difference")
