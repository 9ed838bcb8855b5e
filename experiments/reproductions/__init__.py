"""Each published system and its figures, made again on the data at hand."""
