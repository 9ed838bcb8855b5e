"""LightningDataModule of segmented graphs: prepares the store once, splits it, and makes the loaders of steps."""

from __future__ import annotations

from typing import Any, Literal

import lightning as L
import numpy as np
import torch

from gst.cost.losses import are_known
from gst.data.loader import Selection, Step, StepLoader, split
from gst.data.source import GraphSource
from gst.graphs.segments import SegmentedGraph
from gst.graphs.store import open_store, prepare
from gst.util.addresses import place
from gst.util.progress import bar

TRAIN, VALID, TEST = range(3)
NAMED = 3  # graphs in a message
PARTS = ("training", "validation", "test")
_NAMES = {VALID: "valid_source", TEST: "test_source"}
NEEDED = {"fit": (TRAIN, VALID), "validate": (VALID,), "test": (TEST,), "predict": (TEST,)}
_SCORED = {"fit": VALID, "validate": VALID, "test": TEST}


class SegmentDataModule(L.LightningDataModule):
    """Segments of one dataset that is split here, or of a dataset published in train, validation and test parts.

    Args:
        store: directory under which the prepared dataset is kept, by content.
        max_nodes, method, halo, partition_seed: how graphs are cut, see `gst.segment`.
        split_by: hold out `configs` of every graph, whole `graphs`, or `groups` of them (`package/binary`).
        num_valid, num_test: how many are held out, for parts without a source of their own.
        split_seed, seed: of the draw of what is held out, and of the order of steps.
        graphs_per_step, configs_per_graph: size of a training step, of each process where several train.
        lists_per_graph: at most so many lists of `configs_per_graph` configurations of each graph in one epoch.
        eval_configs: configurations per step of validation, test and prediction.
        valid_source, test_source: all graphs of that part, where a dataset is published in parts.
        cache: most GB of copies on this disk, where `store` is an address; a tenth of the free disk if not given.
        missing_targets: `refuse` targets that are NaN or infinite, or `skip` their configurations.

    Attributes:
        digest: the content key of the store of `source`, once it is prepared.
        versions: the content keys of all stores that were opened, by the name of their source.
    """

    def __init__(
        self,
        source: GraphSource,
        store: str = "runs/stores",
        max_nodes: int = 1000,
        method: str = "metis",
        halo: int = 0,
        partition_seed: int = 0,
        split_by: Literal["configs", "graphs", "groups"] = "configs",
        num_valid: int = 1,
        num_test: int = 1,
        split_seed: int = 0,
        graphs_per_step: int = 1,
        configs_per_graph: int = 32,
        lists_per_graph: int | None = None,
        eval_configs: int = 256,
        seed: int = 0,
        valid_source: GraphSource | None = None,
        test_source: GraphSource | None = None,
        missing_targets: Literal["refuse", "skip"] = "refuse",
        cache: float | None = None,
    ) -> None:
        super().__init__()
        self.source, self.store = source, place(store)
        given = {VALID: valid_source, TEST: test_source}
        self.published = {part: own for part, own in given.items() if own is not None}
        self.segmentation: dict[str, Any] = {
            "max_nodes": max_nodes, "method": method, "halo": halo, "seed": partition_seed,
        }  # fmt: skip
        self.split_by, self.split_seed = split_by, split_seed
        self.num_valid = 0 if VALID in self.published else num_valid
        self.num_test = 0 if TEST in self.published else num_test
        self.graphs_per_step, self.configs_per_graph = graphs_per_step, configs_per_graph
        self.lists_per_graph, self.eval_configs, self.seed = lists_per_graph, eval_configs, seed
        self.missing_targets, self.cache = missing_targets, cache
        self.parts: dict[int, list[Selection]] = {}
        self.digest = ""
        self.versions: dict[str, str] = {}

    def prepare_data(self) -> None:
        """Prepare the stores on one process of each host; the other processes wait.

        A single process reads them now, so that what is wrong with them is told before a logger begins its run.
        """
        if self.trainer is not None and self.trainer.world_size == 1 and self.trainer.state.fn is not None:
            self.setup(str(self.trainer.state.fn.value))
        if self.trainer is not None and self.trainer.world_size > 1:
            sources = [self._source(part) for part in NEEDED.get(self.trainer.state.fn or "", ())]
            for source in {id(each): each for each in sources}.values():
                self._prepared(source)

    def setup(self, stage: str) -> None:
        """Open the parts that `stage` needs, preparing their stores if necessary.

        Raises:
            ValueError: sources, features or targets of a part cannot be used.
        """
        for part in NEEDED[stage]:
            if part not in self.parts:
                self._read(part)
        if stage in _SCORED and self.missing_targets == "refuse":
            _check_measured([selection for part in NEEDED[stage] for selection in self.parts[part]])
        _check_numbers([selection for part in NEEDED[stage] for selection in self.parts[part]])
        for part in NEEDED[stage]:
            if stage in _SCORED:
                self.parts[part] = _labelled(self.parts[part])
        if stage == "fit":
            _check_labels(self.parts[TRAIN])
            _check_widths(self.parts[TRAIN], self.parts[VALID])
        if stage in _SCORED:
            _check_scorable(self.parts[_SCORED[stage]])

    def _read(self, part: int) -> None:
        """Open one part or, if it has no source of its own, all parts of `source`."""
        if part in self.published:
            self.versions[_NAMES[part]], graphs = self._prepared(self._source(part))
            self.parts[part] = [(graph, torch.arange(graph.num_configs)) for graph in graphs]
            return
        self.digest, graphs = self._prepared(self.source)
        self.versions["source"] = self.digest
        divided = split(graphs, self.split_by, self.num_valid, self.num_test, self.split_seed)
        self.parts |= {number: each for number, each in enumerate(divided) if number not in self.published}

    def source_of(self, stage: str) -> GraphSource:
        """Return the source of the part that a stage evaluates."""
        return self._source(NEEDED[stage][-1])

    def _source(self, part: int) -> GraphSource:
        return self.published.get(part, self.source)

    def _prepared(self, source: GraphSource) -> tuple[str, list[SegmentedGraph]]:
        """The digest of the store of `source` and its graphs."""
        with bar(desc="preparing segments", unit=" graphs", delay=2) as shown:
            directory = prepare(source, self.store, **self.segmentation, progress=lambda name: shown.update() and None)
        return directory.name, open_store(directory, self.cache)

    def train_dataloader(self) -> StepLoader:
        """Return the loader of training steps; in order of the graphs where `overfit_batches` repeats the first ones,
        for which Lightning turns off shuffling by itself in loaders of PyTorch alone."""
        shuffle = not getattr(self.trainer, "overfit_batches", 0)
        return StepLoader(
            self._part(TRAIN), self.graphs_per_step, self.configs_per_graph, self.lists_per_graph, shuffle, self.seed,
            *self._place(),
        )  # fmt: skip

    def val_dataloader(self) -> StepLoader:
        return self._in_order(self._part(VALID))

    def test_dataloader(self) -> StepLoader:
        return self._in_order(self._part(TEST))

    predict_dataloader = test_dataloader

    def transfer_batch_to_device(self, batch: Step, device: torch.device, dataloader_idx: int) -> Step:
        """Leave the step on the host: the estimator moves the segments that it draws."""
        return batch

    def mean_log_target(self) -> float:
        """Mean logarithm of the positive training targets: the initial offset of a regression on log runtime."""
        targets = np.concatenate([graph.targets[configs.numpy()] for graph, configs in self._part(TRAIN)])
        positive = targets[targets > 0]
        return float(np.log(positive).mean()) if len(positive) else 0.0

    def _part(self, i: int) -> list[Selection]:
        assert i in self.parts, "setup() comes first"
        return self.parts[i]

    def _in_order(self, selections: list[Selection]) -> StepLoader:
        rank, world_size = self._place()
        return StepLoader(selections, 1, self.eval_configs, shuffle=False, rank=rank, world_size=world_size)

    def _place(self) -> tuple[int, int]:
        """Rank of this process and the number of processes."""
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)


def _labelled(selections: list[Selection]) -> list[Selection]:
    """Return the configurations with a target that is a number and none that is infinite, of the graphs with some."""
    measured = []
    for graph, configs in selections:
        targets = torch.from_numpy(graph.targets[configs.numpy()])
        measured.append((graph, configs[are_known(targets) & ~targets[..., None].isinf().flatten(1).any(1)]))
    return [(graph, configs) for graph, configs in measured if len(configs)]


def _check_numbers(selections: list[Selection]) -> None:
    """Refuse graphs of which one has more targets than another."""
    shapes = {graph.targets.shape[1:]: f"{graph.name!r} {graph.targets.shape}" for graph, _ in selections}
    if len(shapes) > 1:
        words = " and ".join([*shapes.values()][:2])
        raise ValueError(f"targets have the shapes {words}; give each configuration equally many, NaN if unknown")


def _check_measured(selections: list[Selection]) -> None:
    missing: dict[str, int] = {}
    for graph, configs in selections:
        if count := int((~np.isfinite(graph.targets[configs.numpy()])).sum()):
            missing[graph.name] = missing.get(graph.name, 0) + count
    if missing:
        names = ", ".join(map(repr, list(missing)[:NAMED]))
        names += f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        raise ValueError(
            f"targets are NaN or infinite ({sum(missing.values())}, of the graphs {names}); measure them, or leave "
            "them out by --data.missing_targets skip"
        )


def _check_labels(selections: list[Selection]) -> None:
    if not selections:
        raise ValueError("no training target is known (all are NaN or infinite); give sources with measured targets")
    together = np.concatenate([graph.targets[configs.numpy()] for graph, configs in selections])
    if (together == together[0]).all():
        raise ValueError("all training targets are equal: there is nothing to learn; give sources whose targets differ")


def _check_widths(train: list[Selection], valid: list[Selection]) -> None:
    first, _ = train[0]
    for graph, _ in valid:
        for what in ("node_features", "config_features"):
            width, expected = getattr(graph, what).shape[-1], getattr(first, what).shape[-1]
            if width != expected:
                raise ValueError(
                    f"graph {graph.name!r}, to validate on, has {width} columns of {what} and {first.name!r}, to train "
                    f"on, has {expected}; give valid_source the settings of source"
                )


def _check_scorable(selections: list[Selection]) -> None:
    """Zeros of one graph may be true (an accelerator without multipliers, say); zeros of all are placeholders."""
    several = [(graph, configs) for graph, configs in selections if len(configs) > 1]
    if several and all((graph.targets[configs.numpy()] == 0).all() for graph, configs in several):
        raise ValueError(
            f"graph {several[0][0].name!r} has 0 for every target, and so have all others: placeholders, as test parts "
            "of TpuGraphs hold them; gst predict ranks them, nothing can score them"
        )
