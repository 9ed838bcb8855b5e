"""Encoders and heads of the project; any other GNN fits beside them."""

from gst.nn.encoders import GAT, GCN, GIN, SAGE
from gst.nn.fusion import FusedSAGE
from gst.nn.gps import GPS
from gst.nn.head import CrossConfigHead, Head

__all__ = ["GAT", "GCN", "GIN", "GPS", "SAGE", "CrossConfigHead", "FusedSAGE", "Head"]
