"""Searches over plans without learned policies: annealing, windows of giant tasks, mutation, measured search.

A task and an objective go in; plans come out. Read `annealing.py` first.
"""
