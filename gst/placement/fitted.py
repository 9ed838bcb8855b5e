"""A simulator whose costs are fitted to measured runtimes of plans: factors of operations, devices and links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from gst.lowering.plan import Plan, Timeline
from gst.placement.objectives import LEAST_MEASUREMENTS, Answers, Learned, Surrogate
from gst.placement.task import Task
from gst.programs.features import KINDS, kind_of
from gst.simulation.copies import copies_of, critical_path
from gst.simulation.simulator import Simulator

KIND, CLASS, DEVICE, MODEL, LINK, ONE_LINK = 0.3, 0.2, 0.2, 0.15, 0.5, 0.2
"""Standard deviations of logarithms of factors, a priori."""
LAUNCH_US = 2.0  # the same of the time added to each operation
CONTENTION = {"remote_ns_per_byte": 0.1, "switch_us": 1.0}
"""The same of what operations cost each other (`Contention`)."""
SHARED_MEMORY = {"hand_over_us": 2.0, "slowdown": 0.05}
"""The same, where devices share a memory."""
SLOWER = 0.01  # step of the derivative by that share
ERRORS = (0.01, 0.02, 0.04, 0.08, 0.16)  # of the model and a measurement, in logarithms; the likeliest is taken
STEPS = 4  # of Gauss and Newton
SHARES = (1.0, 0.5, 0.25)  # of a step that are tried
UNSURE = 0.25  # least share of the deviation a priori that a learned parameter keeps for another program

Rows = Float64[np.ndarray, "plans parameters"]


class Layout(NamedTuple):
    """Positions of the parameters of a task in their vector.

    Args:
        columns: of the factors of each operation on each device.
        launch: of the time added to operations of each model of device, by device.
        contention: of what operations cost each other, by the names of `Contention`; hand-over and wake share one.
        links: of the factors of latency, then of rate, from device to device: that of all links, that of this one.
        shared: of those that other programs have, too, by name.
        widths: standard deviation of each parameter a priori.
    """

    columns: Int64[np.ndarray, "devices nodes factors"]
    launch: Int64[np.ndarray, " devices"]
    contention: dict[str, int]
    links: Int64[np.ndarray, "2 devices devices 2"]
    shared: dict[str, int]
    widths: Float64[np.ndarray, " parameters"]


class FittedSimulator(Surrogate):
    """A cost model (`gst.placement.objectives.Surrogate`): the simulator, with costs that explain the measured plans.

    An operation takes its time times four factors, of its kind, of its class (operations alike in opcode, size and
    time), of its device, and of its kind on that model of device; and a launch more. The next on its device begins a
    while later. Where devices share a memory, those on others do so too, and operations slow each other down. A copy
    takes its latency and its bytes times factors of links.

    Logarithms of factors are normal a priori. Gauss-Newton steps find the MAP estimate, with shares of the critical
    path as derivatives (Tarantola, Inverse Problem Theory, 2005, section 3.4). Deviations are of the linearised
    posterior.

    Args:
        learned: on other programs of this machine (`learned`); then the model counts before anything is measured.

    Examples:
        >>> import gst
        >>> task = gst.placement.machine("gpus:2").task(gst.programs.traced("rnnlm:layers=1,steps=2"))
        >>> model = FittedSimulator(task)
        >>> plans = [task.plan(np.full(task.num_nodes, device)) for device in (0, 1)]
        >>> simulated_ms = task.simulator.makespans(plans) / 1e3
        >>> model.learn(plans, simulated_ms, np.log([1.5, 1.5]))  # all takes half as long again
        >>> corrected_ms = model.corrected(task).simulator.makespans(plans) / 1e3
        >>> bool((np.abs(np.log(corrected_ms / simulated_ms / 1.5)) < 0.02).all())
        True
    """

    corrects: bool = True

    def __init__(self, task: Task, learned: Learned = MappingProxyType({})) -> None:
        self._task, self._learned = task, learned
        self._layout = layout(task)
        self._mean, self._prior = np.zeros(len(self._layout.widths)), self._layout.widths**2
        for name, place in self._layout.shared.items():
            if name in learned:
                self._mean[place], self._prior[place] = learned[name][0], learned[name][1] ** 2
        self.least = 0 if learned else LEAST_MEASUREMENTS
        self.parameters = self._mean.copy()
        self._fitted = Fitted(task, self._layout, self.parameters)
        self._rows = np.zeros((0, len(self._prior)))
        self._values = np.zeros(0)
        self._inverse, self.error = np.zeros((0, 0)), ERRORS[1]

    def learn(self, plans: Sequence[Plan], simulated_ms: Answers, logs: Answers) -> None:
        """Fit the parameters to logarithms of measured / simulated runtimes; the last estimate is the first guess."""
        want = np.log(simulated_ms) + logs
        for _ in range(STEPS):
            now, rows = self._fitted.logs_and_rows(plans)
            self._condition(rows, want - now + rows @ (self.parameters - self._mean))
            target = self._mean + self._prior * (rows.T @ (self._inverse @ self._values))
            if not self._move(target - self.parameters, plans, want, now):
                break
        now, rows = self._fitted.logs_and_rows(plans)
        self._condition(rows, want - now + rows @ (self.parameters - self._mean))

    def learned(self) -> Learned:
        if not len(self._rows):
            return self._learned
        known = self._rows * self._prior
        variances = np.maximum(self._prior - (known * (self._inverse @ known)).sum(0), 0.0)
        deviations = np.maximum(np.sqrt(variances), UNSURE * self._layout.widths).tolist()
        means, places = self.parameters.tolist(), self._layout.shared
        return {**self._learned, **{name: (means[place], deviations[place]) for name, place in places.items()}}

    def leave_one_out_residuals(self) -> Answers:
        """Return by how much each measured logarithm exceeds its prediction by the others (Rasmussen and Williams,
        Gaussian Processes for Machine Learning, 2006, equation 5.12)."""
        return (self._inverse @ self._values) / np.diag(self._inverse)

    def _condition(self, rows: Rows, values: Answers) -> None:
        """Condition the parameters on measured plans, with the error of greatest likelihood; values are less those of
        the prior."""
        covariance = (rows * self._prior) @ rows.T
        likelihoods = []
        for error in ERRORS:
            whole = covariance + error**2 * np.eye(len(rows))
            likelihoods.append(-np.linalg.slogdet(whole)[1] - values @ np.linalg.solve(whole, values))
        self.error = ERRORS[int(np.argmax(likelihoods))]
        self._rows, self._values = rows, values
        self._inverse = np.linalg.inv(covariance + self.error**2 * np.eye(len(rows)))

    def __call__(self, plans: Sequence[Plan], simulated_ms: Answers) -> tuple[Answers, Answers]:
        rows = self._fitted.logs_and_rows(plans)[1]
        spread = rows * self._prior
        known = spread @ self._rows.T
        variance = (spread * rows).sum(1) - ((known @ self._inverse) * known).sum(1)
        return np.zeros(len(plans)), np.sqrt(np.maximum(variance, 0.0) + self.error**2)

    def means(self, plans: Sequence[Plan], simulated_ms: Answers) -> Answers:
        return np.zeros(len(plans))

    def corrected(self, task: Task, generator: np.random.Generator | None = None) -> Task:
        fitted = self._fitted
        if generator is not None:
            fitted = Fitted(self._task, self._layout, self._posterior_sample(generator))
        return replace(task, costs=replace(fitted.costs, devices=task.devices), contention=fitted.contention)

    def _posterior_sample(self, generator: np.random.Generator) -> Float64[np.ndarray, " parameters"]:
        """Return a posterior sample: one of the prior, moved by its residuals from the measured values (Journel and
        Huijbregts, Mining Geostatistics, 1978: conditioning by kriging)."""
        sample = np.sqrt(self._prior) * generator.standard_normal(len(self._prior))
        noise = self.error * generator.standard_normal(len(self._rows))
        residuals = self._values + noise - self._rows @ sample
        return self._mean + sample + self._prior * (self._rows.T @ (self._inverse @ residuals))

    def _move(self, step: np.ndarray, plans: Sequence[Plan], want: Answers, now: Answers) -> bool:
        """Go as far along a step as it lowers the loss; return False if it does not."""
        before = self._loss(self.parameters, now, want)
        for share in SHARES:
            parameters = self.parameters + share * step
            fitted = Fitted(self._task, self._layout, parameters)
            if self._loss(parameters, np.log(fitted.simulator.makespans(plans) / 1e3), want) < before:
                self.parameters, self._fitted = parameters, fitted
                return True
        return False

    def _loss(self, parameters: np.ndarray, now: Answers, want: Answers) -> float:
        return float(np.sum(((now - want) / self.error) ** 2) + np.sum((parameters - self._mean) ** 2 / self._prior))


class Fitted:
    """The simulator of a task with factors of its costs."""

    def __init__(self, task: Task, places: Layout, parameters: Float64[np.ndarray, " parameters"]) -> None:
        costs, self._places = task.costs, places
        self._scaled = costs.times_us * np.exp(parameters[places.columns].sum(-1))
        self._launched = costs.computed & (costs.times_us.min(0) > 0)
        more = parameters[places.launch][:, None] * self._launched
        times_us = np.maximum(self._scaled + more, 0.0)
        latency, rate = np.exp(parameters[places.links].sum(-1))
        self.costs = replace(
            costs, times_us=times_us, latency_us=costs.latency_us * latency, bytes_per_us=costs.bytes_per_us * rate
        )
        self.contention = task.contention._replace(**{
            name: max(getattr(task.contention, name) + float(parameters[place]), 0.0)
            for name, place in places.contention.items()
        })  # fmt: skip

    @cached_property
    def simulator(self) -> Simulator:
        return Simulator(self.costs, self.contention)

    @cached_property
    def _slower(self) -> Simulator:
        """The simulator where operations slow each other down more, for a derivative."""
        return Simulator(self.costs, self.contention._replace(slowdown=self.contention.slowdown + SLOWER))

    def logs_and_rows(self, plans: Sequence[Plan]) -> tuple[Answers, Rows]:
        """Return logarithms of milliseconds, and their derivatives by the parameters."""
        rows = np.zeros((len(plans), len(self._places.widths)))
        logs = np.zeros(len(plans))
        for number, plan in enumerate(plans):
            run = self.simulator.run(plan)
            logs[number] = np.log(run.makespan_us / 1e3)
            rows[number] = self._row(run) / max(run.makespan_us, 1e-9)
            if (place := self._places.contention.get("slowdown")) is not None:
                rows[number, place] = (np.log(self._slower.run(plan).makespan_us / 1e3) - logs[number]) / SLOWER
        return logs, rows

    def _row(self, run: Timeline) -> Float64[np.ndarray, " parameters"]:
        costs, copies = self.costs, copies_of(self.costs, run)
        path, _, sent = critical_path(costs, run, copies, follow_queues=True)
        worker = self.simulator.worker[run.device]
        reader, read = costs.producers.of(path)
        remote_bytes = costs.output_bytes[read[worker[read] != worker[path[reader]]]].sum()
        switches = int((worker[path[1:]] == worker[path[:-1]]).sum())  # of an operation after another on its thread
        nodes = path[self._launched[path]]
        home, row = run.device[nodes], np.zeros(len(self._places.widths))
        for column in self._places.columns[home, nodes].T:
            np.add.at(row, column, self._scaled[home, nodes])
        np.add.at(row, self._places.launch[home], 1.0)
        waits = {"remote_ns_per_byte": remote_bytes / 1e3, "switch_us": switches}
        waits["hand_over_us"] = len(path) - switches
        for name in waits.keys() & self._places.contention.keys():
            row[self._places.contention[name]] = waits[name]
        here, there = run.device[copies.node[sent]], copies.device[sent]
        latency = costs.latency_us[here, there]
        took = costs.output_bytes[copies.node[sent]] / costs.bytes_per_us[here, there]
        for columns, values in zip(self._places.links[:, here, there], (latency, -took), strict=True):
            for column in columns.T:
                np.add.at(row, column, values)
        return row


def layout(task: Task) -> Layout:
    """Return the parameters of a task."""
    costs, kinds = task.costs, kinds_of(task)
    finite = np.where(np.isfinite(costs.times_us), costs.times_us, -1.0)
    sizes = np.log(np.maximum(np.vstack([finite, costs.output_bytes]), 1e-3)).round(2)
    classes = np.unique(np.vstack([task.graph.opcodes, sizes]), axis=1, return_inverse=True)[1].reshape(-1)
    models = np.unique(finite, axis=0, return_inverse=True)[1].reshape(-1)
    devices, num_kinds, num_models = len(costs.devices), int(kinds.max()) + 1, int(models.max()) + 1
    is_shared = len({device.memory for device in costs.devices}) < devices
    waits = CONTENTION | (SHARED_MEMORY if is_shared else {})
    blocks = {  # number of parameters, and their standard deviation a priori
        "kind": (num_kinds, KIND), "class": (int(classes.max()) + 1, CLASS), "device": (devices, DEVICE),
        "kind on model": (num_models * num_kinds, MODEL), "launch": (num_models, LAUNCH_US),
        **{name: (1, width) for name, width in waits.items()},
        "all links": (2, LINK), "link": (2 * devices**2, ONE_LINK),
    }  # fmt: skip
    ends = np.cumsum([count for count, _ in blocks.values()])
    at = {name: np.arange(end - blocks[name][0], end) for name, end in zip(blocks, ends.tolist(), strict=True)}
    on_model = at["kind on model"].reshape(num_models, num_kinds)[models]
    factors = at["kind"][kinds], at["class"][classes], at["device"][:, None], on_model[:, kinds]
    columns = np.stack(np.broadcast_arrays(*factors), axis=-1)
    link = at["link"].reshape(2, devices, devices)
    links = np.stack(np.broadcast_arrays(at["all links"][:, None, None], link), axis=-1)
    contention = {name: int(at[name][0]) for name in waits}
    shared, words = dict(contention), KINDS if task.program is not None else [f"opcodes {n}" for n in range(num_kinds)]
    for kind, word in enumerate(words[:num_kinds]):
        shared[word] = int(at["kind"][kind])
        shared |= {f"{word} on {name}": int(on_model[device, kind]) for device, name in enumerate(task.names)}
    for device, name in enumerate(task.names):
        shared |= {name: int(at["device"][device]), f"launch on {name}": int(at["launch"][models[device]])}
        for what, word in enumerate(("latency", "rate")):
            shared[word] = int(at["all links"][what])
            shared |= {f"{word} {name} to {other}": int(link[what, device, to]) for to, other in enumerate(task.names)}
    if is_shared:
        contention["wake_us"] = contention["hand_over_us"]
    widths = np.repeat([width for _, width in blocks.values()], [count for count, _ in blocks.values()])
    return Layout(columns, at["launch"][models], contention, links, shared, widths)


def kinds_of(task: Task) -> Int64[np.ndarray, " nodes"]:
    """Return the kind of each operation, a position in `KINDS`; of a task without a program by its opcodes."""
    if task.program is None:
        return task.graph.opcodes.astype(np.int64) % len(KINDS)
    return np.array([KINDS.index(kind_of(each)) for each in task.program.operations], np.int64)
