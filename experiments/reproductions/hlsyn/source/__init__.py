"""HLSyn: high-level-synthesis kernels, their pragmas and synthesis outcomes (Bai et al., NeurIPS 2023)."""

from experiments.reproductions.hlsyn.source.functions import parse_kernel
from experiments.reproductions.hlsyn.source.pragmas import canonical
from experiments.reproductions.hlsyn.source.reader import HlsKernel, HlSyn, read_kernels

__all__ = ["HlSyn", "HlsKernel", "canonical", "parse_kernel", "read_kernels"]
