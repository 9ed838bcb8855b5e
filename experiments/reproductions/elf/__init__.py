"""Function-call graphs of the programs and libraries of a Debian machine."""

from experiments.reproductions.elf.binary import Binary, open_binary
from experiments.reproductions.elf.calls import NODE_FEATURES, CallGraph, call_graph, node_features
from experiments.reproductions.elf.source import ElfBinaries

__all__ = [
    "NODE_FEATURES", "Binary", "CallGraph", "ElfBinaries", "call_graph", "node_features", "open_binary",
]  # fmt: skip
