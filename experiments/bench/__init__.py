"""Benchmarks: each module has one `run`, whose result is written as JSON."""
