"""Searches over plans: annealing, random plans. Read `annealing.py` first."""
