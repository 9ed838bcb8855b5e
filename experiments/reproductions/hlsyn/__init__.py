"""Cycles of high-level-synthesis designs (HLSyn, Bai et al., NeurIPS 2023).

`source/` reads kernels, pragmas and outcomes; `cycles/` estimates cycles and searches designs. The modules here learn
from both. Read `source/reader.py` first.
"""
