"""Placement problems to train on, made up: graphs of several kinds on machines of 2 to 8 devices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Float64, Int64

from experiments.reproductions.public_problems.formats import PublicGraph
from experiments.reproductions.public_problems.problem import Problem, public_problem

SIZES = (20, 2_000)  # operations, log-uniform
SHAPES = ("layers", "series_parallel", "transformer", "inception", "random", "chains", "stencil")

Edges = list[tuple[int, int]]


def generated_problem(
    seed: int, nodes: int | None = None, devices: int | None = None, shape: str | None = None
) -> Problem:
    """A made-up problem, the same for the same seed.

    Times and bytes are lognormal with a width of their own. Devices differ in rate not at all, by class, or for each
    operation; links are of one kind or fast within halves of the machine. Moving the typical value takes from a
    hundredth to ten times as long as the typical operation. Every fourth problem has colocation groups, every
    fourth has tight memories, every sixth is served first come first served as DOPPLER's are.

    Examples:
        >>> problem = generated_problem(3, nodes=40, devices=4, shape="layers")
        >>> problem.num_nodes, len(problem.devices), problem.graph.format
        (40, 4, 'made:layers')

    Args:
        nodes: operations; log-uniform from `SIZES` if None.
        devices: 2 to 8 if None.
        shape: one of `SHAPES`; drawn if None.
    """
    generator = np.random.default_rng([seed, 23])
    count = nodes or int(np.exp(generator.uniform(*np.log(SIZES))))
    shape = shape or SHAPES[int(generator.integers(len(SHAPES)))]
    width = devices or int(generator.integers(2, 9))
    edges = np.array(sorted(set(_MAKERS[shape](count, generator))), np.int64).reshape(-1, 2).T
    first_come = bool(generator.random() < 1 / 6)
    base = generator.lognormal(0.0, generator.uniform(0.1, 1.3), count)
    kinds = 3  # kinds of operations: alike in time, as layers of a program are
    base *= generator.lognormal(0.0, 0.7, kinds)[generator.integers(0, kinds, count)]
    amounts = generator.lognormal(0.0, generator.uniform(0.1, 1.3), count)[edges[0]]
    if not first_come and generator.random() < 0.4:
        amounts = generator.lognormal(0.0, 1.0, edges.shape[1])
    times = _rates(width, count, generator) * base
    groups = np.arange(count)
    if not first_come and generator.random() < 0.25:
        groups = np.unique(groups // int(generator.integers(2, 5)), return_inverse=True)[1].astype(np.int64)
    sizes = np.where(generator.random(count) < 0.5, generator.lognormal(0.0, 1.0, count), 0.0)
    tight = generator.random() < 0.25
    limit = 1.5 * sizes.sum() / width + 2 * np.bincount(groups, sizes).max() if tight else np.inf
    graph = PublicGraph(
        f"made:{seed}", f"made:{shape}", tuple(map(str, range(count))), np.arange(count),
        tuple(f"kind {n}" for n in range(width)), times, edges, amounts, np.ones((width, width)),
        np.zeros((0, width, width)), groups, sizes, np.full(width, limit), (0,) * width, first_come=first_come,
    )  # fmt: skip
    problem = public_problem(graph, f"gpus:{width}")
    price = np.exp(generator.uniform(np.log(0.01), np.log(10.0))) * times.mean() / max(float(amounts.mean()), 1e-9)
    links = _links(width, generator) * (price if edges.size else 1.0)
    fixed = (links > 0) * float(times.mean() * generator.choice([0.0, 0.0, 0.1, 0.5]))
    return replace(problem, arrays=problem.arrays._replace(per_amount=links, fixed=np.ascontiguousarray(fixed)))


def _rates(width: int, count: int, generator: np.random.Generator) -> Float64[np.ndarray, "devices nodes"]:
    """Time of each operation on each device over that on a typical one."""
    kind = generator.random()
    if kind < 0.5:
        return np.ones((width, count))
    speed = generator.lognormal(0.0, generator.uniform(0.2, 0.8), max(2, width // 2))
    of = np.sort(generator.integers(0, len(speed), width))
    if kind < 0.75:
        return np.tile(speed[of][:, None], (1, count))
    return (speed[:, None] * generator.lognormal(0.0, 0.4, (len(speed), count)))[of]


def _links(width: int, generator: np.random.Generator) -> Float64[np.ndarray, "devices devices"]:
    """Time of each unit moved between two devices over that on a fast link; zeros on the diagonal."""
    links = 1.0 - np.eye(width)
    if width > 3 and generator.random() < 0.4:
        half = np.arange(width) < width // 2
        links[half[:, None] != half[None, :]] *= generator.uniform(2.0, 8.0)
    return links


def _layers(count: int, generator: np.random.Generator) -> Edges:
    """Layers of several operations; each reads some of the layer before, now and then of one far before."""
    width = int(generator.integers(2, max(3, min(40, count // 3)) + 1))
    density, edges = generator.uniform(1.0, 3.0), []
    for node in range(width, count):
        first = (node // width - 1) * width
        for producer in generator.integers(first, first + width, 1 + generator.poisson(density - 0.5)):
            edges.append((int(producer), node))
        if generator.random() < 0.05:
            edges.append((int(generator.integers(0, first + width)), node))
    return edges


def _series_parallel(count: int, generator: np.random.Generator) -> Edges:
    """An edge at a time is replaced by two in a row or doubled by a way round it."""
    edges: Edges = [(0, 1)]
    rank = [0.0, 1.0]
    while len(rank) < count:
        at = int(generator.integers(len(edges)))
        first, second = edges[at]
        rank.append(
            (rank[first] + rank[second]) / 2
            if generator.random() < 0.5
            else generator.uniform(rank[first], rank[second])
        )
        new = len(rank) - 1
        if generator.random() < 0.4:
            edges[at] = (first, new)
            edges.append((new, second))
        else:
            edges += [(first, new), (new, second)]
    order: Int64[np.ndarray, " nodes"] = np.empty(count, np.int64)
    order[np.argsort(rank, kind="stable")] = np.arange(count)
    return [(int(order[a]), int(order[b])) for a, b in edges if order[a] < order[b]]


def _transformer(count: int, generator: np.random.Generator) -> Edges:
    """Blocks of heads side by side with residual edges; half of them with a backward pass."""
    heads = int(generator.integers(2, 9))
    forward = count // 2 if generator.random() < 0.5 else count
    edges: Edges = []
    last, node = 0, 1
    while node + heads * 3 + 2 <= forward:
        join = node + 3 * heads
        for head in range(heads):
            one = node + 3 * head
            edges += [(last, one), (last, one + 1), (one, one + 2), (one + 1, one + 2), (one + 2, join)]
        edges += [(join, join + 1), (last, join + 1)]
        last, node = join + 1, join + 2
    for other in range(node, forward):
        edges.append((last, other))
        last = other
    return _with_backward(edges, forward, count, generator)


def _inception(count: int, generator: np.random.Generator) -> Edges:
    """Modules of branches of different length, each closed by a join; half of them with a backward pass."""
    forward = count // 2 if generator.random() < 0.5 else count
    edges: Edges = []
    last, node = 0, 1
    while node < forward - 1:
        ends = []
        for length in generator.integers(1, 6, int(generator.integers(2, 7))).tolist():
            previous = last
            for _ in range(length):
                if node >= forward - 1:
                    break
                edges.append((previous, node))
                previous, node = node, node + 1
            ends.append(previous)
        edges += [(end, node) for end in set(ends) if end != node]
        last, node = node, node + 1
    if node < forward:
        edges.append((last, node))
    return _with_backward(edges, forward, count, generator)


def _with_backward(edges: Edges, forward: int, count: int, generator: np.random.Generator) -> Edges:
    """Edges and, from node `forward` on, a node for each of the last forward ones, in reverse: it reads the gradients
    of all that read its own, and its own node."""
    mirror = {node: 2 * forward - 1 - node for node in range(forward) if 2 * forward - 1 - node < count}
    own = generator.random() < 0.7
    back = [(mirror[b], mirror[a]) for a, b in edges if a in mirror and b in mirror]
    back += [(node, there) for node, there in mirror.items() if own or node == forward - 1]
    rest = [(count - 2, count - 1)] if count > max(mirror.values(), default=forward - 1) + 1 and count > 1 else []
    return edges + back + rest


def _random(count: int, generator: np.random.Generator) -> Edges:
    """Each operation reads a few of those before it, near ones more often."""
    reach = max(2.0, count * generator.uniform(0.02, 0.5))
    edges = []
    for node in range(1, count):
        for _ in range(min(node, int(generator.poisson(generator.uniform(0.7, 2.0))))):
            edges.append((max(0, node - 1 - int(generator.exponential(reach))), node))
    return edges


def _chains(count: int, generator: np.random.Generator) -> Edges:
    """Chains side by side that start together, exchange values now and then, and end together: workflows, pipelines."""
    width = int(generator.integers(2, max(3, min(60, count // 3)) + 1))
    cross, edges = generator.uniform(0.0, 0.3), []
    for node in range(1, count - 1):
        edges.append((max(0, node - width), node))
        if generator.random() < cross:
            edges.append((int(generator.integers(max(0, node - 2 * width), node)), node))
        if node >= count - 1 - width:
            edges.append((node, count - 1))
    return edges


def _stencil(count: int, generator: np.random.Generator) -> Edges:
    """Blocks of matrices: each operation reads its neighbours of the step before, and some read a sum over a row."""
    width = int(generator.integers(3, max(4, min(30, count // 3)) + 1))
    edges = []
    for node in range(width, count):
        row, column = divmod(node, width)
        for other in {max(0, column - 1), column, min(width - 1, column + 1)}:
            edges.append(((row - 1) * width + other, node))
        if column == 0 and generator.random() < 0.2:
            edges += [((row - 1) * width + other, node) for other in range(width)]
    return edges


_MAKERS = dict(
    zip(SHAPES, (_layers, _series_parallel, _transformer, _inception, _random, _chains, _stencil), strict=True)
)
