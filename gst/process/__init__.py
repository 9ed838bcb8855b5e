"""One process and its machine: progress bars, signals, memory allocation, waiting threads, random numbers."""
