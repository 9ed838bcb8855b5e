"""XLA programs as graphs with the features of TpuGraphs.

Protobuf files, or text of HLO or StableHLO, go in; a `Graph` (`reader.py`, read it first) or an HLO module
(`modules.py`) comes out.
"""

from gst.data.hlo.reader import read_hlo
from gst.data.tpugraphs import NODE_FEATURES, OPCODE_NAMES, write_npz

__all__ = ["NODE_FEATURES", "OPCODE_NAMES", "read_hlo", "write_npz"]
