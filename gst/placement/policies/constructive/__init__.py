"""Constructive policy: a small network chooses a ready operation and its device at each step.

A task goes in; a plan, or weights tuned on the task, come out. Read `network.py`, then `rollout.py`.
"""
