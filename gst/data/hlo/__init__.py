"""XLA programs (HLO modules, as protobuf or as text) as graphs with the features of TpuGraphs."""

from gst.data.hlo.features import NODE_FEATURES
from gst.data.hlo.npz import write_npz
from gst.data.hlo.opcodes import OPCODE_NAMES
from gst.data.hlo.reader import read_hlo

__all__ = ["NODE_FEATURES", "OPCODE_NAMES", "read_hlo", "write_npz"]
