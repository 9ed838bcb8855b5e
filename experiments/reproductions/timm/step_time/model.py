"""A model of step times: efficiencies of kernels on machines that were measured, and trees that correct their sum.

time = sum over classes and terms of (time at peak rates) x weight, weight >= 0     [terms: products, bytes, launches]
log time += trees(shares of the classes, descriptors of the kernels, setting, rates of the machine)
A `Network` weights each kernel; other trees correct its sum, and `NETWORK` is its share. See `model_card.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64

from experiments.reproductions.timm.step_time.kernels import CLASSES, Kernels
from experiments.reproductions.timm.step_time.machines import Machine, machine_of
from experiments.reproductions.timm.step_time.rows import TERMS, Setting, kernel_descriptors, kernel_times

NETWORK = 0.75  # share of the networks in the logarithm of a time
LEAST, MOST = -4.0, 5.0  # logarithms of how many times longer than at peak rates
ROWS = 512  # programs whose kernels are worked out at once
RATES = [3, 4]  # of a setting's numbers: rates of its machine
Terms = Float64[np.ndarray, "rows terms"]
Columns = Float64[np.ndarray, "rows columns"]


class Trees(NamedTuple):
    """Regression trees whose predictions are added, as arrays of all nodes.

    Args:
        feature: column that each node compares; -1 at a leaf.
        threshold: rows up to this value go left.
        left, right: children of each node.
    """

    base: float
    feature: Int64[np.ndarray, " nodes"]
    threshold: Float64[np.ndarray, " nodes"]
    left: Int64[np.ndarray, " nodes"]
    right: Int64[np.ndarray, " nodes"]
    value: Float64[np.ndarray, " nodes"]
    roots: Int64[np.ndarray, " trees"]

    def predict(self, columns: Float[np.ndarray, "rows columns"]) -> Float64[np.ndarray, " rows"]:
        """Sum the leaves that each row ends in."""
        rows = np.arange(len(columns))[:, None]
        node = np.repeat(self.roots[None], len(columns), axis=0)
        while (self.feature[node] >= 0).any():
            inner = self.feature[node] >= 0
            is_left = columns[rows, np.maximum(self.feature[node], 0)] <= self.threshold[node]
            node = np.where(inner, np.where(is_left, self.left[node], self.right[node]), node)
        return self.base + self.value[node].sum(axis=1)


class Network(NamedTuple):
    """Network of two layers, the second residual; its inputs are descriptors of a kernel and codes of class and table.

    Tables share the network, so that measurements of one table serve the others.

    Args:
        least, most: range of each descriptor in training; inputs are clipped to it.
        lowest, highest: range of the results of each class and term in training; results are clipped to it.
        classes, tables: code of each class of kernels and of each table.
        base, scale: added logarithms of each class and term, and of each table.
    """

    least: Float64[np.ndarray, " descriptors"]
    most: Float64[np.ndarray, " descriptors"]
    lowest: Float64[np.ndarray, "classes terms"]
    highest: Float64[np.ndarray, "classes terms"]
    classes: Float64[np.ndarray, "classes code"]
    tables: Float64[np.ndarray, "tables code"]
    base: Float64[np.ndarray, "classes terms"]
    scale: Float64[np.ndarray, "tables classes terms"]
    first: Float64[np.ndarray, "inputs hidden"]
    first_bias: Float64[np.ndarray, " hidden"]
    second: Float64[np.ndarray, "hidden hidden"]
    second_bias: Float64[np.ndarray, " hidden"]
    last: Float64[np.ndarray, "hidden terms"]
    last_bias: Float64[np.ndarray, " terms"]

    def log_factors(
        self, kind: Int64[np.ndarray, " kernels"], descriptors: Float64[np.ndarray, "kernels descriptors"],
        tables: Sequence[int],
    ) -> Float64[np.ndarray, "kernels terms"]:  # fmt: skip
        """Return the logarithm of each kernel's factor on its time at peak rates, as a mean over `tables`."""
        code, scale = self.tables[list(tables)].mean(0), self.scale[list(tables)].mean(0)
        bounded = np.clip(descriptors, self.least, self.most)
        inputs = np.concatenate([bounded, self.classes[kind], np.tile(code, (len(kind), 1))], 1)
        hidden = _silu(inputs @ self.first + self.first_bias)
        hidden = hidden + _silu(hidden @ self.second + self.second_bias)
        factors = hidden @ self.last + self.last_bias + self.base[kind] + scale[kind]
        return np.clip(factors, self.lowest[kind], self.highest[kind])


def _silu(array: np.ndarray) -> np.ndarray:
    return np.asarray(array / (1 + np.exp(-np.clip(array, -60, 60))))


def network_times(
    networks: Sequence[Network], programs: Sequence[tuple[Kernels, int]], settings: Sequence[Setting],
    tables: dict[Setting, list[int]], machine: Machine | None = None,
) -> Float64[np.ndarray, "rows terms"]:  # fmt: skip
    """Predict milliseconds by term and class of kernels, flattened, averaged over networks: (rows, TERMS * classes).

    Args:
        programs, settings: kernels and batch, and the setting, of each row.
        tables: places of the tables that a setting is like.
        machine: of all rows; None = that of the setting.
    """
    result = np.zeros((len(programs), TERMS, len(CLASSES)))
    for setting in set(settings):
        chosen = [place for place, each in enumerate(settings) if each == setting]
        rates = machine or machine_of(setting.machine)
        for begin in range(0, len(chosen), ROWS):
            part = chosen[begin : begin + ROWS]
            kernels = [programs[place] for place in part]
            kind = np.concatenate([each.kind for each, _ in kernels])
            times = np.concatenate([kernel_times(each, batch, rates) for each, batch in kernels], 1)
            described = np.concatenate([kernel_descriptors(each, batch, setting, rates) for each, batch in kernels])
            factors = np.mean([np.exp(each.log_factors(kind, described, tables[setting])) for each in networks], 0)
            row = np.repeat(part, [len(each.kind) for each, _ in kernels])
            for term in range(TERMS):
                np.add.at(result[:, term], (row, kind), times[term] * factors[:, term])
    return result.reshape(len(programs), -1)


class Model(NamedTuple):
    """Trained model of step times.

    Args:
        weights: of every term of these tables: (tables, terms).
        pools: kinds of tables, see `kind_of`, and the weights of each.
        boosted: sets of trees that correct the sum over classes.
        corrected: sets of trees that correct the sum over kernels.
        widths: half width of an interval of log time for each kind of table; for machines never measured, in addition.
    """

    settings: list[Setting]
    weights: Float64[np.ndarray, "tables terms"]
    pools: dict[str, Float64[np.ndarray, " terms"]]
    boosted: list[Trees]
    networks: list[Network]
    corrected: list[Trees]
    widths: dict[str, float]

    def weights_of(self, setting: Setting) -> Float64[np.ndarray, " terms"]:
        """Return efficiencies for a setting: of its machine's most similar tables, else of its kind."""
        alike = self._tables_of_machine(setting)
        if not alike:
            kind = kind_of(setting)
            return self.pools.get(kind, self.pools.get(kind.removesuffix(" half"), self.pools[""]))
        return self.weights[alike].mean(0)

    def tables_like(self, setting: Setting) -> list[int]:
        """Return the places of the tables similar to a setting: those of its machine, else of its kind, else all."""
        kinds = [kind_of(each) for each in self.settings]
        for kind in (kind_of(setting), kind_of(setting).removesuffix(" half")):
            of_kind = [place for place, each in enumerate(kinds) if each == kind]
            alike = [place for place in of_kind if self.settings[place].is_channels_last == setting.is_channels_last]
            if of_kind:
                return self._tables_of_machine(setting) or alike or of_kind
        return list(range(len(self.settings)))

    def _tables_of_machine(self, setting: Setting) -> list[int]:
        alike = [place for place, each in enumerate(self.settings)
                 if kind_of(each) == kind_of(setting) and each.machine == setting.machine]  # fmt: skip
        same = [place for place in alike if self.settings[place].is_channels_last == setting.is_channels_last] or alike
        gaps = [abs(self.settings[place].torch - setting.torch) for place in same]
        return [place for place, gap in zip(same, gaps, strict=True) if gap == min(gaps)]

    def parts(
        self, settings: Sequence[Setting], terms: Terms, programs: Sequence[tuple[Kernels, int]],
        machine: Machine | None = None,
    ) -> list[tuple[Terms, list[Trees]]]:  # fmt: skip
        """Return milliseconds of each row by term and class, and the trees that correct their sum.

        There is one pair for the efficiencies of classes, and one for the networks if there are any. See `predict`.
        """
        of = {setting: self.weights_of(setting) for setting in set(settings)}
        result = [(terms * np.stack([of[each] for each in settings]), self.boosted)]
        if self.networks:
            tables = {each: self.tables_like(each) for each in of}
            result.append((network_times(self.networks, programs, settings, tables, machine), self.corrected))
        return result

    def _correction(
        self, weighted: Terms, boosted: list[Trees], settings: Sequence[Setting], columns: Columns,
        numbers: Float64[np.ndarray, "rows 7"],
    ) -> Float64[np.ndarray, " rows"]:  # fmt: skip
        """Average the sets of trees; for a machine without tables also over the rates of similar machines."""
        if not boosted:
            return np.zeros(len(weighted))
        result = np.zeros(len(weighted))
        for setting in set(settings):
            rows = np.array([each == setting for each in settings])
            alike = sorted({self.settings[place].machine for place in self.tables_like(setting)})
            is_known = setting.machine in alike or any(each.machine == setting.machine for each in self.settings)
            described = []
            for name in [None] if is_known else alike:
                of_machine = numbers[rows].copy()
                if name is not None:
                    of_machine[:, RATES] = machine_of(name).half, machine_of(name).bandwidth
                described.append(tree_columns(weighted[rows], columns[rows], of_machine))
            result[rows] = np.mean([each.predict(part) for each in boosted for part in described], 0)
        return result

    def predict(
        self, settings: Sequence[Setting], terms: Terms, columns: Columns, numbers: Float64[np.ndarray, "rows 7"],
        programs: Sequence[tuple[Kernels, int]], machine: Machine | None = None,
    ) -> tuple[Float64[np.ndarray, " rows"], Float64[np.ndarray, " rows"]]:  # fmt: skip
        """Return log milliseconds, and half the width of an interval that holds 90 % of programs of new families.

        Args:
            terms, columns, numbers: results of `step_time.rows.row_of`, row by row.
            machine: of all rows; None = that of the setting.
        """
        logs = [
            np.log(np.maximum(weighted.sum(1), 1e-6)) + self._correction(weighted, boosted, settings, columns, numbers)
            for weighted, boosted in self.parts(settings, terms, programs, machine)
        ]
        machines = {each.machine for each in self.settings}
        widths = [
            self.widths.get(kind_of(each), max(self.widths.values()))
            if each.machine in machines else self.widths["new machine"]
            for each in settings
        ]  # fmt: skip
        shares = [1 - NETWORK, NETWORK] if len(logs) > 1 else [1.0]
        return np.average(logs, 0, shares), np.array(widths)


def kind_of(setting: Setting) -> str:
    """Name the kind of a table: CPU or GPU, inference or training, compiled or not, 16 bits without autocast."""
    place = "cpu" if setting.machine.startswith("cpu") else "gpu"
    compiler = "compiled" if setting.is_compiled else "eager"
    return f"{place} {setting.mode} {compiler}" + (" half" if setting.precision == "half" else "")


def tree_columns(
    weighted: Terms, columns: Columns, numbers: Float64[np.ndarray, "rows 7"]
) -> Float64[np.ndarray, "rows descriptors"]:
    """Return the inputs of trees: shares of classes and terms, columns, setting, and the ratio to peak rates."""
    total = weighted.sum(1)
    shares = weighted.reshape(len(weighted), TERMS, len(CLASSES)) / np.maximum(total, 1e-9)[:, None, None]
    gap = np.log(np.maximum(total, 1e-6)) - columns[:, 0]
    return np.concatenate([shares.sum(1), shares.sum(2), columns, numbers, gap[:, None]], 1)


def load(path: Path) -> Model:
    """Read a model from a file such as `weights.pt`; raise ValueError if it holds none."""

    def wide(tensor: torch.Tensor) -> Any:
        return tensor.numpy().astype(np.float64 if tensor.is_floating_point() else np.int64)

    def trees(parts: Sequence[Any]) -> Trees:
        return Trees(float(parts[0]), *map(wide, parts[1]))

    try:
        saved = torch.load(path, weights_only=True)
        return Model(
            [Setting(*each) for each in saved["settings"]], wide(saved["weights"]),
            {str(kind): wide(each) for kind, each in saved["pools"].items()}, [trees(each) for each in saved["trees"]],
            [Network(*map(wide, each)) for each in saved["networks"]], [trees(each) for each in saved["corrected"]],
            {str(kind): float(each) for kind, each in saved["widths"].items()},
        )  # fmt: skip
    except (OSError, KeyError, RuntimeError, TypeError, AttributeError, EOFError, UnpicklingError) as error:
        raise ValueError(f"{path} holds no model of step times; install the package again") from error
