"""What a dataset is: something that yields graphs, as often as asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from gst.graphs.graph import Graph


class GraphSource(ABC):
    """A dataset of graphs. Subclass it, give `__iter__`, and name the class in a configuration file."""

    @abstractmethod
    def __iter__(self) -> Iterator[Graph]:
        """The graphs, one after the other, the same at every call; names are unique."""


def group_of(name: str) -> str:
    """The group in the name of a graph: `group/path` -> `group`."""
    return name.partition("/")[0]
