"""Small tasks, and runtimes whose optimum is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from experiments.reproductions.colocrl.reinforce import DrawsPlans, Reinforce
from gst.graphs.graph import Graph
from gst.lowering.calls import Costs, Storages
from gst.lowering.plan import Plan
from gst.machine.devices import Device
from gst.placement.objectives import Budgeted, SimulatedObjective
from gst.placement.task import Task

Asked = list[tuple[list[Plan], np.ndarray]]


def toy(nodes: int, devices: int, edges: Sequence[tuple[int, int]] | None = None, seed: int = 0) -> Task:
    """Operations of some kinds and drawn times; a chain if no edges are given."""
    generator = np.random.default_rng(seed)
    pairs = [(node, node + 1) for node in range(nodes - 1)] if edges is None else edges
    arrows = np.array(pairs, np.int64).reshape(-1, 2).T.copy()
    size = generator.integers(1, 1000, nodes)
    made = tuple(Device(f"cpu:{number}", "cpu", (), 1, "host", "toy") for number in range(devices))
    graph = Graph(np.zeros((nodes, 1), np.float32), arrows, generator.integers(0, 5, nodes), name="toy")
    costs = Costs(
        made, arrows, np.ones(nodes, bool), np.zeros(nodes, bool), generator.uniform(100, 2000, (devices, nodes)), size,
        np.tile(size, (devices, 1)), Storages(size, np.arange(nodes), np.tile(np.arange(nodes), (2, 1))),
        np.zeros((devices, devices)), np.full((devices, devices), np.inf),
    )  # fmt: skip
    return Task("toy", graph, costs, np.arange(nodes), np.zeros(nodes, np.int64))


def mismatches(target: np.ndarray) -> Callable[[Sequence[Plan]], Float64[np.ndarray, " plans"]]:
    """One millisecond, and one for each operation that is not where it should be."""
    return lambda plans: np.array([1.0 + (plan.placement != target).sum() for plan in plans])


def noted(
    runtime: Callable[[Sequence[Plan]], np.ndarray], asked: Asked
) -> Callable[[Sequence[Plan]], Float64[np.ndarray, " plans"]]:
    """The same runtime; what it is asked and what it answers is noted."""

    def ask(plans: Sequence[Plan]) -> np.ndarray:
        answers = runtime(plans)
        asked.append((list(plans), answers))
        return answers

    return ask


def every(choices: Sequence[int]) -> Tensor:
    """All rows of numbers, each below its number of choices."""
    return torch.tensor(list(product(*(range(number) for number in choices))))


def gradient(policy: torch.nn.Module, of: Tensor) -> Tensor:
    """By all parameters, in one vector."""
    grads = torch.autograd.grad(of, list(policy.parameters()), allow_unused=True)
    pairs = zip(policy.parameters(), grads, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1) for p, g in pairs])


def frequencies(policy: DrawsPlans, rows: Tensor, count: int) -> Iterator[tuple[float, float]]:
    """Return the frequency of each of these, and its probability."""
    drawn = policy.sample(count, torch.Generator().manual_seed(1))
    probabilities = policy.score(rows)[0].exp().tolist()
    for row, probability in zip(rows, probabilities, strict=True):
        yield (drawn == row).all(1).double().mean().item(), probability


def check_budget_and_seeds(training: Callable[..., Reinforce], task: Task, budget: int) -> None:
    """A learner asks about as many plans as it may, the same ones with the same seed whatever torch drew before."""

    def keys(seed: int) -> list[str]:
        asked = Asked()
        runtime = Budgeted(noted(SimulatedObjective(task), asked), budget)
        training(task, seed=seed, hidden=8).run(runtime)
        assert runtime.left == 0 and runtime.num_asked == budget
        return [plan.key for plans, _ in asked for plan in plans]

    torch.manual_seed(budget)
    first = keys(1)
    torch.manual_seed(budget + 1)
    assert keys(1) == first
    assert budget < 2 or keys(2) != first
