"""Searching among neighbours of plans, without learning: annealing, cross-entropy, evolution."""
