"""Datasets: anything that yields `Graph`s. Here TpuGraphs, XLA programs, the binaries of a machine, MalNet, and
synthetic ones."""

from gst.data.collections import TpuGraphsCollection
from gst.data.elf import ElfBinaries
from gst.data.hlo import read_hlo, write_npz
from gst.data.malnet import MalNet
from gst.data.source import GraphSource, group_of
from gst.data.synthetic import SyntheticPrograms
from gst.data.tpugraphs import TpuGraphs

__all__ = [
    "ElfBinaries", "GraphSource", "MalNet", "SyntheticPrograms", "TpuGraphs", "TpuGraphsCollection", "group_of",
    "read_hlo", "write_npz",
]  # fmt: skip
