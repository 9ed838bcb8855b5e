"""What every scheduler reads and shares, for programs and published problems alike: arrays, ranks, list schedules."""
