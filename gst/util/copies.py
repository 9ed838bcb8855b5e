"""Copies of objects behind addresses, in the cache of this machine."""

from __future__ import annotations

import hashlib
from pathlib import Path

from gst.util.addresses import Address, details, download, place
from gst.util.writing import atomic_path, cache_directory


def local_copy(path: Path | str) -> Path:
    """Return a local path as it is, and for an address that of a copy, which is made unless the cache holds it.

    Raises:
        ValueError: the address holds no such object, or gives no answer.
    """
    found = place(path)
    if not isinstance(found, Address):
        return found
    now = details(found)
    if now is None:
        raise ValueError(f"{found}: there is no such object")
    key = hashlib.sha256(f"{found} {now.tag}".encode()).hexdigest()[:16]
    copy = cache_directory() / "objects" / key / found.name
    if not (now.tag and copy.is_file() and copy.stat().st_size == now.size):
        with atomic_path(copy) as partial:
            download(found, partial, now.size)
    return copy
