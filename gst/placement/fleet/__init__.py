"""Measurement on hosts of a Ray cluster, with replacement of lost workers. Read `workers.py` first."""
