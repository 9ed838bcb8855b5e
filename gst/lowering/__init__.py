"""Lowering: a captured program and a plan go in; a checked stream program comes out.

Holds plans, legal fusion groups, and the checker that proves a stream program free of races. Read `plan.py`, then
`lower.py`.
"""
