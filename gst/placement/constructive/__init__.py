"""A learned list scheduler: at each step a small network chooses a ready operation and its device."""
