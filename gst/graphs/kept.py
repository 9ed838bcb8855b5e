"""What is computed of a graph once: kept as long as the graph is, and for the copies of it that workers send."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from gst.graphs.segments import SegmentedGraph

Result = TypeVar("Result")
MOST_COPIES = 8  # results kept by the content of graphs, those asked for last


class OnceForEach(Generic[Result]):
    """A function of graphs that is computed once for each, and kept as long as the graph is. A `DataLoader` with
    workers unpickles a graph anew for every step; its fingerprint comes with it, by which the result of an earlier copy
    is found, of the last few.

    Args:
        compute: the function, of what the fingerprint covers alone.
    """

    def __init__(self, compute: Callable[[SegmentedGraph], Result]) -> None:
        self._compute = compute
        self._of_graph: WeakKeyDictionary[SegmentedGraph, Result] = WeakKeyDictionary()
        self._of_content: OrderedDict[str, Result] = OrderedDict()

    def __call__(self, graph: SegmentedGraph) -> Result:
        if graph not in self._of_graph:
            content = graph.fingerprint if graph.is_copy else None  # of others it would read all of the graph
            found = self._of_content.get(content) if content is not None else None
            self._of_graph[graph] = self._compute(graph) if found is None else found
            if content is not None:
                self._of_content[content] = self._of_graph[graph]
                self._of_content.move_to_end(content)
                while len(self._of_content) > MOST_COPIES:
                    self._of_content.popitem(last=False)
        return self._of_graph[graph]
