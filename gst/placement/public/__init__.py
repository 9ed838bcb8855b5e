"""Placement of problems that others published (`gst.data.public_graphs`): schedules, baselines, annealing, bounds."""
