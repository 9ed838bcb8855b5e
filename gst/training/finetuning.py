"""+F: at the end only the head learns, on embeddings that are no longer stale."""

from __future__ import annotations

import lightning as L
from lightning.pytorch.strategies import DDPStrategy, Strategy

from gst.training.module import SegmentTrainingModule


class HeadFinetuning(L.Callback):
    """For the last epochs: forget the embeddings of younger encoders, freeze the encoder, tune the head (Cao et al.
    2023, section 3.4). Each segment is then encoded once, when it is first needed.

    Args:
        epochs: how many of `max_epochs`.
    """

    def __init__(self, epochs: int = 1) -> None:
        if epochs < 1:
            raise ValueError(f"epochs is {epochs}; finetuning takes at least one")
        self.epochs = epochs

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, SegmentTrainingModule)
        last = trainer.max_epochs
        if not last or last <= self.epochs:
            raise ValueError(f"{self.epochs} epochs of finetuning, but max_epochs is {last}; the encoder learns first")
        if trainer.current_epoch >= last - self.epochs and not pl_module.estimator.encoder_frozen:
            pl_module.estimator.freeze_encoder()
            _reduce_what_learns(trainer.strategy, pl_module)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """A training resumed between two epochs begins the next one without `on_train_epoch_start`."""
        self.on_train_epoch_start(trainer, pl_module)


def _reduce_what_learns(strategy: Strategy, module: SegmentTrainingModule) -> None:
    """DistributedDataParallel waits for gradients of all parameters that learned when it was made: make it anew."""
    if isinstance(strategy, DDPStrategy) and strategy.model is not module:
        strategy.model = module
        strategy.configure_ddp()
