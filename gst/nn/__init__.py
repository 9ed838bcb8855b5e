"""Encoders and heads of the project; any other GNN works too.

A `SegmentBatch` goes in; embeddings of its segments come out, each state computed once. Read `encoders.py` first.
"""

from gst.nn.encoders import GAT, GCN, GIN, SAGE
from gst.nn.fusion import FusedSAGE
from gst.nn.head import CrossConfigHead, Head
from gst.nn.plans import set_sharing

__all__ = ["GAT", "GCN", "GIN", "SAGE", "CrossConfigHead", "FusedSAGE", "Head", "set_sharing"]
