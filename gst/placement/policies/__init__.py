"""Learned policies: GO, a network that decides a whole plan at once, and its training. Read `go.py` first."""
