"""Proofs of optimality and bounds by constraint programming (CP-SAT of OR-tools)."""
