"""HLSyn: high-level-synthesis kernels, their pragmas and synthesis outcomes (Bai et al., NeurIPS 2023)."""

from gst.data.hlsyn.functions import parse_kernel
from gst.data.hlsyn.pragmas import canonical
from gst.data.hlsyn.reader import HlsKernel, HlSyn, read_kernels

__all__ = ["HlSyn", "HlsKernel", "canonical", "parse_kernel", "read_kernels"]
