"""What glibc does with freed memory."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h


def keep_freed_memory(largest_mib: int = 128, kept_mib: int = 512) -> bool:
    """Let freed tensors be used again instead of handing them back to the system, which would zero every page anew.

    By default glibc returns every block over 32 MiB, and whatever lies free at the end of the heap, at once. Steps then
    spend their time in page faults.

    Args:
        largest_mib: blocks up to this size are kept for use again.
        kept_mib: at most so much is kept at the end of the heap.

    Returns:
        Whether the C library took it (glibc does; others may not).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    settings = ((M_MMAP_THRESHOLD, largest_mib), (M_TRIM_THRESHOLD, kept_mib))
    return all(mallopt(setting, min(mib << 20, 2**31 - 1)) == 1 for setting, mib in settings)
