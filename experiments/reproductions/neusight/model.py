"""Cost model of operations on GPUs with three roofs: arithmetic, memory, and power.

Of each operation, with the logarithms of its losses u (products of matrices) and v (memory traffic):

    u_kernel = softplus(base_f) + log(1 + waves_f / waves) + log(1 + inner_f / inner) + lanes_f [32 lanes] + r_machine,f
    u_power  = x (log energy + q log(nanometres / 16) - log(watts / peak))
    u        = log(exp(k u_kernel) + exp(k u_power)) / k
    v        = bytes_f + r_machine
    time     = ((flops_ms e^u)^p + (bytes_ms e^v)^p)^(1/p) + launch

`energy` is that of one float32 operation at 16 nm, in pJ: where watts / peak is below it, the GPU lowers its clock. The
effects r of machines are zero for a machine that was never measured. Every parameter has a normal prior; the fit is
the most probable one (L-BFGS, without randomness).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from experiments.reproductions.neusight.operators import CHIPS, FAMILIES, PRODUCTS, Operators

POWERS = ("none", "one energy", "energy by process")
EVIDENCE = 10.0  # weight of the measurements against the priors: rows of one case are far from independent
OPERATOR_NOISE, WHOLE_NOISE = 0.1, 0.05  # relative errors from which the loss grows linearly


class Settings(NamedTuple):
    """Roofs of a model.

    Args:
        power: one of `POWERS`.
        has_lanes: products lose by 32 lanes for each scheduler.
        sharpness: k, of the corner between kernel and power.
        steps: of L-BFGS.
    """

    power: str = "energy by process"
    has_lanes: bool = True
    sharpness: float = 4.0
    steps: int = 150

    def name(self) -> str:
        """Such as `energy by process, lanes, corner 4`."""
        corner = "" if self.power == "none" else f", corner {self.sharpness:g}"
        return f"power: {self.power}{', lanes' if self.has_lanes else ''}{corner}"


class Prior(NamedTuple):
    """Mean, standard deviation and number of the values of a parameter."""

    mean: float
    deviation: float
    size: int = 1


def _priors(machines: int) -> dict[str, Prior]:
    return {
        "base": Prior(-2, 1, PRODUCTS), "waves": Prior(-1, 1, PRODUCTS), "inner": Prior(2, 1, PRODUCTS),
        "lanes": Prior(0.1, 0.1, PRODUCTS),  # a thread with 8 x 8 sums: 64 multiplications, some 6 other instructions
        "bytes": Prior(0, 0.5, len(FAMILIES)), "norm": Prior(0, 1), "launch": Prior(-5, 1),
        "energy": Prior(math.log(15), 0.5), "process": Prior(0.7, 0.25), "clock": Prior(0.8, 0.2),
        "machine": Prior(0, 0.3, machines), "machine_bmm": Prior(0, 0.1, machines),
        "machine_bytes": Prior(0, 0.2, machines),
    }  # fmt: skip


class Model:
    """The most probable parameters for measured operations and whole models.

    Args:
        operators: training rows; cases of a machine weigh the root of their number together.
        settings: which roofs.
    """

    def __init__(self, operators: Operators, settings: Settings) -> None:
        self.settings = settings
        names = sorted(set(operators.machines))
        self._priors = _priors(len(names))
        self.parameters = {
            name: torch.full((each.size,), float(each.mean), dtype=torch.double, requires_grad=True)
            for name, each in self._priors.items()
        }
        case = torch.from_numpy(operators.case)
        place = torch.tensor([names.index(each) for each in operators.machines])[case]
        columns = _columns(operators)
        measured, repeats, whole = map(torch.from_numpy, (operators.forward_ms, operators.repeats, operators.whole_ms))
        weight = torch.from_numpy(np.array([operators.machines.count(each) ** -0.5 for each in operators.machines]))
        share = repeats * measured / torch.from_numpy(operators.whole(operators.forward_ms))[case]
        row_weight = share * (weight * torch.from_numpy(operators.operators_count()))[case]
        case_weight = weight * torch.from_numpy(operators.whole_counts())
        optimizer = torch.optim.LBFGS(
            list(self.parameters.values()), max_iter=settings.steps, history_size=20, line_search_fn="strong_wolfe"
        )

        def loss() -> Tensor:
            times = self._times(columns, place)
            sums = torch.zeros_like(whole).index_add(0, case, repeats * times)
            errors = (row_weight * _huber((times / measured).log(), OPERATOR_NOISE)).sum()
            errors = errors + (case_weight * _huber((sums / whole).log(), WHOLE_NOISE)).sum()
            return EVIDENCE * errors + self._unlikely()

        def closure() -> float:
            optimizer.zero_grad()
            value = loss()
            value.backward()  # type: ignore[no-untyped-call]
            return float(value.detach())

        optimizer.step(closure)

    def predict(self, operators: Operators) -> np.ndarray:
        """Time of each row on a machine that was never measured, in ms."""
        with torch.no_grad():
            return self._times(_columns(operators), None).numpy()

    def _times(self, columns: dict[str, Tensor], place: Tensor | None) -> Tensor:
        values = self.parameters
        product = columns["product"]  # place of its family; of other rows any
        kernel = (
            functional.softplus(values["base"])[product]
            + torch.log1p(values["waves"].exp()[product] / columns["waves"])
            + torch.log1p(values["inner"].exp()[product] / columns["inner"])
        )
        traffic = values["bytes"][columns["family"]]
        if self.settings.has_lanes:
            kernel = kernel + values["lanes"][product] * columns["wide"]
        if place is not None:
            kernel = kernel + values["machine"][place] + values["machine_bmm"][place] * product
            traffic = traffic + values["machine_bytes"][place]
        if self.settings.power != "none":
            by_process = values["process"] * columns["process"] if self.settings.power == POWERS[2] else 0.0
            power = values["clock"] * (values["energy"] + by_process - columns["budget"])
            corner = self.settings.sharpness
            kernel = torch.logaddexp(corner * kernel, corner * power) / corner
        arithmetic = columns["flops_ms"] * kernel.exp() * (columns["family"] < PRODUCTS)
        norm = 1 + functional.softplus(values["norm"])
        both = ((arithmetic + 1e-9) ** norm + (columns["bytes_ms"] * traffic.exp() + 1e-9) ** norm) ** (1 / norm)
        return both + values["launch"].exp()

    def _unlikely(self) -> Tensor:
        terms = [
            (((self.parameters[name] - each.mean) / each.deviation) ** 2).sum() / 2
            for name, each in self._priors.items()
        ]
        return torch.stack(terms).sum()


def _columns(operators: Operators) -> dict[str, Tensor]:
    chips = [CHIPS[each] for each in operators.machines]
    of_case = {
        "wide": [float(each.lanes == 32) for each in chips],
        "process": [math.log(each.nanometres / 16) for each in chips],
        "budget": [math.log(1e12 * each.watts / peak) for each, peak in zip(chips, operators.peaks, strict=True)],
    }
    columns = {name: np.array(each)[operators.case] for name, each in of_case.items()}
    columns |= {
        "family": operators.family, "product": np.minimum(operators.family, PRODUCTS - 1),
        "flops_ms": operators.flops_ms, "bytes_ms": operators.bytes_ms,
        "waves": operators.feature("waves"), "inner": operators.feature("inner"),
    }  # fmt: skip
    return {name: torch.from_numpy(np.ascontiguousarray(each)) for name, each in columns.items()}


def _huber(error: Tensor, noise: float) -> Tensor:
    """Square of small errors in units of `noise`, linear for large ones (pseudo-Huber)."""
    return torch.sqrt(1 + (error / noise) ** 2) - 1


def backward_ratios(operators: Operators) -> dict[str, float]:
    """Measured backward time over forward time of each kind of operation that was trained.

    The ratio hardly depends on the machine: 1.9 to 2.1 of a linear layer on four GPUs.
    """
    kinds = np.array(operators.kinds)
    share = operators.repeats / operators.step_ms[operators.case]
    both = np.stack([operators.forward_ms, operators.backward_ms]) * share
    trained = (operators.backward_ms > 0) & (operators.step_ms > operators.whole_ms)[operators.case]
    return {
        kind: float(both[1, chosen].sum() / both[0, chosen].sum())
        for kind in sorted(set(kinds[trained]))
        if (chosen := trained & (kinds == kind)).any()
    }
