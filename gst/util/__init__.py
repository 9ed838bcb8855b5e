"""Files and processes: atomic writes, locks, untrusted input, progress bars, signals, Ray clusters, random
numbers, numba kernels.

Paths and values go in; complete files and checked values come out. Graphs and devices are unknown here.
Read `writing.py` and `untrusted.py` first.
"""
