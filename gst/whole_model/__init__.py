"""Whole-model variants: eager, compiled, frozen, compiled ahead of time, run by an engine, or recorded as one graph.

A model and its inputs go in; variants whose outputs agree with the model's come out, each with its measured time.
Read `choosing.py` first, then `variants.py`.
"""
