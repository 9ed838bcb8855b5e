"""Placement problems that others published (MSR, DOPPLER, Moirai, PipeDream, Piper, WfFormat): readers, schedules, bounds, proofs."""
