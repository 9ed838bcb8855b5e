"""What did we last know? Keys -> rows and their ages. Plain torch; it has never heard of a graph."""

from embedding_cache.refresh import inclusion_probabilities, sample_by_probability
from embedding_cache.table import EmbeddingTable

__all__ = ["EmbeddingTable", "inclusion_probabilities", "sample_by_probability"]
