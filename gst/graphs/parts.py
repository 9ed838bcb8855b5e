"""Preparation by the hosts of a Ray cluster: each graph is read, cut and written there as a store of its own, a part.

Parts lie beside the store, so they are in a folder that all hosts share, or at an address. This process joins their
files; of the graphs it holds the names. Parts of a preparation that was killed are found again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gst.graphs.index import RECORDS, read_index, record_of
from gst.util.addresses import Address, download, remove
from gst.util.arrays import ArrayWriter, Entry, Record, check_names, shortened
from gst.util.cluster import joined
from gst.util.copies import local_copy

WAITING = 1000  # tasks at most, for clusters of up to as many cores
ATTEMPTS = 5  # of a graph whose host is lost


@dataclass(frozen=True)
class Part:
    """A store of one graph."""

    place: Path | Address
    meta: dict[str, Any]
    record: Record

    @property
    def name(self) -> str:
        return str(self.record["name"])

    @property
    def num_nodes(self) -> int:
        return int(self.record["num_nodes"])

    def digest(self) -> str:
        """Return the digest of the graph that was cut."""
        return str(self.record["digest"])

    def write(self, writer: ArrayWriter) -> dict[str, Entry]:
        """Append its arrays and return their entries."""
        if isinstance(self.place, Path):
            return writer.write_part(self.place, self.record["arrays"])
        with TemporaryDirectory(dir=writer.directory) as folder:
            for name, size in self.meta["files"].items():
                download(self.place / self.meta["parts"] / name, Path(folder, name), size)
            return writer.write_part(Path(folder), self.record["arrays"])


class Parts:
    """The graphs of a source as parts, in the order of its items.

    Args:
        source: with `items()` and `load(item)`; it is pickled.
        root: folder or address of the store.
        cluster: address of the cluster, see `gst.util.cluster.joined`.
        cut: makes a store of one graph: called with the graphs, a folder or address, and `workers`.
        settings: of the segments.

    Raises:
        ValueError: the source does not define `items` and `load`.
    """

    def __init__(
        self, source: Any, root: Path | Address, cluster: str, cut: Callable[..., Path | Address], settings: Any
    ) -> None:
        if not (hasattr(source, "items") and hasattr(source, "load")):
            raise ValueError(f"hosts read graphs one by one: {type(source).__name__} has no items() and load(item)")
        self.source, self.cluster, self.cut, self.settings = source, cluster, cut, settings
        self._fingerprint = str(getattr(source, "fingerprint", str)())
        self._key = shortened(hashlib.sha256(f"{self._fingerprint} {settings}".encode()))
        self.folder = (root if isinstance(root, Address) else root.absolute()) / f".parts-{self._key}"
        self._places: list[Path | Address] = []

    def fingerprint(self) -> str:
        """Return that of the source, empty if it has none."""
        return self._fingerprint

    def __iter__(self) -> Iterator[Part]:
        yield from map(self._opened, self._places)
        items = self.source.items()[len(self._places) :]
        if not items:
            return
        with joined(self.cluster):
            import ray

            task = ray.remote(max_retries=ATTEMPTS)(_cut_one)
            known = self._key if self._fingerprint else ""  # fingerprints of many files are long
            shared = ray.put((Path.cwd(), self.source, self.cut, self.folder, self.settings, known))
            waiting: deque[Any] = deque()
            for item in items:
                waiting.append(task.remote(shared, item))
                if len(waiting) == WAITING:
                    yield self._taken(waiting.popleft())
            while waiting:
                yield self._taken(waiting.popleft())

    def remove(self) -> None:
        """Remove the parts once the store is there."""
        if isinstance(self.folder, Path):
            shutil.rmtree(self.folder, ignore_errors=True)
        elif self._places:
            remove(self.folder)

    def _taken(self, reference: Any) -> Part:
        import ray

        try:
            place = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.RayError as error:
            raise ValueError(f"a host of {self.cluster} is lost ({error}); the same command goes on") from error
        self._places.append(place)
        return self._opened(place)

    def _opened(self, place: Path | Address) -> Part:
        if isinstance(place, Path) and not place.is_dir():
            raise ValueError(f"{place} is not on this host; give a folder that all hosts share, or an address")
        meta = read_index(place)
        check_names(place, (*meta["files"], f"{meta.get('parts', 'none')}.bin"))
        folder = place / meta["parts"] if "parts" in meta else place
        part = Part(place, meta, record_of(meta, local_copy(folder / RECORDS).read_bytes(), 0))
        check_names(place, (f"{name}.bin" for name in part.record["arrays"]))
        return part


class _Item:
    """One item of a source, as a dataset."""

    def __init__(self, source: Any, item: Any, fingerprint: str) -> None:
        self.source, self.item = source, item
        self._fingerprint = f"{item!r} of {fingerprint}" if fingerprint else ""

    def fingerprint(self) -> str:
        return self._fingerprint

    def __iter__(self) -> Iterator[Any]:
        yield self.source.load(self.item)


def _cut_one(shared: Any, item: Any) -> Path | Address:
    """Task of a host: make the part of an item. Relative paths of the source are those of the controller."""
    directory, source, cut, folder, settings, fingerprint = shared
    with suppress(OSError):  # it may not be there
        os.chdir(directory)
    return cut(_Item(source, item, fingerprint), folder, workers=1, **settings)
