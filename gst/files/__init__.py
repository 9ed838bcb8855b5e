"""Files that are whole or not there, that one process has for itself, or that nobody vouches for."""
