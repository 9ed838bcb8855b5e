"""Measurements joined with the kernels of their programs: tables and FX sources -> rows that models learn from."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from experiments.reproductions.graphnet.reader import (
    FxSource,
    Operation,
    Value,
    Weight,
    is_image_input,
    operator_graph,
    read_sources,
)
from experiments.reproductions.timm.step_time.fusion import runs_channels_last
from experiments.reproductions.timm.step_time.kernels import COLUMNS, PER_SAMPLE, Kernels, kernels_of
from experiments.reproductions.timm.step_time.machines import machine_of
from experiments.reproductions.timm.step_time.rows import Setting, row_of
from experiments.reproductions.timm.step_time.steps import in_order
from experiments.reproductions.timm.tables import Measurement, read_tables
from gst.data.source import fingerprint_of_files
from gst.util.progress import bar

VERSION = 3  # of what a row holds
FUSED_ATTENTION = 200  # version of torch times 100 from which attention is one operation
MOST_SCALE = 4.0  # of the area of an image, where a source cannot be read at the size of the table
LARGER, ROUNDED = 1e-3, 0.006  # share and millions of parameters that a source may have more than a table states
MERGED = "branches merged before it was timed"
AREAS = [*PER_SAMPLE, COLUMNS.index("positions")]
"""Columns that grow with the area of an image."""
Mode = tuple[str, bool, bool, bool, bool]
"""Precision, compiled, NHWC, on a CPU, attention is one operation: what the kernels of a program depend on."""


class Rows(NamedTuple):
    """Measurements of programs with known operators.

    Args:
        measurements: one of each row.
        terms: time in ms at peak rates, by term and class, flattened: (rows, TERMS * classes).
        columns: descriptors of a row: sums, and means over its kernels weighted by their time at peak rates.
        setting: of the row's table, as numbers.
        log_step: log of the measured milliseconds.
        program: place of each row's program in `kernels`.
        kernels: of every program, equal ones as one.
    """

    measurements: list[Measurement]
    terms: Float64[np.ndarray, "rows terms"]
    columns: Float64[np.ndarray, "rows columns"]
    setting: Float64[np.ndarray, "rows 7"]
    log_step: Float64[np.ndarray, " rows"]
    program: Int64[np.ndarray, " rows"]
    kernels: list[Kernels]

    def __len__(self) -> int:
        return len(self.measurements)

    def where(self, chosen: np.ndarray) -> Rows:
        """The chosen rows."""
        places = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
        measurements, *arrays, kernels = self
        return Rows([measurements[place] for place in places], *(each[places] for each in arrays), kernels)

    @property
    def programs(self) -> list[tuple[Kernels, int]]:
        """Kernels and batch of each row."""
        pairs = zip(self.program.tolist(), self.measurements, strict=True)
        return [(self.kernels[place], each.batch) for place, each in pairs]

    def is_mode(self, mode: str) -> np.ndarray:
        """Mark the rows of a mode, `infer` or `train`.

        Raises:
            ValueError: none is.
        """
        chosen = np.array([each.setting.mode == mode for each in self.measurements])
        if not chosen.any():
            raise ValueError(f"no table with known programs is of mode {mode}; choose another --mode")
        return chosen


def read_rows(measurements: Sequence[Measurement], sources: Sequence[FxSource]) -> tuple[Rows, dict[str, int]]:
    """Rows of the measurements whose program has a source, and why others have none: `{reason: measurements}`.

    A source is that of the measured model if their parameters differ by less than 5 %. Where it has more than a table
    states for a model, that table merged the branches of the model before it was timed: all models of its family are
    left out of the table, whose programs have no source.

    Raises:
        ValueError: no measurement has a source and a machine with rates.
    """
    by_model: dict[str, list[FxSource]] = {}
    for source in sources:
        by_model.setdefault(source.name.split(".")[0], []).append(source)
    unknown: dict[str, str] = {}
    for machine in sorted({each.setting.machine for each in measurements}):
        try:
            machine_of(machine)
        except ValueError as error:
            unknown[machine] = str(error)
    wanted: dict[str, set[tuple[int, Mode]]] = {}
    for each in measurements:
        if each.model in by_model and each.setting.machine not in unknown:
            wanted.setdefault(each.model, set()).add((each.image_size, _mode(each.setting)))
    tasks = [(by_model[model], sorted(wanted[model])) for model in sorted(wanted)]
    kernels: dict[tuple[str, int, Mode], tuple[Kernels, float]] = {}
    notes: dict[str, int] = {}
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for part in bar(pool.map(_programs, tasks, chunksize=4), desc="operator graphs", total=len(tasks)):
            for key, value in part.items():
                if isinstance(value, str):
                    notes[value] = notes.get(value, 0) + 1
                else:
                    kernels[key] = value
    place_of: dict[tuple[str, int, Mode], int] = {}
    matched: list[tuple[Measurement, tuple[str, int, Mode]]] = []
    merged: set[tuple[str, str]] = set()
    missing = {"no source": 0, "source of other parameters or size": 0}
    for each in measurements:
        if each.setting.machine in unknown:
            reason = unknown[each.setting.machine]
            missing[reason] = missing.get(reason, 0) + 1
            continue
        if each.model not in by_model:
            missing["no source"] += 1
            continue
        keys = [(source.name, each.image_size, _mode(each.setting)) for source in by_model[each.model]]
        options = [key for key in keys if key in kernels]
        sizes = [kernels[key][1] for key in options]
        gaps = [abs(math.log(size / each.parameters)) if each.parameters and size else 0.0 for size in sizes]
        if not options or min(gaps) > 0.05:
            missing["source of other parameters or size"] += 1
            continue
        best = int(np.argmin(gaps))
        matched.append((each, options[best]))
        if each.parameters and sizes[best] > (1 + LARGER) * each.parameters + ROUNDED:
            merged.add((each.table, each.family))
    rows, chosen, places = [], [], []
    for each, key in matched:
        if (each.table, each.family) in merged:
            missing[MERGED] = missing.get(MERGED, 0) + 1
            continue
        rows.append(row_of(kernels[key][0], each.batch, each.image_size, each.setting))
        places.append(place_of.setdefault(key, len(place_of)))
        chosen.append(each)
    if not rows:
        reasons = "; ".join(unknown.values()) or "give a folder that holds tables and GraphNet samples of their models"
        raise ValueError(f"no measurement has a program with a source and a machine with rates: {reasons}")
    terms, columns, setting = (np.stack(part) for part in zip(*rows, strict=True))
    steps = np.log(np.array([each.step for each in chosen]))
    programs = [kernels[key][0] for key in place_of]
    return Rows(chosen, terms, columns, setting, steps, np.array(places, np.int64), programs), missing | notes


def _mode(setting: Setting) -> Mode:
    machine = machine_of(setting.machine)
    return (setting.precision, setting.is_compiled, setting.is_channels_last, machine.is_cpu,
            setting.torch >= FUSED_ATTENTION)  # fmt: skip


def _programs(task: tuple[list[FxSource], list[tuple[int, Mode]]]) -> dict[Any, Any]:
    sources, wanted = task
    result: dict[Any, Any] = {}
    for source in sources:
        millions = sum(math.prod(each.shape) for name, each in source.inputs.items() if "parameters" in name) / 1e6
        for size in sorted({size for size, _ in wanted}):
            try:
                graphs, scale = _graphs(source, size)
            except ValueError as error:
                result[source.name, size, None] = str(error)
                continue
            for mode in (mode for each, mode in wanted if each == size):
                precision, is_compiled, is_nhwc, is_cpu, is_fused = mode
                is_last = runs_channels_last(graphs[0], is_compiled, is_nhwc, is_cpu)
                operations = graphs[is_last] if is_fused else separate_attention(graphs[is_last])
                kernels = kernels_of(operations, precision, is_compiled, is_last, is_cpu)
                kernels.columns[:, AREAS] *= np.where(kernels.grows > 0, scale, 1.0)[:, None]
                result[source.name, size, mode] = (merged(kernels), millions)
    return result


def merged(kernels: Kernels) -> Kernels:
    """The same kernels, with equal ones as one that is counted."""
    table = np.column_stack([kernels.kind, kernels.grows, kernels.columns]).astype(np.float32)
    _, first, place = np.unique(table, axis=0, return_index=True, return_inverse=True)
    count = np.bincount(np.ravel(place), kernels.repeats, len(first)).astype(np.int64)
    return Kernels(kernels.kind[first], kernels.columns[first], kernels.grows[first], count)


def separate_attention(operations: Sequence[Operation]) -> list[Operation]:
    """Attention as two products, a scale, a mask and a softmax: what ran before torch 2.0 had one operation for it."""
    result: list[Operation] = []
    fresh = -(10**6)
    for operation in operations:
        if operation.kind != "scaled_dot_product_attention":
            result.append(operation)
            continue
        query, keys, values, *mask = operation.reads
        shape = (*query.shape[:-1], keys.shape[-2])
        transposed = keys._replace(
            shape=(*keys.shape[:-2], keys.shape[-1], keys.shape[-2]),
            strides=(*keys.strides[:-2], keys.strides[-1], keys.strides[-2]),
        )
        made = [Value(fresh - each, fresh - each, shape, in_order(shape), query.dtype, False) for each in range(4)]
        fresh -= 4
        result.append(Operation("matmul", (query, transposed), (made[0],), {}, False))
        result.append(Operation("mul", (made[0],), (made[1],), {}, False))
        if mask:
            result.append(Operation("add", (made[1], mask[0]), (made[2],), {}, False))
        result.append(Operation("softmax", (made[1 + bool(mask)],), (made[3],), {}, False))
        result.append(Operation("matmul", (made[3], values), operation.writes, {}, False))
    return result


def _graphs(source: FxSource, size: int) -> tuple[tuple[list[Operation], list[Operation]], float]:
    """Operators in NCHW and in NHWC, and by what their work is to be multiplied, for images of a size."""
    scale, own = 1.0, size
    try:
        operations = operator_graph(source, size)
    except ValueError:  # its positions are those of one image size
        own = 0
        operations = operator_graph(source)
        scale = size**2 / max(_image_pixels(source.inputs), 1)
        if not 1 / MOST_SCALE <= scale <= MOST_SCALE:  # attention grows with the square of the area
            raise
    try:
        return (operations, operator_graph(source, own or None, True)), scale
    except ValueError:  # it takes a view that the order of elements in NHWC does not allow
        return (operations, operations), scale


def _image_pixels(weights: dict[str, Weight]) -> int:
    images = [each.shape for name, each in weights.items() if is_image_input(name, each)]
    return math.prod(images[0][2:]) if images else 0


def load_rows(data: Path, cache: Path | None = None) -> tuple[Rows, dict[str, int]]:
    """Rows of the tables and FX sources under a folder at any depth, or in its archives; see `read_rows`.

    Args:
        data: folder with `benchmark-*.csv` and samples of GraphNet, or with `timm.tar.xz` and `graphnet_timm.tar.xz`.
        cache: file in which the rows are kept, and from which they are read again while the data are the same.

    Raises:
        ValueError: there is no table or no source; the message says what to give.
    """
    tables = [data, *sorted(data.rglob("*timm.tar.xz"))] if data.is_dir() else [data]
    archives = [each for each in tables[1:] if "graphnet" in each.name]
    files = [each for each in sorted(data.rglob("*")) if each.suffix in (".csv", ".py")] if data.is_dir() else []
    files += tables[1:] or ([data] if data.is_file() else [])
    if not files:
        raise ValueError(f"{data}: it holds no tables; give a folder with benchmark-*.csv and GraphNet samples")
    mark = fingerprint_of_files(files, f"timm {VERSION}")
    measurements = [row for each in tables if each not in archives for row in read_tables(each, must_hold=False)]
    if not measurements:
        raise ValueError(f"{data}: it holds no table benchmark-*.csv")
    if cache is not None and cache.exists():
        with np.load(cache, allow_pickle=False) as saved:
            if str(saved["mark"]) == mark:
                chosen = [measurements[place] for place in saved["places"]]
                missing = dict(zip(saved["reasons"].tolist(), saved["counts"].tolist(), strict=True))
                arrays = [saved[name] for name in Rows._fields[1:-1]]
                parts = [np.split(saved[f"kernels {name}"], saved["begin"]) for name in Kernels._fields]
                return Rows(chosen, *arrays, [Kernels(*each) for each in zip(*parts, strict=True)]), missing
    sources = [
        source for each in (data, *archives) if each.is_dir() or each in archives for source in read_sources(each)
    ]
    rows, missing = read_rows(measurements, sources)
    if cache is not None:
        place_of = {each: place for place, each in enumerate(measurements)}
        cache.parent.mkdir(parents=True, exist_ok=True)
        arrays = dict(zip(Rows._fields[1:-1], rows[1:-1], strict=True))
        for place, name in enumerate(Kernels._fields):
            arrays[f"kernels {name}"] = np.concatenate([each[place] for each in rows.kernels])
        arrays["begin"] = np.cumsum([len(each.kind) for each in rows.kernels])[:-1]
        np.savez(cache, mark=mark, places=[place_of[each] for each in rows.measurements], reasons=list(missing),
                 counts=list(missing.values()), **arrays)  # fmt: skip
    return rows, missing
