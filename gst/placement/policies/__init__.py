"""Learned policies: GO, a network that decides a whole plan at once, its inputs and its training.

A task and a budgeted objective go in; the objective remembers the best plan. Read `go.py` first.
"""
