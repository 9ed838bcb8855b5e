"""Measuring on other hosts: workers of a Ray cluster, their results, and what happens when one is lost."""
