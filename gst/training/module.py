"""Graph Segment Training as a LightningModule: steps, metrics, the fields of a checkpoint."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

import lightning as L
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from embedding_cache import EmbeddingTable
from embedding_cache.sharded import ShardedTable
from embedding_cache.storage import Arrivals
from gst.cost import losses
from gst.cost.metrics import evaluate
from gst.data.loader import Step, StepLoader
from gst.method.estimates import checked_estimate
from gst.method.estimator import GraphSegmentTraining
from gst.method.readouts import readout_of
from gst.training.checkpoints import check_built, random_states, read, set_random_states
from gst.training.datamodule import NEEDED, PARTS, TRAIN, SegmentDataModule
from gst.training.processes import gathered, reduced, share_of
from gst.util.copies import local_copy

if TYPE_CHECKING:
    from gst.training.recorded_step import PaddedSteps

SCHEMA = 1  # of checkpoints; one without a number has this one


class SegmentTrainingModule(L.LightningModule):
    """Train an encoder and a head on graphs cut into segments.

    Without a table the estimator is complete at once. With one, `setup` builds it once the first graph has given lazy
    layers, and so the table, their widths; so does a checkpoint that is loaded without a trainer.

    Args:
        encoder, head, pooling, num_fresh, keep_probability, max_rows, seed: see
            `gst.method.estimator.GraphSegmentTraining`.
        estimate: name in `gst.method.estimates.ESTIMATES`, or `auto`.
        table: keep embeddings of segments between steps (+E).
        table_tier, table_dtype, table_capacity: of the `EmbeddingTable`; on disk it lies in `runs`.
        record_step: pad steps to one size, that of the largest, and on an accelerator record one as a graph (a CUDA
            graph) and replay it for each step. None, the default, does so on an accelerator unless that doubles the
            size; see `docs/operations.md`.
        loss: name of a loss in `gst.cost.LOSSES`; `log_runtime` makes scores logarithms of runtimes, `cross_entropy`
            classes (the head then has as many outputs). Or a loss of one's own, such as one of torch.nn: a module or
            function of predictions and targets `(rows,)`, see `gst.cost.losses.of_rows`.

    Attributes:
        estimator: the model; without a table, and with uniform draws, before a training.
        loss: name of the loss; of one's own, which is `own_loss`, `squared_error` or, with classes, `cross_entropy`,
            whose metrics it has beside `val/loss`.
        scored: scores and targets of the last evaluation, by graph.

    Raises:
        ValueError: settings exclude each other.
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module,
        pooling: str = "mean",
        num_fresh: int = 1,
        keep_probability: float = 1.0,
        table: bool = False,
        table_tier: Literal["device", "pinned", "disk"] = "device",
        table_dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        table_capacity: int | None = None,
        loss: nn.Module | Callable[..., Any] | str = "pairwise_hinge",
        max_rows: int = 1 << 18,
        seed: int = 0,
        estimate: str = "auto",
        record_step: bool | None = None,
    ) -> None:
        super().__init__()
        self.own_loss = None if isinstance(loss, str) else loss
        self.loss = loss if isinstance(loss, str) else "squared_error"
        losses.loss_of(self.loss)
        self.save_hyperparameters()
        for name in ("encoder", "head"):  # from Python they are modules, which a checkpoint must not pickle
            if isinstance(self.hparams.get(name), nn.Module):
                del self.hparams[name]
                self._hparams_initial.pop(name)  # type: ignore[operator, union-attr]
        for name in ("loss", "pooling"):  # from Python too; loading without them fails then
            if callable(own := self.hparams[name]):
                self.hparams[name] = self._hparams_initial[name] = losses.name_of(own)  # type: ignore[operator, index, assignment]
        readout = readout_of(pooling)
        checked = checked_estimate(readout.combine, num_fresh, keep_probability, table, estimate)
        self.record_step, self.wants_table = record_step, table
        self._method: dict[str, Any] = {
            "pooling": readout, "num_fresh": num_fresh, "keep_probability": keep_probability, "max_rows": max_rows,
            "seed": seed, "estimate": checked,
        }  # fmt: skip
        self._table_options = {"tier": table_tier, "dtype": getattr(torch, table_dtype), "capacity": table_capacity}
        self.estimator = self._estimator(encoder, head, None)
        self._padded: PaddedSteps | None = None
        self._losses = Arrivals[tuple[int, int, Step]]()
        self.latest_loss: float | None = None  # that the host knows
        self.offset: Tensor
        self.register_buffer("offset", torch.zeros((), dtype=torch.float64))
        self._ddp_params_and_buffers_to_ignore = ["offset"]  # equal everywhere: not sent with every step
        self._drawn = torch.get_rng_state()  # what lazy layers draw from
        self._random_states: Sequence[Mapping[str, Any]] = ()  # of the processes, from a checkpoint
        self._evaluated: list[tuple[int, str, Tensor, Tensor]] = []
        self.scored: dict[str, tuple[Tensor, Tensor]] = {}

    @property
    def _data(self) -> SegmentDataModule:
        return self.trainer.datamodule  # type: ignore[attr-defined]

    def prepare_data(self) -> None:
        """Check settings and shapes of a single process before a logger begins its run: see `setup`."""
        if self.trainer.world_size == 1 and self.trainer.state.fn is not None:
            self.setup(stage := str(self.trainer.state.fn.value))
            if stage == "fit":  # encoder and head fit each other and the graphs
                step = next(iter(self._data.train_dataloader()))
                self.estimator.exact(step.graphs[:1], step.configs[:1, :1])

    def setup(self, stage: str) -> None:
        """Build the estimator, with a table if it is to be trained: evaluation reads none."""
        loader = getattr(self._data, f"{_LOADER[stage]}_dataloader")()
        step = next(iter(loader), None)  # this loader is thrown away: it counts no epoch
        if step is None:
            raise ValueError(f"there is nothing to {stage}: the {_LOADER[stage]} part of the data is empty")
        if stage != "predict" and step.targets.dim() > 2 and self.loss in losses.WITHIN_A_GRAPH | losses.CLASSES:
            raise ValueError(
                f"loss={self.loss!r} takes one target for each configuration, and graphs have {step.targets.shape[2]}; "
                "--model.loss squared_error, log_runtime or torch.nn.BCEWithLogitsLoss take several"
            )
        if stage == "fit" and self.loss in losses.WITHIN_A_GRAPH:
            self._check_compared()
        self._build(step, needs_table=stage == "fit" and self.wants_table and self.estimator.table is None)
        if stage != "predict":
            self._check_targets(stage, step)
        if stage == "fit" and self.loss == "log_runtime":
            self.offset.fill_(self._data.mean_log_target())

    def _check_compared(self) -> None:
        """Refuse data without two configurations of different targets in a step, if the loss compares them."""
        selections = self._data.parts[TRAIN]
        differ = any(np.ptp(graph.targets[configs.numpy()]) > 0 for graph, configs in selections)
        if self._data.configs_per_graph < 2 or not differ:
            raise ValueError(
                f"loss={self.loss!r} compares configurations of a graph, and no step holds two whose targets differ; "
                "for one target a graph use --model.loss squared_error, or log_runtime for runtimes"
            )

    def _check_targets(self, stage: str, step: Step) -> None:
        """Refuse parts with targets that the loss cannot take; losses of other packages are not known here."""
        outputs, several = 1, step.targets.dim() > 2
        if self.own_loss is not None or self.loss == "cross_entropy" or several:
            scores = self.estimator.exact(step.graphs[:1], step.configs[:1, :1])
            outputs = scores.shape[-1] if scores.dim() > 2 else 1
            if self.own_loss is not None:
                losses.check_own(self.own_loss, scores, step.targets[:1, :1].nan_to_num(), self.trainer.world_size > 1)
                has_classes = (outputs > 1 and not several) or isinstance(self.own_loss, nn.CrossEntropyLoss)
                self.loss = "cross_entropy" if has_classes else "squared_error"
            if several:
                losses.check_shapes(scores, step.targets[:1, :1])
        loss = losses.loss_of(self.loss)
        for part in NEEDED[stage] if self.loss in ("cross_entropy", "log_runtime") else ():
            arrays = [graph.targets[configs.numpy()].ravel() for graph, configs in self._data.parts[part]]
            targets = torch.from_numpy(np.concatenate([np.zeros(0), *arrays]))
            try:
                losses.check_classes(targets, outputs) if loss is losses.cross_entropy else losses.check_positive(
                    targets
                )
            except ValueError as error:
                raise ValueError(f"{PARTS[part]} part: {error}") from error

    def _build(self, step: Step, needs_table: bool) -> None:
        """Initialise lazy layers, and build the estimator with a table if it needs one."""
        if self.trainer.world_size > 1:  # Lightning seeds anew where processes meet; one alone draws on
            torch.set_rng_state(self._drawn)
        graphs, configs, model = step.graphs[:1], step.configs[:1, :1], self.estimator
        if isinstance(model.head, nn.Module) and any(map(is_lazy, model.head.parameters())):
            model.exact(graphs, configs)
        if needs_table or any(map(is_lazy, model.parameters())):
            channels = model.channels(graphs[0])
        if any(map(is_lazy, model.parameters())):  # of layers that this segment has no use for
            model.embed(graphs, configs)
        if needs_table:
            self.estimator = self._estimator(model.encoder, model.head, self._table(channels))

    def _estimator(self, encoder: Any, head: Any, table: EmbeddingTable | ShardedTable | None) -> GraphSegmentTraining:
        return GraphSegmentTraining(encoder, head, table=table, **self._method)

    def _table(self, channels: int) -> EmbeddingTable | ShardedTable:
        """Make the embedding table, sharded where several processes train; `table_capacity` counts all their rows."""
        processes, capacity = self.trainer.world_size, self._table_options["capacity"]
        options = self._table_options | {"capacity": None if capacity is None else -(-capacity // processes)}
        if options["tier"] == "disk":
            options["path"] = Path(self.trainer.default_root_dir) / "runs"
            options["path"].mkdir(parents=True, exist_ok=True)
        table = EmbeddingTable(1, channels, device=self.trainer.strategy.root_device, **options)
        return table if processes == 1 else ShardedTable(table)

    def forward(self, step: Step) -> Tensor:
        """Return scores (graphs, configs): the lower, the faster. With `cross_entropy` classes are the last axis."""
        return self.estimator(step.graphs, step.configs, step.prefetched) + self.offset.float()

    def training_step(self, step: Step, index: int) -> Tensor:
        loss, step = (None, step) if self._padded is None else self._padded.run(step)
        if loss is None:
            loss = self.loss_of(self(step), step.targets)
        share = 1.0 if step.peers is None else share_of(step, step.peers, self.loss)
        together = loss.detach() * share
        if step.peers is not None:  # as gradients are averaged: schedulers and reports of all processes see one number
            dist.all_reduce(together)
            together /= step.peers.world_size
        self._losses.add(together, (self.current_epoch, index, step))
        self.check_losses(waits=False)
        shows = self.device.type == "cpu"  # Lightning reads what it shows in each step; our bars show `latest_loss`
        self.log("train/loss", together, prog_bar=shows, batch_size=len(step.graphs))
        return loss * share

    def check_losses(self, waits: bool = True) -> None:
        """Raise ValueError if the loss of a step was not finite. An accelerator computes a few steps more before the
        host knows, unless it `waits`, as it does before a checkpoint."""
        for loss, (epoch, index, step) in self._losses.here(waits):
            self.latest_loss = float(loss)
            if not math.isfinite(self.latest_loss):
                names = ", ".join(repr(graph.name) for graph in (step.peers or step).graphs)
                raise ValueError(
                    f"the loss became {self.latest_loss} in epoch {epoch}, step {index}, on {names}; checkpoints are "
                    "as they were: look at these graphs' features, or lower --optimizer.init_args.lr"
                )

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Compute gradients, unless a padded step has done so."""
        if self._padded is None or not self._padded.has_gradients:
            super().backward(loss, *args, **kwargs)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Optimizer) -> None:
        """Clear gradients, unless a padded step has just computed them: the trainer calls this after the loss."""
        if self._padded is None or not self._padded.has_gradients:
            super().optimizer_zero_grad(epoch, batch_idx, optimizer)

    def overridden(self) -> list[str]:
        """Return the methods of a training step that a subclass, or this object, replaces, and a loss of one's own."""
        names = ("training_step", "forward", "backward", "optimizer_zero_grad")
        own = {name: getattr(getattr(self, name), "__func__", None) for name in names}
        replaced = [name for name in names if own[name] is not getattr(SegmentTrainingModule, name)]
        return replaced + ["loss"] * (self.own_loss is not None)

    def on_train_start(self) -> None:
        """Forget losses of an earlier training, register its graphs, and record its step if that is wanted."""
        self.estimator.keep_frozen_rows()
        self._losses = Arrivals()
        self.on_train_epoch_start()  # which is not called in an epoch that is being resumed
        loader = self.trainer.train_dataloader
        if isinstance(loader, StepLoader):
            if loader.world_size > 1:
                self.estimator.register(graph for graph, _ in loader.selections)
            if self.record_step or (self.record_step is None and self.device.type != "cpu"):
                from gst.training.recorded_step import PaddedSteps

                self._padded = PaddedSteps.of(
                    self.trainer, self.estimator, self._loss, loader, self.overridden(), is_asked=bool(self.record_step)
                )
        if len(self._random_states) == self.trainer.world_size:
            set_random_states(self._random_states[self.trainer.global_rank], self.device)
        self._random_states = ()

    def on_train_epoch_start(self) -> None:
        """Set the loader, which may be new in each epoch, to this one, and let it read segments one step ahead."""
        if isinstance(loader := self.trainer.train_dataloader, StepLoader):
            loader.set_epoch(self.current_epoch)
            loader.reader = self._reading

    def _loss(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of scores without their offset."""
        return self.loss_of(scores + self.offset.float(), targets)

    def loss_of(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of scores and targets, which may lie on the host."""
        if self.own_loss is not None:
            return losses.of_rows(self.own_loss, scores, targets)
        return losses.loss_of(self.loss)(scores, targets.to(scores.device))

    def _reading(self, step: Step, ahead: int) -> Any:
        """Draw a step; the result reads its segments."""
        if self._padded is not None and (read := self._padded.reading(step, ahead)) is not None:
            return read
        return partial(self.estimator.load, self.estimator.draw(step.graphs, step.configs, ahead, step.peers))

    def on_train_end(self) -> None:
        """Give back what only training needs: the graph of its steps, and gradients, which lie in its memory."""
        if self._padded is not None:
            self._padded.end()
            self._padded = None
            for parameter in self.parameters():
                parameter.grad = None
        if isinstance(self.trainer.train_dataloader, StepLoader):
            self.trainer.train_dataloader.reader = None

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Validate after the last of `max_steps` too: early stopping and the best checkpoint monitor its metrics."""
        if 0 < self.trainer.max_steps <= self.trainer.global_step:
            self.trainer.should_stop = True
            if self.trainer.check_val_every_n_epoch is not None:
                self.trainer.check_val_every_n_epoch = 1

    def on_train_epoch_end(self) -> None:
        self.check_losses()
        if isinstance(self.trainer.train_dataloader, StepLoader):
            self.log_dict(reduced({"data/stall": (self.trainer.train_dataloader.stall, fmean)}))
        if self.estimator.table is not None:
            statistics = self.estimator.table.statistics()
            self.log_dict({f"table/{name}": float(value) for name, value in statistics.items()})

    def predict_step(self, step: Step, index: int) -> list[tuple[str, int, list[float], list[float]]]:
        """Return graph, configuration, scores (of classes the likeliest) and targets of each configuration."""
        if step.peers is not None and step.peers.idle:
            return []
        scores = self(step).cpu()
        if scores.dim() > step.targets.dim():
            scores = scores.argmax(-1)
        return [
            (graph.name, int(config), score.double().reshape(-1).tolist(), target.reshape(-1).tolist())
            for graph, configs, row, targets in zip(step.graphs, step.configs, scores, step.targets, strict=True)
            for config, score, target in zip(configs, row, targets, strict=True)
            if config >= 0
        ]

    def on_validation_epoch_end(self) -> None:
        self._log_metrics("val")

    def on_test_epoch_end(self) -> None:
        self._log_metrics("test")

    def validation_step(self, step: Step, index: int) -> None:
        """Append the scores of a step; `_log_metrics` gathers those of all processes."""
        if step.peers is not None and step.peers.idle:
            return
        scores = self(step).float().cpu()
        for graph, row, targets in zip(step.graphs, scores, step.targets, strict=True):
            real = losses.are_known(targets)
            self._evaluated.append((index, graph.name, row[real], targets[real]))

    test_step = validation_step

    def _log_metrics(self, part: str) -> None:
        by_graph: dict[str, tuple[list[Tensor], list[Tensor]]] = defaultdict(lambda: ([], []))
        for _, name, scores, targets in sorted(gathered(self._evaluated), key=lambda each: each[0]):
            for pieces, piece in zip(by_graph[name], (scores, targets), strict=True):
                pieces.append(piece)
        self._evaluated.clear()
        joined = {name: (torch.cat(scores), torch.cat(targets)) for name, (scores, targets) in by_graph.items()}
        joined = {name: pair for name, pair in joined.items() if len(pair[0])}  # targets may all be unknown
        self.scored, metrics = {}, dict[str, float]()
        for suffix, of_target in _by_target(joined).items():
            self.scored |= of_target
            pairs = [(scores.numpy(), targets.numpy()) for scores, targets in of_target.values()]
            metrics |= {f"{key}{suffix}": value for key, value in evaluate(self.loss, pairs).items()}
        for key in {key.rpartition("/")[0] for key in metrics if "/" in key}:
            values = [value for name, value in metrics.items() if name.startswith(f"{key}/")]
            metrics[key] = float(np.mean([each for each in values if not np.isnan(each)] or [np.nan]))
        if self.own_loss is not None and joined:
            together = (torch.cat(each)[None].to(self.device) for each in zip(*joined.values(), strict=True))
            metrics["loss"] = float(self.loss_of(*together))
        means = {f"{part}/{key}": value for key, value in metrics.items()}
        wrong = [repr(name) for name, (scores, _) in self.scored.items() if scores.isnan().any()]
        known = any(np.isfinite(value) for key, value in means.items() if "slowdown" not in key)
        if not self.trainer.sanity_checking and not known:
            where = f"epoch {self.current_epoch}: {{}} the {'validation' if part == 'val' else 'test'} part"
            if wrong:
                raise ValueError(
                    f"{where.format(f'predictions are NaN for {len(wrong)} graphs of')} ({', '.join(wrong[:3])}); look "
                    "at their features, or lower --optimizer.init_args.lr"
                )
            raise ValueError(
                f"{where.format('no metric of')} can be computed, since no two of its targets of a graph differ; hold "
                "out more (--data.num_valid, --data.num_test), or train with --trainer.limit_val_batches 0"
            )
        self.log_dict(means, prog_bar=not any(key.count("/") > 1 for key in means))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.check_losses()
        checkpoint |= {"schema": SCHEMA, "segmentation": self._data.segmentation}
        checkpoint["random_states"] = gathered([random_states(self.device)])

    @classmethod
    def load_from_checkpoint(cls, checkpoint_path: Any, *args: Any, trusted: Sequence[str] = (), **named: Any) -> Any:
        """Load as Lightning does, a file that builds no other classes than `gst.util.untrusted.check_classes` allows.

        Args:
            checkpoint_path: file, or address of one.
            args, named: as for Lightning; arguments of the module, such as `encoder`, replace those of the file.
            trusted: as for `check_classes`.

        Raises:
            ValueError: it is no file, no checkpoint, or names another class; give `encoder` or `trusted` then.
        """
        checkpoint_path = local_copy(checkpoint_path)
        content = read(checkpoint_path)
        check_built(checkpoint_path, content, trusted, replaced=named)
        named.pop("weights_only", None)
        return super().load_from_checkpoint(checkpoint_path, *args, weights_only=True, **named)  # type: ignore[misc]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Build the estimator of a checkpoint that is loaded without a trainer (`load_from_checkpoint`)."""
        if (schema := checkpoint.get("schema", SCHEMA)) != SCHEMA:
            raise ValueError(
                f"the checkpoint has schema {schema}, this version reads {SCHEMA}; train again, or go on with the "
                "version that wrote it"
            )
        if self._trainer is not None and self.trainer.state.fn == "fit":
            self._random_states = checkpoint.get("random_states", ())
        state = checkpoint["state_dict"]
        if self._trainer is not None and self.trainer.state.fn != "fit" and self.estimator.table is None:
            for key in [key for key in state if key.startswith("estimator.table.")]:
                del state[key]  # evaluation reads no table
        rows = state.get("estimator.table._extra_state", {}).get("rows")
        if rows is not None and self.estimator.table is None:
            path = Path.cwd() / "runs" if self._table_options["tier"] == "disk" else None
            table = EmbeddingTable(1, rows.shape[1], path=path, **self._table_options)
            self.estimator = self._estimator(self.estimator.encoder, self.estimator.head, table)


def _by_target(scored: dict[str, tuple[Tensor, Tensor]]) -> dict[str, dict[str, tuple[Tensor, Tensor]]]:
    """Return the scores and the targets of each graph, for each of several targets by its number `/0`, `/1`, ..."""
    number = next((targets.shape[1] for _, targets in scored.values() if targets.dim() > 1), None)
    if number is None:
        return {"": scored}
    known = {name: (*pair, ~pair[1].isnan()) for name, pair in scored.items()}
    return {
        f"/{k}": {
            f"{name}[{k}]": (scores[of[:, k], k], targets[of[:, k], k])
            for name, (scores, targets, of) in known.items()
            if of[:, k].any()
        }
        for k in range(number)
    }


_LOADER = {"fit": "train", "validate": "val", "test": "test", "predict": "predict"}
