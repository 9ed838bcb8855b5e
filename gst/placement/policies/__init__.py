"""Learned policies: ColocRL, HDP, GO, and the constructive policy.

A task and a budgeted objective go in; the objective remembers the best plan. Read `reinforce.py` first.
"""
