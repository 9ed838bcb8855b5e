"""The tables, the pictures and the numbers of the documents, made from the tracked results alone."""
