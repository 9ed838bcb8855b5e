"""Graph partitioning: edges -> part of each node. Plain numpy, numba and METIS.

Edges and a number of parts go in; an array with the part of each node comes out. Read `methods.py` first.
"""

from __future__ import annotations

from partitioners.balance import Problem, largest_part, num_parts_for, repair
from partitioners.compiled import compiled
from partitioners.csr import Csr, symmetric_csr
from partitioners.methods import METHODS, has_metis, partition, ranges, usual_method
from partitioners.quality import Quality, quality

__all__ = [
    "METHODS",
    "Csr",
    "Problem",
    "Quality",
    "compiled",
    "has_metis",
    "largest_part",
    "num_parts_for",
    "partition",
    "quality",
    "ranges",
    "repair",
    "symmetric_csr",
    "usual_method",
]
