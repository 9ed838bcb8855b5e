"""Every reader of a file, and what damaged files do to it."""
