"""Historical embedding table: key -> row, with the age of each row. Plain torch.

Keys and rows go in with the step they are written at; rows, ages and known flags come out. `table.py` is the table and
the file to read first, `index.py` its keys, `storage.py` its memory, `sharded.py` one table over many processes.
"""

from embedding_cache.table import EmbeddingTable

__all__ = ["EmbeddingTable"]
