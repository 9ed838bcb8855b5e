"""Kernels of a step that Inductor compiled, as a program whose calls can run on several streams at once.

In: a step as a module of ATen operations. Out: `KernelProgram`, a stream program of it with proof, and runs of both.
Read first: `program.py`.
"""
