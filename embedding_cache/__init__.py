"""Historical embedding table: key -> row, with the age of each row. Plain torch."""

from embedding_cache.refresh import inclusion_probabilities, sample_by_probability
from embedding_cache.table import EmbeddingTable

__all__ = ["EmbeddingTable", "inclusion_probabilities", "sample_by_probability"]
