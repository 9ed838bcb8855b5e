"""Encoders and heads of the project; any other GNN works too.

A `SegmentBatch` goes in; embeddings of its segments come out, each state computed once. Read `encoders.py` first.
"""

from gst.nn.encoders import ENCODERS, GCN, GIN, SAGE, Head
from gst.nn.plans import set_sharing

__all__ = ["ENCODERS", "GCN", "GIN", "SAGE", "Head", "set_sharing"]
