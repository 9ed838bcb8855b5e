"""Baselines of the literature, without a search, and a lower bound. Read `portfolio.py` first."""
