"""Datasets: anything that yields `Graph`s. Here TpuGraphs, XLA programs, the binaries of a machine, MalNet, and
synthetic ones; and public graphs of costs."""

from gst.data.collections import TpuGraphsCollection
from gst.data.cost_graphs import CostGraph, read_cost_graph
from gst.data.elf import ElfBinaries
from gst.data.hlo import read_hlo, write_npz
from gst.data.malnet import MalNet
from gst.data.measured_plans import MeasuredPlans
from gst.data.source import GraphSource, group_of
from gst.data.synthetic import SyntheticPrograms
from gst.data.tpugraphs import TpuGraphs

__all__ = [
    "CostGraph", "ElfBinaries", "GraphSource", "MalNet", "MeasuredPlans", "SyntheticPrograms", "TpuGraphs",
    "TpuGraphsCollection", "group_of", "read_cost_graph", "read_hlo", "write_npz",
]  # fmt: skip
