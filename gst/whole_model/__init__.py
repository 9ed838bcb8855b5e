"""Whole-model variants: eager, compiled, frozen, ahead-of-time compiled, or recorded as one graph.

A model and its inputs go in; the fastest variant whose outputs agree comes out. Read `choosing.py` first.
"""
