"""Segment stores behind addresses: how a store goes up, and its files as they are opened.

The files of a store lie in a folder that its checksum names, and `meta.json`, which goes up last, names that folder and
the tag of each file. A store that was copied there by other means, as it lies on a disk, is read as well.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gst.graphs.index import INDEX, checksum_of
from gst.util.addresses import Address, details, upload, write_object
from gst.util.arrays import check_names, shortened
from gst.util.copies import RemoteFile, copies_directory, read_whole, usual_room
from gst.util.untrusted import read_object, shown

BOOT = Path("/proc/sys/kernel/random/boot_id")


def publish(store: Path, address: Address) -> None:
    """Copy a store to an address, the index last; files that an earlier try brought there are not sent again."""
    meta = read_object(store / INDEX)
    tags = {name: upload(store / name, address / meta["checksum"] / name).tag for name in meta["files"]}
    if details(address / INDEX) is None:
        meta |= {"parts": meta["checksum"], "tags": tags}
        write_object(address / INDEX, json.dumps(meta | {"checksum": checksum_of(meta)}).encode())


def open_files(store: Address, meta: dict[str, Any], whole: Iterable[str], room: int | None) -> dict[str, Any]:
    """Return the files of a store by field, the content of those that are read `whole`.

    Args:
        room: most bytes of copies on this disk, see `usual_room`.

    Raises:
        ValueError: an object is missing, has another size, or was changed since the store was written.
    """
    check_names(store, (*meta["files"], f"{meta.get('parts', 'none')}.bin"))
    folder, tags = store / meta["parts"] if "parts" in meta else store, meta.get("tags", {})
    found = {name: details(folder / name) for name in meta["files"]}
    advice = f"delete {store} and prepare it again"
    for name, size in meta["files"].items():
        if (now := found[name]) is None or now.size != size:
            actual = "no" if now is None else now.size
            raise ValueError(f"{folder / name} holds {actual} bytes, want {shown(size)}; {advice}")
        if now.tag != tags.get(name, now.tag):
            raise ValueError(f"{folder / name} was changed since it was written (its tag differs); {advice}")
    # After a loss of power the flags of blocks may be on the disk, and their bytes not.
    key = shortened(hashlib.sha256(f"{BOOT.read_text()} {store} {meta['checksum']} {found}".encode()))
    room = usual_room() if room is None else room
    files: dict[str, Any] = {
        Path(name).stem: RemoteFile(folder / name, size, str(copies_directory() / key / name), room)
        for name, size in meta["files"].items()
    }
    return files | read_whole({name: files[name] for name in whole})
