"""XLA programs (HLO modules, as protobuf or as text) as graphs with the features of TpuGraphs."""

from gst.data.columns import NODE_FEATURES, OPCODE_NAMES
from gst.data.hlo.reader import read_hlo
from gst.data.tpugraphs import write_npz

__all__ = ["NODE_FEATURES", "OPCODE_NAMES", "read_hlo", "write_npz"]
