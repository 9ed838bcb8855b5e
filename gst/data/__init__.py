"""Datasets: anything that yields `Graph`s. Here TpuGraphs, the binaries of a machine, MalNet, and synthetic ones."""

from gst.data.elf import ElfBinaries
from gst.data.malnet import MalNet
from gst.data.source import GraphSource, group_of
from gst.data.synthetic import SyntheticPrograms
from gst.data.tpugraphs import TpuGraphs

__all__ = ["ElfBinaries", "GraphSource", "MalNet", "SyntheticPrograms", "TpuGraphs", "group_of"]
