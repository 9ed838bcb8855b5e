"""Learned policies: ColocRL, HDP, GO, guided search, and the constructive policy.

A task and a budgeted objective go in; the objective remembers the best plan. Read `guided_search.py` first.
"""
