"""Historical embedding table: key -> row, with the age of each row. Plain torch.

Keys and rows go in with the step of writing; rows, ages and known flags come out. Read `table.py` first; `index.py`
holds its keys, `storage.py` its memory, `sharded.py` one table over many processes.
"""

from embedding_cache.sharded import ShardedTable
from embedding_cache.table import EmbeddingTable

__all__ = ["EmbeddingTable", "ShardedTable"]
