"""Baselines and a lower bound: constructive methods of the literature, without a search.

A `Task` goes in; plans by name, or a lower bound in microseconds, come out. Read `portfolio.py` first.
"""
