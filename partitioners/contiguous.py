"""Equal ranges of node ids: the best cut there is when ids follow the data flow, as in a traced program."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64


def contiguous(num_nodes: int, num_parts: int) -> Int64[np.ndarray, " nodes"]:
    """Part of each node; parts ascend with node ids and their sizes differ by at most one."""
    return np.arange(num_nodes, dtype=np.int64) * num_parts // num_nodes
