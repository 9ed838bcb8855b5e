"""Steps of training: configurations of graphs, split into parts, dealt out in seeded order and read one step ahead.

`collate` is for loaders of torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

import torch
from jaxtyping import Float64, Int64
from torch import Tensor
from torch.utils.data import default_collate

from gst.data.source import group_of
from gst.graphs.segments import SegmentedGraph
from gst.method.draws import Peers, generator_for

Selection = tuple[SegmentedGraph, Int64[Tensor, " _"]]
"""A graph and some of its configurations."""

Item = TypeVar("Item")
Read = TypeVar("Read")


@dataclass(frozen=True, eq=False)
class Step:
    """The graphs, configurations and targets of one step.

    Args:
        configs: configurations of each graph, padded with -1; targets are NaN there. A graph may occur twice.
        prefetched: data that `StepLoader.reader` read for the step.
        peers: the step over all processes, of which this is the part of one process.
    """

    graphs: tuple[SegmentedGraph, ...]
    configs: Int64[Tensor, "graphs configs"]
    targets: Float64[Tensor, "graphs configs ..."]
    prefetched: Any = None
    peers: Peers | None = None


Begin = Callable[[Item, int], Callable[[], Read] | None]
"""`begin(step, ahead)` decides what to read, in the caller's thread and so in a fixed order. The result reads it, in a
thread of its own. `ahead` is 1 before the previous step is computed; if it returns None then, it is called again with 0
afterwards."""


class Prefetched(Generic[Item, Read]):
    """Iterable of steps, each with what was read for it one step ahead, wherever `begin` can decide ahead.

    Attributes:
        waited: seconds that the consumer waited for reads, except the first.
        passed: seconds since the first step was yielded.

    Examples:
        >>> list(Prefetched([1, 2, 3], lambda step, ahead: lambda: 10 * step + 1))
        [(1, 11), (2, 21), (3, 31)]
    """

    def __init__(self, steps: Iterable[Item], begin: Begin[Item, Read]) -> None:
        self.steps, self._begin = steps, begin
        self.waited = self.passed = 0.0

    def __iter__(self) -> Iterator[tuple[Item, Read]]:
        steps = iter(self.steps)
        began: float | None = None
        pending: Future[Read] | None = None
        with ThreadPoolExecutor(1, "prefetch") as thread:
            step = next(steps, None)
            while step is not None:
                asked = time.perf_counter()
                pending = pending or self._submit(thread, step, 0)
                assert pending is not None, "`begin` decides when no step before is still to be computed"
                read = pending.result()
                handed = time.perf_counter()
                if began is not None:
                    self.waited += handed - asked
                began = handed if began is None else began
                self.passed = handed - began
                following = next(steps, None)
                pending = None if following is None else self._submit(thread, following, 1)
                yield step, read
                self.passed = time.perf_counter() - began
                step = following

    def _submit(self, thread: ThreadPoolExecutor, step: Item, ahead: int) -> Future[Read] | None:
        read = self._begin(step, ahead)
        return None if read is None else thread.submit(read)


class StepLoader:
    """Iterable of the steps of an epoch.

    Every epoch shuffles the configurations of each graph, deals them out in lists of `configs_per_graph`, shuffles the
    lists and puts `graphs_per_step` of them in a step. The order depends on seed and epoch alone. `world_size`
    processes divide steps of `world_size` times as many graphs: no list is drawn twice, and all take as many steps. In
    a last step that is too short for all, some processes repeat the first graph (`Step.peers`).

    Examples:
        >>> from gst.data.synthetic import synthetic_program
        >>> from gst.graphs.segments import segment
        >>> graph = segment(synthetic_program(num_nodes=50, num_configs=10), max_nodes=20)
        >>> loader = StepLoader([(graph, torch.arange(10))], configs_per_graph=4, seed=0)
        >>> [step.configs.shape[1] for step in loader]
        [2, 4, 4]

    Args:
        graphs_per_step: in a step of each process.
        lists_per_graph: most lists of each graph in an epoch; all if None.

    Attributes:
        reader: if set, reads each step while the previous one is computed (`Begin`).
        stall: share of the last epoch's time spent waiting for `reader`.
    """

    def __init__(
        self, selections: Sequence[Selection], graphs_per_step: int = 1, configs_per_graph: int = 32,
        lists_per_graph: int | None = None, shuffle: bool = True, seed: int = 0, rank: int = 0, world_size: int = 1,
    ) -> None:  # fmt: skip
        if lists_per_graph is not None and lists_per_graph < 1:
            raise ValueError(f"lists_per_graph is {lists_per_graph}; it starts at 1, leave it out for all")
        if graphs_per_step < 1 or configs_per_graph < 1:
            raise ValueError(f"graphs_per_step {graphs_per_step} and configs_per_graph {configs_per_graph} start at 1")
        self.selections = [selection for selection in selections if len(selection[1])]
        self.graphs_together, self.configs_per_graph = graphs_per_step * world_size, configs_per_graph
        self.rank, self.world_size = rank, world_size
        self.lists_per_graph, self.shuffle, self.seed = lists_per_graph, shuffle, seed
        self.epoch = 0
        self.reader: Begin[Step, Any] | None = None
        self.stall = 0.0
        self._position = self._resume_at = 0

    def __len__(self) -> int:
        return -(-self._lists_in_epoch() // self.graphs_together)

    def __iter__(self) -> Iterator[Step]:
        if self._position:  # the last epoch was left early
            self.epoch += 1
        self._position, self._resume_at = self._resume_at, 0
        for step in self._read(self._position, self._deal()):
            self._position += 1
            yield step
        self._position = 0
        self.epoch += 1

    def _read(self, position: int, lists: list[Selection]) -> Iterator[Step]:
        starts = range(position * self.graphs_together, len(lists), self.graphs_together)
        together = (_step(lists[start : start + self.graphs_together]) for start in starts)
        steps = (_part(step, self.rank, self.world_size) for step in together) if self.world_size > 1 else together
        if self.reader is None:
            yield from steps
            return
        prefetched = Prefetched(steps, self.reader)
        for step, content in prefetched:
            self.stall = prefetched.waited / max(prefetched.passed, 1e-9)  # no step is requested after the last
            yield replace(step, prefetched=content)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, which begins at its first step unless that epoch is being resumed."""
        if epoch != self.epoch:
            self.epoch, self._position, self._resume_at = epoch, 0, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch, the steps taken in it, and the graphs of a step over all processes, for a checkpoint."""
        return {"epoch": self.epoch, "position": self._position, "graphs_together": self.graphs_together}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the last step taken; the last step of an epoch is followed by the next epoch.

        Raises:
            ValueError: the state is within an epoch and counts steps of another size.
        """
        saved = state.get("graphs_together", self.graphs_together)
        ended = state["position"] * saved >= self._lists_in_epoch()
        if state["position"] and not ended and saved != self.graphs_together:
            raise ValueError(
                f"the checkpoint stands within an epoch, after {state['position']} steps of {saved} graphs over all "
                f"processes, and here a step has {self.graphs_together}; make --data.graphs_per_step times the number "
                f"of processes {saved}, or resume from the end of an epoch"
            )
        self.epoch, self._resume_at = state["epoch"] + ended, 0 if ended else state["position"]
        self._position = 0

    def _lists_in_epoch(self) -> int:
        return sum(self._num_lists(configs) for _, configs in self.selections)

    def _num_lists(self, configs: Tensor) -> int:
        lists = -(-len(configs) // self.configs_per_graph)
        return lists if self.lists_per_graph is None else min(lists, self.lists_per_graph)

    def _deal(self) -> list[Selection]:
        lists: list[Selection] = []
        for i, (graph, configs) in enumerate(self.selections):
            if self.shuffle:
                configs = configs[torch.randperm(len(configs), generator=generator_for(self.seed, self.epoch, i))]
            lists += [(graph, part) for part in configs.split(self.configs_per_graph)][: self._num_lists(configs)]
        if not self.shuffle:
            return lists
        order = torch.randperm(len(lists), generator=generator_for(self.seed, self.epoch, -1))
        return [lists[i] for i in order.tolist()]


def _step(lists: Sequence[Selection]) -> Step:
    width = max(len(configs) for _, configs in lists)
    padded = torch.full((len(lists), width), -1)
    targets = torch.full((len(lists), width, *lists[0][0].targets.shape[1:]), torch.nan, dtype=torch.float64)
    for row, (graph, configs) in enumerate(lists):
        padded[row, : len(configs)] = configs
        targets[row, : len(configs)] = torch.from_numpy(graph.targets[configs.numpy()])
    return Step(tuple(graph for graph, _ in lists), padded, targets)


def _part(step: Step, rank: int, world_size: int) -> Step:
    """Return the part of one process in a step of all processes."""
    peers = Peers(rank, world_size, step.graphs, step.configs, step.targets)
    mine = peers.mine
    return Step(tuple(step.graphs[i] for i in mine), step.configs[mine], step.targets[mine], peers=peers)


def split(
    graphs: Sequence[SegmentedGraph], by: Literal["configs", "graphs", "groups"], valid: int, test: int, seed: int
) -> tuple[list[Selection], list[Selection], list[Selection]]:
    """Split a dataset into training, validation and test part: graphs with their configurations, ascending.

    Examples:
        >>> from gst.data.synthetic import synthetic_program
        >>> from gst.graphs.segments import segment
        >>> graph = segment(synthetic_program(num_nodes=50, num_configs=10), max_nodes=20)
        >>> parts = split([graph], by="configs", valid=2, test=3, seed=0)
        >>> [len(configs) for part in parts for graph, configs in part]
        [5, 2, 3]

    Args:
        by: `configs` holds out configurations of every graph, `graphs` whole graphs, `groups` whole groups of graphs
            that belong together (`group_of` their names: all binaries of a package).

    Raises:
        ValueError: `by` is unknown, or nothing would be left to train on.
    """
    if by not in ("configs", "graphs", "groups"):
        raise ValueError(f"split by {by!r}? hold out 'configs', 'graphs' or 'groups'")
    if valid < 0 or test < 0:
        raise ValueError(f"{valid} and {test} are to be held out; neither can be negative")
    everything = [(graph, torch.arange(graph.num_configs)) for graph in graphs]
    if by != "configs":
        groups: dict[str, list[int]] = {}
        for i, graph in enumerate(graphs):
            groups.setdefault(group_of(graph.name) if by == "groups" else str(i), []).append(i)
        if valid + test >= len(groups):
            raise ValueError(f"{valid} + {test} {by} are to be held out, but there are only {len(groups)}")
        members = list(groups.values())
        ids = torch.randperm(len(members), generator=generator_for(seed)).tolist()
        pick = lambda chosen: [everything[i] for i in sorted(i for c in chosen for i in members[c])]  # noqa: E731
        return pick(ids[valid + test :]), pick(ids[:valid]), pick(ids[valid : valid + test])
    parts: tuple[list[Selection], list[Selection], list[Selection]] = ([], [], [])
    for i, (graph, configs) in enumerate(everything):
        if valid + test >= len(configs):
            raise ValueError(f"{valid} + {test} configs are to be held out, but {graph.name!r} has {len(configs)}")
        order = torch.randperm(len(configs), generator=generator_for(seed, i))
        pieces = order.split([len(order) - valid - test, valid, test])
        for part, piece in zip(parts, pieces, strict=True):
            part.append((graph, piece.sort().values))
    return parts


def collate(items: Sequence[Any]) -> Any:
    """Collate segmented graphs to a list and all other items as torch does: `collate_fn=gst.collate`.

    Examples:
        >>> import numpy as np, gst
        >>> cut = gst.segment(gst.Graph(np.zeros((3, 1), np.float32), np.zeros((2, 0), np.int64)))
        >>> graphs, labels = collate([(cut, 1), (cut, 0)])
        >>> len(graphs), labels
        (2, tensor([1, 0]))
    """
    first = items[0]
    if isinstance(first, SegmentedGraph):
        return list(items)
    if isinstance(first, Mapping):
        return {key: collate([item[key] for item in items]) for key in first}
    if isinstance(first, tuple | list):
        return [collate(column) for column in zip(*items, strict=True)]
    return default_collate(list(items))
