"""Discrete-event simulation: measured costs and a plan go in; a timeline and peak memory come out.

Read `simulator.py` first.
"""
