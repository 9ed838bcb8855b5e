"""Files and processes: atomic writes, locks, untrusted input, progress bars, signals, random numbers, numba kernels.

Nothing here knows of graphs or devices. Read `writing.py` and `untrusted.py` first.
"""
