"""Encoders and heads of the project; any other GNN fits beside them."""

from gst.nn.head import Head
from gst.nn.sage import SAGE

__all__ = ["SAGE", "Head"]
