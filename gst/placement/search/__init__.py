"""Searches over plans: annealing, windows of giant tasks, random plans. Read `annealing.py` first."""
