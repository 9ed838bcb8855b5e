"""Encoders and heads of the project; any other GNN fits beside them."""

from gst.nn.fusion import FusedSAGE
from gst.nn.gat import GAT
from gst.nn.gcn import GCN
from gst.nn.gin import GIN
from gst.nn.gps import GPS
from gst.nn.head import CrossConfigHead, Head
from gst.nn.sage import SAGE

__all__ = ["GAT", "GCN", "GIN", "GPS", "SAGE", "CrossConfigHead", "FusedSAGE", "Head"]
