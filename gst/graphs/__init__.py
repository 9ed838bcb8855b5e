"""Graphs and their segments: the graph, cutting it, and the store of segments on disk."""
