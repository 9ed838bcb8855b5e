"""What is to be learned about a binary."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from gst.data.elf.binary import Binary
from gst.data.elf.calls import CallGraph
from gst.data.elf.functions import GO_MARKS

TEXTS = (".rodata", ".data.rel.ro")


def language(binary: Binary) -> str:
    """The programming language that most of the binary was written in, by the traces that its compiler left.

    Go by its build information; Rust by its compiler's name in `.comment` or the paths of its library; C++ by the
    libraries it needs, by mangled names, or by the type names of a C++ library linked into it; C otherwise.
    """
    if binary.section(*GO_MARKS):
        return "Go"
    if _holds(binary, (".comment",), b"rustc version") or _holds(binary, TEXTS, b"/rustc/"):
        return "Rust"
    needed = binary.needed()
    if any(name.startswith(("libstdc++.", "libc++.")) for name in needed):
        return "C++"
    mangled = _holds(binary, (".dynstr",), b"\0_ZN", b"\0_ZS", b"\0_ZT")
    return "C++" if mangled or _holds(binary, TEXTS, b"St9bad_alloc", b"N10__cxxabiv1") else "C"


def _holds(binary: Binary, sections: tuple[str, ...], *words: bytes) -> bool:
    contents = (binary.content(name).tobytes() for name in sections)
    return any(word in content for content in contents for word in words)


def call_depth(graph: CallGraph) -> float:
    """Logarithm of 1 + the mean, over all functions, of the longest chain of calls that a function can start.

    Functions that call each other in a circle count as one. This is how deep the stack grows, a property of the whole
    graph: no function knows more than whom it calls itself.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    callers, callees = graph.edges
    matrix = coo_array((np.ones(len(callers)), (callers, callees)), (graph.num_nodes, graph.num_nodes))
    _, circle = connected_components(matrix, connection="strong")
    between = np.unique(circle[graph.edges], axis=1).astype(np.int64)
    depths = _chains(between[:, between[0] != between[1]], int(circle.max()) + 1)
    return float(np.log1p(depths[circle[: len(graph.bounds)]].mean()))


def _chains(edges: Int64[np.ndarray, "2 edges"], num_nodes: int) -> Int64[np.ndarray, " nodes"]:
    """Edges of the longest path that starts at each node of a graph without circles."""
    callers = edges[0][np.argsort(edges[1], kind="stable")]
    ends = np.cumsum(np.bincount(edges[1], minlength=num_nodes))
    waiting = np.bincount(edges[0], minlength=num_nodes)
    lengths = np.zeros(num_nodes, np.int64)
    length, ready = 0, np.flatnonzero(waiting == 0)
    while len(ready):
        lengths[ready] = length
        above = np.concatenate([callers[ends[node - 1] if node else 0 : ends[node]] for node in ready])
        heard, times = np.unique(above, return_counts=True)
        waiting[heard] -= times
        length, ready = length + 1, heard[waiting[heard] == 0]
    return lengths
