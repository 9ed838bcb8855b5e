"""Labelled circuits as a dataset: one number for each whole graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from experiments.reproductions.circuits.cones import labelled_files
from experiments.reproductions.circuits.features import circuit_graph
from experiments.reproductions.circuits.files import SHARED
from experiments.reproductions.circuits.labels import read_labels
from gst.data.source import GraphSource, fingerprint_of_files
from gst.graphs.graph import Graph

LABELS = Path("experiments/results/circuits_labels.jsonl.xz")


@dataclass(frozen=True)
class Circuits(GraphSource):
    """And-inverter graphs and output cones of them, named `design/file`: hold out whole designs (`group_of`).

    The target is the mean, over synthesis recipes, of log(ANDs that are left / ANDs).

    Args:
        data: a folder or an archive of .bench and .aig files.
        labels: what `python -m experiments.reproductions.circuits` wrote.
        most_nodes: larger circuits are left out.
    """

    data: str = str(SHARED)
    labels: str = str(LABELS)
    most_nodes: int = 30_000

    def __iter__(self) -> Iterator[Graph]:
        ratios: dict[str, list[float]] = {}
        for (digest, _), counts in read_labels(Path(self.labels)).items():
            if counts is not None:
                ratios.setdefault(digest, []).append(np.log(max(counts[-1][0], 1) / max(counts[0][0], 1)))
        for file in labelled_files(Path(self.data)):
            values = ratios.pop(file.digest, [])  # of files with the same content the first
            graph = circuit_graph(file.read()) if len(values) > 1 else None
            if graph is not None and graph.num_nodes <= self.most_nodes:
                yield replace(graph, name=f"{file.design}/{file.name}", targets=np.array([np.mean(values)]))

    def fingerprint(self) -> str:
        return fingerprint_of_files([Path(self.data), Path(self.labels)], f"Circuits 1 {self.most_nodes}")
