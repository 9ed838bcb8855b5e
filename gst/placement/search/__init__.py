"""Searches over plans: annealing, windows of giant tasks, random plans, and the measured search with its surrogates.

A task and an objective go in; plans come out. Read `annealing.py` first.
"""
