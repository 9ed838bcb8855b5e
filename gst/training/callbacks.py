"""Callbacks that a configuration names: finetuning of the head, and steps run by `torch.compile(backend="gst")`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import lightning as L
import torch
from lightning.pytorch.strategies import DDPStrategy

STEPS = ("forward", "training_step", "validation_step", "test_step", "predict_step")
LOGS = ("log", "log_dict")  # look at the signatures of the steps, which Dynamo cannot follow


class HeadFinetuning(L.Callback):
    """Callback for head finetuning (+F; Cao et al. 2023, section 3.4): for the last `epochs` it clears the embedding
    table, freezes the encoder and tunes the head. Each segment is then encoded once, when it is first needed.
    """

    def __init__(self, epochs: int = 1) -> None:
        if epochs < 1:
            raise ValueError(f"epochs is {epochs}; finetuning takes at least one")
        self.epochs = epochs

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        estimator: Any = pl_module.estimator
        last = trainer.max_epochs
        if not last or last <= self.epochs:
            raise ValueError(f"{self.epochs} epochs of finetuning, but max_epochs is {last}; the encoder learns first")
        if trainer.current_epoch >= last - self.epochs and not estimator.encoder_frozen:
            estimator.freeze_encoder()
            strategy = trainer.strategy
            if isinstance(strategy, DDPStrategy) and strategy.model is not pl_module:
                strategy.model = pl_module
                strategy.configure_ddp()  # anew: it waits for no gradients of frozen parameters

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin the epoch of a training that was resumed between two epochs: `on_train_epoch_start` is not called."""
        self.on_train_epoch_start(trainer, pl_module)


class PlacedSteps(L.Callback):
    """Run each graph of the steps of a LightningModule in the fastest variant (`gst.placement.api.backend`).

    The module stays what it is: its class, `state_dict()`, checkpoints and optimizers. When the trainer is done its
    steps are those it had. What Dynamo cannot capture, such as `self.log`, runs as written. `options` are those of the
    backend, such as `{"seconds": 30}`.
    Examples:
        >>> callback = PlacedSteps(backend="eager")  # which only looks for graphs
        >>> class Line(L.LightningModule):
        ...     def training_step(self, batch):
        ...         return batch.sum()
        >>> module = Line()
        >>> callback.setup(None, module, "fit")
        >>> "training_step" in vars(module)
        True
        >>> callback.teardown(None, module, "fit")
        >>> "training_step" in vars(module)
        False
    """

    def __init__(self, options: Mapping[str, Any] | None = None, backend: str = "gst") -> None:
        self.options, self.backend = options, backend

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Give the module compiled steps."""
        options: Any = None if self.options is None else dict(self.options)
        for name in STEPS:
            if getattr(type(pl_module), name) is not getattr(L.LightningModule, name):
                step = getattr(pl_module, name)
                vars(pl_module)[name] = _as_written_where_dynamo_fails(
                    torch.compile(step, backend=self.backend, options=options), step
                )
        for name in LOGS:
            vars(pl_module)[name] = torch.compiler.disable(getattr(pl_module, name))

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Give it back its own."""
        for name in (*STEPS, *LOGS):
            vars(pl_module).pop(name, None)


def _as_written_where_dynamo_fails(compiled: Callable[..., Any], step: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled step that ends with no error of Dynamo's own: what it cannot read of Lightning runs as written."""
    from torch import _dynamo as dynamo

    @functools.wraps(step)  # Lightning looks up in the step which arguments it takes
    def run(*arguments: Any, **named: Any) -> Any:
        with dynamo.config.patch(suppress_errors=True):
            return compiled(*arguments, **named)

    return run
