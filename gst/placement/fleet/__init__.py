"""Measurement on other hosts: workers of a Ray cluster, their results, and replacement of lost workers.

Plans go in; measurements come out. Read `workers.py` first.
"""
