"""While an accelerator trains, the host reads no value of a step: shown on a CPU, where each read is counted, and
values arrive as late as from an accelerator."""

from __future__ import annotations

import math
import traceback
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from embedding_cache.storage import MOST_AHEAD, Arrivals, OnHost
from gst.data import SyntheticPrograms
from gst.nn import SAGE, Head
from gst.training import SegmentDataModule, SegmentTrainingModule
from gst.training.record import LogProgress, Recorder, ReportPage, TerminalProgress

STEPS = 8
# What reads numbers of the host on an accelerator too, or reads numbers on a CPU alone.
OF_THE_HOST = ("torch/optim", "nn/encoders", "method/encoding")


class Reads(TorchDispatchMode):
    """Counts numbers that the host reads in steps; those of an optimizer are of the host on an accelerator too."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "_local_scalar_dense" in str(function):
            stack = [f"{each.filename}:{each.lineno}" for each in traceback.extract_stack()[:-1]]
            place = next(each for each in reversed(stack) if "/torch/" not in each or "/torch/optim" in each)
            in_step = any("training_epoch_loop" in each for each in stack) and "data/loader" not in "".join(stack)
            if in_step and not any(name in place for name in OF_THE_HOST):
                self.places.append(place)
        return function(*args, **kwargs or {})


class Infinite(Head):
    """A head whose predictions become infinite after some steps."""

    steps = 0

    def forward(self, pooled: Tensor) -> Tensor:
        self.steps += self.training
        return super().forward(pooled) * (math.inf if self.steps > 3 else 1.0)


def trained(directory: Path, head: nn.Module, bar: L.Callback, **options: Any) -> ReportPage:
    """One epoch by padded steps, with what `gst fit` adds to a trainer."""
    L.seed_everything(0)
    encoder = SAGE(8, 2, num_opcodes=8, config_symbols=7)
    module = SegmentTrainingModule(encoder, head, record_step=True, table=True, keep_probability=0.5)
    module.configure_optimizers = lambda: torch.optim.Adam(module.parameters(), 1e-3)  # type: ignore[method-assign]
    source = SyntheticPrograms(num_nodes=200, num_configs=5 * STEPS + 4, seed=0)
    data = SegmentDataModule(source, str(directory / "stores"), 60, num_valid=2, num_test=2, configs_per_graph=5)
    page = ReportPage("gst fit")
    trainer = L.Trainer(
        max_epochs=1, callbacks=[page, Recorder(), bar], logger=False, accelerator="cpu", default_root_dir=directory,
        enable_model_summary=False, num_sanity_val_steps=0, **options,
    )  # fmt: skip
    trainer.fit(module, datamodule=data)
    return page


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values arrive where the host waits for them alone, and no metric is logged for Lightning's bars."""
    monkeypatch.setattr(OnHost, "has_arrived", lambda self: False)
    log = SegmentTrainingModule.log
    monkeypatch.setattr(SegmentTrainingModule, "log", lambda *args, **options: log(*args, **options | {
        "prog_bar": options.get("prog_bar", False) and args[1] != "train/loss"}))  # fmt: skip


@pytest.mark.parametrize("bar", [LogProgress, TerminalProgress])
def test_no_step_reads_what_it_computed(bar: type[L.Callback], late: None, tmp_path: Path) -> None:
    with Reads() as reads:
        page = trained(tmp_path, Head(8), bar(), limit_val_batches=0)
    assert page._epochs[-1]["steps"] == STEPS and math.isfinite(page._epochs[-1]["loss"])
    assert len(reads.places) == 2 * (STEPS - MOST_AHEAD), reads.places
    assert all("module.py" in each or "record.py" in each for each in reads.places)


def test_the_count_sees_what_is_read(tmp_path: Path) -> None:
    with Reads() as reads:
        trained(tmp_path, Head(8), LogProgress(), limit_val_batches=0)
    assert len(reads.places) >= 3 * STEPS


def test_a_loss_that_arrives_late_ends_the_training_before_a_checkpoint(late: None, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the loss became nan in epoch 0, step 3, on 'synthetic"):
        trained(tmp_path, Infinite(8), LogProgress(), limit_val_batches=0)
    assert not [*tmp_path.rglob("*.ckpt")]


def test_arrivals_come_in_order_and_few_are_on_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    arrivals = Arrivals[int]()
    monkeypatch.setattr(OnHost, "has_arrived", lambda self: False)
    for number in range(MOST_AHEAD + 2):
        arrivals.add(torch.tensor(number), number)
    assert [about for _, about in arrivals.here()] == [0, 1]
    assert [(int(value), about) for value, about in arrivals.here(waits=True)] == [(2, 2), (3, 3), (4, 4), (5, 5)]
    arrivals.add(torch.tensor(7), 7)
    monkeypatch.setattr(OnHost, "has_arrived", lambda self: True)
    assert [about for _, about in arrivals.here()] == [7]
