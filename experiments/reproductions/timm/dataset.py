"""timm's step times as graphs: operators of a model, its measurements as configurations.

A configuration is a property of the whole program: machine, batch, precision, layout, compiler, inference or training.
Every operator that moves data has it as features, with its own times at the peak rates of the machine.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float32, Int64

from experiments.reproductions.dataset_files import files_below
from experiments.reproductions.graphnet.fx_graphs import fx_graph
from experiments.reproductions.graphnet.reader import (
    FxSource,
    Operation,
    is_image_input,
    operator_graph,
    sample_names,
    stream_sources,
)
from experiments.reproductions.timm.step_time.kernels import COLUMNS, Kernels, kernels_of
from experiments.reproductions.timm.step_time.machines import machine_of
from experiments.reproductions.timm.step_time.rows import kernel_times
from experiments.reproductions.timm.step_time.steps import NOTHING
from experiments.reproductions.timm.tables import Measurement, family, read_tables
from gst.data.source import GraphSource, fingerprint_of_files
from gst.graphs.graph import Graph

VERSION = 2  # of what is read
AREAS = [COLUMNS.index(name) for name in ("flops", "bytes read", "bytes written", "rows", "positions")]
"""Columns of kernels that grow with the area of an image."""
LEAST = 1e-3  # us, added before the logarithm
MOST_GAP = 0.05  # of log parameters, between a table and a source of the same model
TIMES = ("us of products", "us of activations", "us of parameters")
CHANNELS = (
    *(f"log {name}" for name in TIMES), "log batch", "is NHWC", "is compiled", "is half", "is autocast", "is training",
    "is CPU", "log TFLOP/s of 16 bits", "log TFLOP/s of 32 bits", "log GB/s", "launches",
    "log us of the program",
)  # fmt: skip
"""Configuration features of an operator: its times at peak rates, then the setting and the machine, its
kernels, and the time of the whole program at peak rates."""


@dataclass(frozen=True)
class TimmStepTimes(GraphSource):
    """Step times of timm's image models (its benchmark tables) on the operator graphs that GraphNet has of them.

    One graph for each model with a source and at least one measurement, in the order of the sources. Node features are
    `graphnet.fx_graphs.COLUMNS`, configuration features `CHANNELS`, targets nanoseconds. Names are `FAMILY/MODEL`: a
    split by groups holds out families.

    Args:
        path: folder with `timm.tar.xz` and `graphnet_timm.tar.xz`, or with what they hold, at any depth.
        mode: `infer` or `train` takes the tables of that mode alone.
        limit: at most so many models, evenly from all.

    Attributes:
        skipped: why measurements and sources were left out, once the graphs were read: a machine without rates, no
            source, a source of another size of the model, a source with an unknown call (file and line).

    Raises:
        ValueError: there is no such mode, the tables or the sources are missing, or an archive is cut off.
    """

    path: str
    mode: Literal["all", "infer", "train"] = "all"
    limit: int | None = None
    skipped: Counter[str] = field(default_factory=Counter, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.mode not in ("all", "infer", "train"):
            raise ValueError(f"mode is {self.mode!r}; choose all, infer, train")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit is {self.limit}; want at least one model")

    def __iter__(self) -> Iterator[Graph]:
        self.skipped.clear()
        rows = self._rows()
        chosen = set(self._names)
        for source in (each for place in self._sources() for each in stream_sources(place)):
            model = source.name.partition(".")[0]
            if source.name not in chosen or model not in rows:
                continue
            millions = sum(math.prod(each.shape) for name, each in source.inputs.items() if "parameters" in name) / 1e6
            fitting = [each for each in rows[model] if _is_of(each, millions)]
            try:
                graph = step_time_graph(source, fitting) if fitting else None
            except ValueError as error:
                self.skipped[str(error)] += len(fitting)
                graph = None
            rows[model] = [each for each in rows[model] if each not in fitting]
            if graph is not None:
                yield graph
        if self.limit is None:
            self.skipped["no source, or one of another size"] += sum(map(len, rows.values()))

    def __len__(self) -> int:
        return len(self._names)

    @cached_property
    def _names(self) -> list[str]:
        """Samples of models that were measured; `limit` of them."""
        measured = {each.model for each in self._measurements}
        names = [name for place in self._sources() for name in sample_names(place)]
        names = [name for name in names if name.partition(".")[0] in measured]
        if self.limit is None or self.limit >= len(names):
            return names
        return [names[round(place)] for place in np.linspace(0, len(names) - 1, self.limit)]

    @cached_property
    def _measurements(self) -> list[Measurement]:
        rows = [row for place in self._tables() for row in read_tables(place, must_hold=False)]
        if not rows:
            raise ValueError(f"{self.path}: it holds no table benchmark-*.csv; give a folder with timm.tar.xz")
        chosen = [each for each in rows if self.mode in ("all", each.setting.mode)]
        if not chosen:
            raise ValueError(f"{self.path}: it holds no table of mode {self.mode}")
        return chosen

    def _rows(self) -> dict[str, list[Measurement]]:
        """Measurements on machines with rates, by model.

        Raises:
            ValueError: no machine has rates.
        """
        unknown: dict[str, str] = {}
        for machine in sorted({each.setting.machine for each in self._measurements}):
            try:
                machine_of(machine)
            except ValueError as error:
                unknown[machine] = str(error).partition(";")[0]
        rows: dict[str, list[Measurement]] = {}
        for each in self._measurements:
            if each.setting.machine in unknown:
                self.skipped[unknown[each.setting.machine]] += 1
            else:
                rows.setdefault(each.model, []).append(each)
        if not rows:
            raise ValueError(f"{self.path}: {'; '.join(unknown.values())}; add tables of machines that have")
        return rows

    def _tables(self) -> list[Path]:
        return [place for place in self._places() if "graphnet" not in place.name]

    def _sources(self) -> list[Path]:
        return [place for place in self._places() if place.is_dir() or "graphnet" in place.name]

    def _places(self) -> list[Path]:
        """The folder, and the archives in it."""
        folder = Path(self.path)
        if not folder.is_dir():
            raise ValueError(f"{self.path} is no folder; give the one that holds timm.tar.xz and graphnet_timm.tar.xz")
        return [folder, *sorted(folder.rglob("*timm.tar.xz"))]

    def fingerprint(self) -> str:
        """Equal for equal files and settings, so that a segment store is found without reading the files."""
        every = files_below(self.path, "timm.tar.xz")
        files = [each for each in every if each.suffix in (".csv", ".py") or each.name.endswith("timm.tar.xz")]
        return fingerprint_of_files(files, f"timm {VERSION} {self.mode} {self.limit}")


def _is_of(measurement: Measurement, millions: float) -> bool:
    """The source has the parameters that the table states, or the table states none."""
    if not measurement.parameters or not millions:
        return True
    return abs(math.log(millions / measurement.parameters)) <= MOST_GAP


def step_time_graph(source: FxSource, measurements: Sequence[Measurement]) -> Graph:
    """The graph of a sample, its measurements as configurations; see `TimmStepTimes`.

    Raises:
        ValueError: the source has an unknown call or contradicting shapes; the message names file and line.
    """
    operations = operator_graph(source)
    busy = np.array([place for place, each in enumerate(operations) if not each.is_view], np.int64)
    parts: dict[tuple[int, str], _Work] = {}
    configurations = np.zeros((len(measurements), len(busy), len(CHANNELS)), np.float32)
    for row, each in enumerate(measurements):
        key = (each.image_size, each.setting.precision)
        if key not in parts:
            parts[key] = _work(source, operations, *key)
        configurations[row] = _features(parts[key], each, busy)
    targets = np.array([round(each.step * 1e6) for each in measurements], np.float64)
    graph = fx_graph(operations, f"{family(source.name.partition('.')[0])}/{source.name}")
    counts, spreads = np.ones(len(targets), np.int64), np.zeros(len(targets))
    return replace(
        graph, config_nodes=busy, config_features=configurations, targets=targets, counts=counts, spreads=spreads
    )


class _Work(NamedTuple):
    """Kernels of the operators that move data, at one image size and precision.

    Args:
        kernels: of all, one operator after the other.
        operators: the operator of each kernel.
    """

    kernels: Kernels
    operators: Int64[np.ndarray, " kernels"]


def _work(source: FxSource, operations: Sequence[Operation], size: int, precision: str) -> _Work:
    images = [each.shape for name, each in source.inputs.items() if is_image_input(name, each)]
    scale = 1.0
    if images and images[0][2] != size:
        try:
            resized = operator_graph(source, size)
        except ValueError:  # its positions are those of one image size
            resized = []
        if len(resized) == len(operations):
            operations = resized
        else:
            scale = size**2 / max(math.prod(images[0][2:]), 1)
    parts, places = [], []
    for place, operation in enumerate(operations):
        if not operation.is_view and operation.kind not in NOTHING:
            parts.append(kernels_of([operation], precision, False))
            places += [place] * len(parts[-1].kind)
    if not parts:
        raise ValueError(f"{source.where} has no operation that moves data")
    kernels = Kernels(*(np.concatenate(part) for part in zip(*parts, strict=True)))
    kernels.columns[:, AREAS] *= np.where(kernels.grows > 0, scale, 1.0)[:, None]
    return _Work(kernels, np.array(places, np.int64))


def _features(
    work: _Work, measurement: Measurement, busy: Int64[np.ndarray, " busy"]
) -> Float32[np.ndarray, "busy channels"]:
    """`CHANNELS` of each operator."""
    setting, machine = measurement.setting, machine_of(measurement.setting.machine)
    times = kernel_times(work.kernels, measurement.batch, machine)[:3] * 1e3
    length = int(max(busy[-1], work.operators[-1])) + 1
    sums = np.stack([np.bincount(work.operators, each, length)[busy] for each in times], 1)
    launches = np.bincount(work.operators, minlength=length)[busy]
    whole = [
        math.log(measurement.batch), setting.is_channels_last, setting.is_compiled, setting.precision == "half",
        setting.precision == "amp", setting.mode == "train", machine.is_cpu, math.log(machine.half),
        math.log(machine.single), math.log(machine.bandwidth),
    ]  # fmt: skip
    columns = [np.log(sums + LEAST), np.broadcast_to(np.array(whole, np.float64), (len(busy), len(whole)))]
    program = math.log(np.maximum(times[0], times[1] + times[2]).sum() + LEAST)
    return np.concatenate([*columns, launches[:, None], np.full((len(busy), 1), program)], 1).astype(np.float32)
