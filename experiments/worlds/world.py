"""Machines that differ from what a search believes of them, drawn by a seed; a search can only measure there.

Such a world shows which way of choosing plans copes with wrong costs, contention, launch times, noise and failures. It
cannot show how real accelerators differ from the simulator: its differences are those that are drawn here.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float64

from experiments.random_tasks import generated_task
from experiments.worlds.kernel_task import kernel_task
from gst.execution.measure import Measurement, median_interval
from gst.kernels.inductor import kernel_program
from gst.kernels.state import in_place, state_pairs
from gst.lowering.calls import module_on
from gst.lowering.plan import Plan
from gst.machine.devices import this_machine
from gst.placement.baselines.portfolio import single
from gst.placement.fitted import kinds_of
from gst.placement.machines import Chip, Machine
from gst.placement.objectives import Batches, SimulatedObjective
from gst.placement.task import Task
from gst.programs import capture, resolve, traced
from gst.programs.features import KINDS
from gst.programs.operation import ACCELERATOR

RUNS = 3  # of each plan that is measured
KIND, SINGLE, DEVICE, ON_DEVICE, LINK, ONE_LINK = 0.3, 0.15, 0.15, 0.1, 0.4, 0.2  # deviations of logarithms of factors
LAUNCH_US = 4.0  # longer, at most, than believed
REMOTE_NS = 0.1  # to read a byte that another device has written, at most
THROTTLE = 0.15  # slower, at most, where all devices are busy all the time: no simulator here expresses it
HAND_OVER_US = 3.0  # from a kernel to one that waits for it on another stream, at most: as on an H200
SLOWED = 0.1  # share of its speed that a kernel loses, at most, to each other one on another stream
KERNEL_US, KERNEL_BYTES_PER_US = 2.0, 4e6  # of a kernel alone: 4 TB/s, about those of an H200
SHORT = 0.9  # of the believed memory, at least
SLOWEST = 20.0  # times the least of plans on one device; longer runs fail

FAST, MIDDLE, SLOW = (
    Chip(ACCELERATOR, gflops=15_000.0 * share, gb_per_s=1_500.0 * share, launch_us=4.0) for share in (1.0, 0.55, 0.3)
)
HOST = Chip("cpu", gflops=500.0, gb_per_s=60.0, launch_us=3.0)
EIGHT = Machine((FAST,) * 2 + (MIDDLE,) * 3 + (SLOW,) * 3, link_us=25.0, link_gb_per_s=6.0, name="eight")
FITS = 0.6  # share of what a program needs on one accelerator that fits there


@dataclass(frozen=True, eq=False)
class World:
    """A task as a search believes it, and the machine that measures its plans.

    Args:
        task: what a search may know.
        truth: the same operations with their true costs; nothing but `measure` and `ms` reads it.
        noise: standard deviation of logarithms of runs of one plan.
        throttle: share by which a run is slower per share of the time that the devices are busy on average.
        limit_ms: longer runs fail.
        seed: of the noise.
    """

    task: Task
    truth: Task
    noise: float
    throttle: float
    limit_ms: float
    seed: int

    def ms(self, plans: Sequence[Plan]) -> Float64[np.ndarray, " plans"]:
        """Return the runtime of plans without noise; NaN for those that fail."""
        took = self._took(plans)
        return np.where(took <= self.limit_ms, took, np.nan)

    def _took(self, plans: Sequence[Plan]) -> Float64[np.ndarray, " plans"]:
        """Return the runtime of plans without noise; NaN for those that exceed a memory."""
        took = SimulatedObjective(self.truth)(plans)
        nodes, times_us = np.arange(self.truth.num_nodes), self.truth.times_us
        busy_ms = np.array([times_us[plan.placement, nodes].sum() / 1e3 for plan in plans])
        return took * (1 + self.throttle * busy_ms / (took * len(self.truth.devices)))

    def measure_batches(self, batches: Batches) -> Iterator[tuple[int, list[Measurement]]]:
        """Measure plans, as `gst.placement.objectives.Measurer`; a plan always takes the same times."""
        return enumerate(map(self.measure, batches))

    def measure(self, plans: Sequence[Plan]) -> list[Measurement]:
        """Return noisy runs of plans, or why they failed."""
        return [self._one(plan, ms) for plan, ms in zip(plans, self._took(plans).tolist(), strict=True)]

    def _one(self, plan: Plan, ms: float) -> Measurement:
        if not ms <= self.limit_ms:
            reason, none = "out of memory" if np.isnan(ms) else "it takes too long", (float("nan"),) * 3
            return Measurement(plan.key, plan.key, (), *none, "failed", reason, machine=this_machine())
        generator = np.random.default_rng([self.seed, zlib.crc32(plan.key.encode())])
        samples = (ms * np.exp(self.noise * generator.standard_normal(RUNS))).tolist()
        middle = median_interval(samples, generator)
        return Measurement(plan.key, plan.key, tuple(samples), *middle, machine=this_machine())


def world(task: Task, seed: int, machine: int | None = None) -> World:
    """Draw a machine on which a task takes other times than believed: kinds of operations, single operations, devices
    and links are faster or slower, launches and waits longer, memories smaller, and runs noisy by 1 to 3 %.

    Args:
        seed: of all that is drawn.
        machine: seed of all but the factors of single operations, so that several tasks run on the same machine.

    Examples:
        >>> hidden = world(generated_task(0, num_nodes=60, num_devices=2), seed=1)
        >>> plan = single(hidden.task, 0)
        >>> hidden.measure([plan])[0].outcome, bool(hidden.ms([plan]) == hidden.ms([plan]))
        ('ok', True)
    """
    of_task = np.random.default_rng([seed, 46])
    generator = of_task if machine is None else np.random.default_rng([machine, 47])

    def factors(deviation: float, *shape: int, source: np.random.Generator = generator) -> np.ndarray:
        return np.exp(deviation * source.standard_normal(shape))

    costs, count = task.costs, len(task.devices)
    kinds = kinds_of(task)
    one_accelerator = len({each.memory for each in task.devices}) == 1  # its streams are equally fast
    apart = 0.0 if one_accelerator else 1.0
    num_kinds = int(kinds.max()) + 1 if machine is None else len(KINDS)
    of_kind = factors(KIND, 1, num_kinds) * factors(apart * ON_DEVICE, count, num_kinds)
    times = costs.times_us * of_kind[:, kinds] * factors(SINGLE, 1, task.num_nodes, source=of_task)
    launch = generator.uniform(0, LAUNCH_US) * (costs.computed & (costs.times_us.min(0) > 0))
    shares = generator.uniform(SHORT, 1.0, count)
    devices = tuple(
        each if each.memory_limit is None else replace(each, memory_limit=int(share * each.memory_limit))
        for each, share in zip(task.devices, shares.tolist(), strict=True)
    )
    changed = replace(
        costs, devices=devices, times_us=times * factors(apart * DEVICE, count, 1) + launch,
        latency_us=costs.latency_us * factors(LINK) * factors(ONE_LINK, count, count),
        bytes_per_us=costs.bytes_per_us * factors(LINK) * factors(ONE_LINK, count, count),
    )  # fmt: skip
    switch_us, remote = task.contention.switch_us + generator.uniform(0, 1.0), apart * generator.uniform(0, REMOTE_NS)
    contention = task.contention._replace(switch_us=switch_us, remote_ns_per_byte=remote)
    if one_accelerator:
        hand_over = generator.uniform(0, HAND_OVER_US)
        slowdown = generator.uniform(0, SLOWED)
        contention = contention._replace(slowdown=slowdown, hand_over_us=hand_over, wake_us=hand_over)
    truth = replace(task, costs=changed, contention=contention)
    alone = SimulatedObjective(truth)([single(truth, device) for device in range(count)])
    least = float(np.nanmin(alone)) if np.isfinite(alone).any() else float("inf")
    noise, throttle = (float(generator.uniform(*each)) for each in ((0.01, 0.03), (0.0, THROTTLE)))
    return World(task, truth, noise, throttle, SLOWEST * least, seed)


# Tasks of the worlds --------------------------------------------------------------------------------------------------


@lru_cache
def streams(name: str) -> Task:
    """Return the kernels that Inductor makes of a training step for the CPU, on four streams of an accelerator on which
    each takes its launch and its bytes."""
    step = resolve(name)
    program = capture(step)
    module = in_place(module_on(program, torch.device("cpu")), program, state_pairs(step, program))
    kernels = kernel_program(module, [each.detach().clone() for each in program.inputs], name).without_inputs()
    return kernel_task(kernels, KERNEL_US + (kernels.read_bytes + kernels.written_bytes) / KERNEL_BYTES_PER_US, 4)


def eight(name: str) -> Task:
    """Return a program on eight accelerators of three speeds, with slow links."""
    return EIGHT.task(traced(name, kind="cuda"))


def memory(name: str) -> Task:
    """Return a program on an accelerator that it does not fit, and the host's cores."""
    machine = Machine((FAST, HOST), link_us=15.0, link_gb_per_s=12.0, name="memory")
    task = machine.task(traced(name, kind="cuda"))
    needed = task.memory_use(task.simulator.run(single(task, 0)))[task.devices[0].memory]
    chips = (replace(FAST, memory_bytes=int(FITS * needed)), HOST)
    return replace(machine, chips=chips).task(traced(name, kind="cuda"))


def giant(name: str) -> Task:
    """Return a generated training step of so many operations (`10000:3` is the third of 10,000) on four devices."""
    nodes, _, seed = name.partition(":")
    return generated_task(int(seed or 0), num_nodes=int(nodes), num_devices=4)


LANGUAGE = ("rnnlm", "gpt", "moe", "gnmt", "transformer_xl")
WORLDS: dict[str, tuple[Callable[[str], Task], tuple[str, ...]]] = {
    "streams": (streams, ("rnnlm", "gpt", "moe", "inception", "gnmt")),
    "eight": (eight, LANGUAGE),
    "memory": (memory, LANGUAGE),
    "giant": (giant, ("10000:0", "10000:1", "20000:0", "40000:0", "80000:0")),
}
"""By name of a world, what makes the task of a program, and its programs."""
