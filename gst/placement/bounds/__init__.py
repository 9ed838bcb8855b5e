"""Lower bounds of the makespan of any plan, for programs and published problems alike."""
