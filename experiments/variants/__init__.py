"""The variants of Graph Segment Training on the same data."""
