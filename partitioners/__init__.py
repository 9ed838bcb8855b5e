"""Graph partitioning: edges -> part of each node. Plain numpy, numba and METIS.

Edges and a number of parts go in; an array with the part of each node comes out. Read `methods.py` first.
"""

from __future__ import annotations

from partitioners.balance import largest_part, num_parts_for, repair
from partitioners.csr import Csr, symmetric_csr
from partitioners.methods import METHODS, SEEDED, has_metis, partition, usual_method
from partitioners.quality import Quality, quality

__all__ = [
    "METHODS", "SEEDED", "Csr", "Quality", "has_metis", "largest_part", "num_parts_for", "partition", "quality",
    "repair", "symmetric_csr", "usual_method",
]  # fmt: skip
