"""Datasets: anything that yields `Graph`s. Here those of TpuGraphs and synthetic ones."""

from gst.data.source import GraphSource
from gst.data.synthetic import SyntheticPrograms
from gst.data.tpugraphs import TpuGraphs

__all__ = ["GraphSource", "SyntheticPrograms", "TpuGraphs"]
