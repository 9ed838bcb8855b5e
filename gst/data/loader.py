"""Which configurations of which graphs go into each step, and which are held out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from gst.data.prefetch import Prefetched, Reader
from gst.data.source import group_of
from gst.graphs.segments import SegmentedGraph
from gst.method.draws import generator_for
from gst.method.exchange import Peers

Selection = tuple[SegmentedGraph, Int64[Tensor, " _"]]
"""A graph and some of its configurations."""


@dataclass(frozen=True, eq=False)
class Step:
    """The work of one step.

    Args:
        graphs: the graphs; one may stand here twice, then with different configurations.
        configs: configurations of each, -1 where a graph has fewer than another.
        targets: of these configurations, NaN at -1.
        prefetched: what a `Reader` read for it.
        peers: what this and other processes do together, of which the step is the part of this one.
    """

    graphs: tuple[SegmentedGraph, ...]
    configs: Int64[Tensor, "graphs configs"]
    targets: Float64[Tensor, "graphs configs"]
    prefetched: Any = None
    peers: Peers | None = None


class StepLoader:
    """Iterates over steps. Every epoch shuffles the configurations of each graph, deals them out in lists of
    `configs_per_graph`, shuffles the lists and puts `graphs_per_step` of them in a step. The order depends on the seed
    and the epoch alone, and the position can be saved, so that a resumed training sees the very steps it would have.

    Where `world_size` processes iterate together, each with its `rank`, a step of one process with `world_size` times
    as many graphs is dealt out among them, so no list is drawn twice, and all take as many steps. In a last step that
    is too short for all, some processes go through the first graph once more; `Step.peers` tells.

    Args:
        selections: graphs and the configurations to use of each.
        graphs_per_step: in a step of each process.
        lists_per_graph: at most so many lists of each graph in an epoch; all if None.
        shuffle: False deals everything in order.

    Attributes:
        reader: reads each step while the one before it is computed, if given.
        stall: share of the time of the last epoch that was spent waiting for it.
    """

    def __init__(
        self, selections: Sequence[Selection], graphs_per_step: int = 1, configs_per_graph: int = 32,
        lists_per_graph: int | None = None, shuffle: bool = True, seed: int = 0, rank: int = 0, world_size: int = 1,
    ) -> None:  # fmt: skip
        if lists_per_graph is not None and lists_per_graph < 1:
            raise ValueError(f"lists_per_graph is {lists_per_graph}; it starts at 1, leave it out for all")
        if graphs_per_step < 1 or configs_per_graph < 1:
            raise ValueError(
                f"graphs_per_step ({graphs_per_step}) and configs_per_graph ({configs_per_graph}) start at 1"
            )
        self.selections = [selection for selection in selections if len(selection[1])]
        self.graphs_together, self.configs_per_graph = graphs_per_step * world_size, configs_per_graph
        self.rank, self.world_size = rank, world_size
        self.lists_per_graph, self.shuffle, self.seed = lists_per_graph, shuffle, seed
        self.epoch = 0
        self.reader: Reader[Step, Any, Any] | None = None
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
        ahead = Prefetched(steps, self.reader)
        for step, prefetched in ahead:
            self.stall = ahead.waited / max(ahead.passed, 1e-9)  # nobody asks for the step after the last
            yield replace(step, prefetched=prefetched)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is epoch number `epoch`, from its first step unless it is the one being resumed."""
        if epoch != self.epoch:
            self.epoch, self._position, self._resume_at = epoch, 0, 0

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: the epoch, the steps taken in it, and the graphs of a step over all processes."""
        return {"epoch": self.epoch, "position": self._position, "graphs_together": self.graphs_together}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after the last step that was taken; after the last step of an epoch comes the next epoch.

        Raises:
            ValueError: the position counts steps of another size.
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
    targets = torch.full((len(lists), width), torch.nan, dtype=torch.float64)
    for row, (graph, configs) in enumerate(lists):
        padded[row, : len(configs)] = configs
        targets[row, : len(configs)] = torch.from_numpy(graph.targets[configs.numpy()])
    return Step(tuple(graph for graph, _ in lists), padded, targets)


def _part(step: Step, rank: int, world_size: int) -> Step:
    """Of a step of all processes, what one of them does."""
    peers = Peers(rank, world_size, step.graphs, step.configs, step.targets)
    mine = peers.mine
    return Step(tuple(step.graphs[i] for i in mine), step.configs[mine], step.targets[mine], peers=peers)


def split(
    graphs: Sequence[SegmentedGraph], by: Literal["configs", "graphs", "groups"], valid: int, test: int, seed: int
) -> tuple[list[Selection], list[Selection], list[Selection]]:
    """Train, validation and test part of a dataset.

    Args:
        by: `configs` holds out configurations of every graph, `graphs` whole graphs, `groups` whole groups of graphs
            that belong together (`group_of` their names: all binaries of a package).
        valid, test: how many of them.
        seed: of the draw of what is held out.

    Returns:
        Graphs with the configurations of theirs that belong to the part, ascending.

    Raises:
        ValueError: there is no such way to split, or nothing would be left to train on.
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
            raise ValueError(
                f"{valid} + {test} configurations of each graph are to be held out, "
                f"but {graph.name!r} has {len(configs)}"
            )
        order = torch.randperm(len(configs), generator=generator_for(seed, i))
        pieces = order.split([len(order) - valid - test, valid, test])
        for part, piece in zip(parts, pieces, strict=True):
            part.append((graph, piece.sort().values))
    return parts
