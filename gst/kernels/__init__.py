"""Kernels of a step that Inductor compiled, on streams: a step as a module goes in; a `KernelProgram`, a proven stream
program of it and runs of both come out.

Read `program.py` first.
"""
