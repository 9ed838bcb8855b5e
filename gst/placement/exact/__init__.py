"""Plans that are proved to be the best, and bounds, by constraint programming (CP-SAT of OR-tools)."""
