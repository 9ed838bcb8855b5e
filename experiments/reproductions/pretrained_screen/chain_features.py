"""Composition of the simulated run of a plan: mainly its critical chain, by operation, by kind and by device."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

from gst.lowering.plan import Timeline
from gst.machine.devices import core_use
from gst.placement.search.timelines import Timelines
from gst.placement.task import Task

NAMES = (
    "chain_by_node", "chain_by_kind", "chain_by_device", "load_by_node", "load_by_device", "waits", "crowded_chain",
    "crowded_load", "crossing_bytes", "crossing_values",
)  # fmt: skip


class ChainFeatures:
    """Features of simulated runs, as shares of the runtime. To first order the logarithm of a runtime changes by the
    share of the critical chain (`Timelines.waits`) that an operation takes, times the logarithm of the factor by which
    that operation is slower than believed.

    Args:
        task: what is placed where.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self._timelines = Timelines(task.costs)
        self._times_us = task.profiled.times_us
        self._thread = core_use(task.devices).argmax(1)
        self._kinds = np.unique(task.graph.opcodes, return_inverse=True)[1]

    def columns(self, run: Timeline) -> dict[str, Float64[np.ndarray, " entries"]]:
        """Of a run, by name (`NAMES`).

        - `chain_by_node`, `chain_by_kind`, `chain_by_device`: of the critical chain the time in each operation;
        - `load_by_node`, `load_by_device`: of all operations, on the chain or not, alone on their devices;
        - `waits`: of the chain, between its operations;
        - `crowded_chain`, `crowded_load`: times of operations, by how many others run meanwhile;
        - `crossing_bytes`, `crossing_values`: logarithms of what crosses threads, at 10 GB/s and 100 us a value.
        """
        nodes, devices, total_us = len(run.device), len(self.task.devices), max(run.makespan_us, 1e-9)
        chain = self._timelines.waits(run).nodes
        on_chain, load = np.zeros(nodes), self._times_us[run.device, np.arange(nodes)] / total_us
        on_chain[chain] = (run.end_us - run.begin_us)[chain] / total_us
        waits_us = run.begin_us[chain] - np.append(run.end_us[chain[1:]], 0.0)
        crowd = others_running(run)
        producers, consumers = self.task.costs.edges
        crossing = producers[self._thread[run.device[producers]] != self._thread[run.device[consumers]]]
        sent_us = float(self.task.costs.output_bytes[crossing].sum()) / 1e4
        return {
            "chain_by_node": on_chain,
            "chain_by_kind": np.bincount(self._kinds, on_chain),
            "chain_by_device": np.bincount(run.device, on_chain, devices),
            "load_by_node": load,
            "load_by_device": np.bincount(run.device, load, devices),
            "waits": np.array([np.maximum(waits_us, 0.0).sum() / total_us]),
            "crowded_chain": np.array([on_chain @ crowd]),
            "crowded_load": np.array([load @ crowd]),
            "crossing_bytes": np.array([np.log1p(sent_us / total_us)]),
            "crossing_values": np.array([np.log1p(100 * len(crossing) / total_us)]),
        }


def others_running(run: Timeline) -> Float64[np.ndarray, " nodes"]:
    """Return the mean number of other operations that run during each one."""
    took_us, times_us = run.end_us - run.begin_us, np.append(run.begin_us, run.end_us)
    order = np.argsort(times_us, kind="stable")
    running = np.cumsum(np.append(took_us > 0, -1.0 * (took_us > 0))[order])
    busy_us = np.empty(len(times_us))  # of all operations, up to each time
    busy_us[order] = np.append(0.0, np.cumsum(running[:-1] * np.diff(times_us[order])))
    begun, ended = np.split(busy_us, 2)
    return np.where(took_us > 0, (ended - begun) / np.maximum(took_us, 1e-9) - 1, 0.0)
