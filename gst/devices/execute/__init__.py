"""Plans run for real: executors, the compiled interpreter, child processes, and what is measured of runs."""
