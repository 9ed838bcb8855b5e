"""Constructive policy: a small network chooses a ready operation and its device at each step.

Read `network.py` for its features, then `rollout.py`.
"""
