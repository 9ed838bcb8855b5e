"""Graphs, their segments, and stores of segments on disk.

A `Graph` goes in; a `SegmentedGraph`, in memory or in a store, comes out. Read `graph.py`, then `segments.py`.
"""
