"""Graphs with the targets that a test gives, and a small configuration to train on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from gst.cli import main
from gst.data import GraphSource
from gst.data.synthetic import synthetic_program
from gst.graphs.graph import Graph

SMALL = """
seed_everything: 0
trainer:
  max_epochs: 1
  logger: false
  accelerator: cpu
  enable_progress_bar: false
  callbacks:
    - class_path: lightning.pytorch.callbacks.ModelCheckpoint
      init_args: {dirpath: run/checkpoints, filename: best, enable_version_counter: false}
model:
  encoder: {class_path: gst.nn.SAGE, init_args: {channels: 8, num_layers: 1, num_opcodes: 8, config_symbols: 7}}
  head: {class_path: gst.nn.Head, init_args: {channels: 8}}
data:
  source: {class_path: made_targets.MadeTargets, init_args: {targets: [[1, 2, 3, 4, 5, 6], [2, 4, 6, 8, 1, 3]]}}
  max_nodes: 20
  configs_per_graph: 4
  num_valid: 2
  num_test: 2
optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 1e-3}}
"""


class MadeTargets(GraphSource):
    """Small programs with the given targets, one for each configuration; `null` stands for NaN."""

    def __init__(self, targets: Sequence[Sequence[float | None]]) -> None:
        self.targets = targets

    def __iter__(self) -> Iterator[Graph]:
        for number, row in enumerate(self.targets):
            graph = synthetic_program(num_nodes=40, num_configs=len(row), seed=number)
            known = np.array([np.nan if each is None else each for each in row], np.float64)
            yield replace(graph, targets=known, name=f"graph{number}")


def small(command: str, *flags: str) -> int:
    """Run a command of `gst` with the small configuration in the current directory; returns its exit status."""
    Path("small.yaml").write_text(SMALL)
    return main([command, "--config", "small.yaml", *flags])
