"""The five collections of TpuGraphs in their published parts (Phothilimthana et al. 2023, arXiv 2308.13490)."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from gst.data.source import ItemSource, fingerprint_of_files
from gst.data.tpugraphs import OPCODE_NAMES, VERSION, FileRows, read, rows_of_file
from gst.graphs.graph import Graph
from gst.util.untrusted import parse_json, plain

COLLECTIONS = ("layout/xla/random", "layout/xla/default", "layout/nlp/random", "layout/nlp/default", "tile/xla")
PARTS = ("train", "valid", "test")
ADDRESS = "http://download.tensorflow.org/data/tpu_graphs/v0"  # as the README of the dataset gives it
USUAL_ROOT = "~/data/tpugraphs"


@dataclass(frozen=True)
class TpuGraphsCollection(ItemSource):
    """One part of one collection, each graph named after its file.

    Targets of the part test are placeholders, 0 for every configuration: they can be ranked and not scored.

    Examples:
        >>> TpuGraphsCollection("~/data/tpugraphs", "layout/xla/fast")
        Traceback (most recent call last):
        ValueError: there is no collection 'layout/xla/fast'; there are layout/xla/random, layout/xla/default, ...

    Args:
        root: the folder that the archives were unpacked in, which holds `npz/layout/...` or `layout/...`.
        eval_indices: a JSON file with the configurations to take of each graph, as published for the validation parts
            of the layouts (`eval_indices/xla_random.json`: 1000 of each graph). See `rows` of `read`.
        merge: as in `read`. The published score counts the listed rows with their repeats: it needs False.

    Raises:
        ValueError: there is no such collection or part, or the part is not below `root`; the message holds the
            command that downloads it.
    """

    root: str
    collection: str
    part: Literal["train", "valid", "test"] = "train"
    eval_indices: str | None = None
    merge: bool = True
    opcode_names = OPCODE_NAMES

    def __post_init__(self) -> None:
        _check_names(self.collection, self.part)

    @property
    def unit(self) -> str:
        """Unit of the targets."""
        return "ns" if self.collection.startswith("layout") else "runtimes of the default"

    def __iter__(self) -> Iterator[Graph]:
        widths: dict[str, tuple[int, Path]] = {}
        for path in self.items():
            graph = self.load(path)
            columns = {"configuration": graph.config_features.shape[2], "node feature": graph.node_features.shape[1]}
            for what, width in columns.items():
                expected, first = widths.setdefault(what, (width, path))
                if width != expected:
                    raise ValueError(f"{path} has {width} {what} columns and {first.name} {expected}; leave one out")
            yield graph

    def items(self) -> tuple[Path, ...]:
        """Return the files, which hosts may read at once."""
        return self.files

    def load(self, item: Path) -> Graph:
        """Return the graph of a file."""
        return read(item, self.merge, None if self._rows is None else self._rows[item.stem])

    def file_rows(self, name: str) -> FileRows:
        """Return the rows of the file that a graph was read from, by the name of the graph."""
        path = next(path for path in self.files if path.stem == name)
        return rows_of_file(path, self.merge, None if self._rows is None else self._rows[name])

    def fingerprint(self) -> str:
        """Return the same text for equal files and settings; raise ValueError if a file is missing."""
        listing = [] if self.eval_indices is None else [Path(self.eval_indices)]
        if listing and not listing[0].is_file():
            raise ValueError(f"{self.eval_indices}: there is no such file; give the list of this collection")
        settings = f"merge={self.merge} {bool(listing)}"
        return fingerprint_of_files([*self.files, *listing], f"TpuGraphs {VERSION} {settings}")

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """Files of the part, by name; ValueError with the command that downloads them if there are none."""
        if paths := _files(self.root, self.collection, self.part):
            return paths
        command = download_command(self.collection, self.part, self.root)
        raise ValueError(f"part {self.part} of {self.collection} is not in {self.root}; get it by: {command}")

    @cached_property
    def _rows(self) -> Mapping[str, Sequence[int]] | None:
        if self.eval_indices is None:
            return None
        rows = _read_indices(Path(self.eval_indices))
        for path in self.files:
            if path.stem not in rows:
                raise ValueError(
                    f"{self.eval_indices} lists no configurations of {path.stem}, which is in part {self.part} of "
                    f"{self.collection}; take the list of this collection, or all configurations"
                )
        return rows


def parts_below(
    root: str, collection: str | None = None, part: str | None = None, eval_indices: str | None = None
) -> list[TpuGraphsCollection]:
    """Return the named parts of the dataset: all below `root` where `collection` or `part` is None.

    Repeats are merged, but not those that `eval_indices` lists, because the published score counts them.

    Raises:
        ValueError: there are none, or `eval_indices`, which belongs to one part, comes with several.
    """
    if eval_indices is not None and (collection is None or part is None):
        raise ValueError(f"{eval_indices} lists configurations of one part; name it by its collection and part")
    wanted = [
        TpuGraphsCollection(root, name, split, eval_indices, eval_indices is None)  # type: ignore[arg-type]
        for name in ([collection] if collection else COLLECTIONS)
        for split in ([part] if part else PARTS)
    ]
    present = [source for source in wanted if _files(root, source.collection, source.part)]
    return present or [source for source in wanted[:1] if source.files]  # `files` raises, with advice


def download_command(collection: str, part: str, root: str = USUAL_ROOT) -> str:
    """Return a shell command that downloads and unpacks one part, and stops where the download fails.

    Examples:
        >>> download_command("tile/xla", "valid", "tpu").partition(" && curl ")[0]
        'mkdir -p tpu && cd tpu'
    """
    _check_names(collection, part)
    archive = f"npz_{collection.replace('/', '_')}_{part}.tar"
    place = _quoted(root)
    return f"mkdir -p {place} && cd {place} && curl --fail --remote-name {ADDRESS}/{archive} && tar xf {archive}"


def _files(root: str, collection: str, part: str) -> tuple[Path, ...]:
    """Return the npz files of one part, by name; none if it is absent."""
    top = Path(root).expanduser()
    for folder in (top / "npz" / collection / part, top / collection / part):
        if paths := tuple(sorted(folder.glob("*.npz"))):
            return paths
    return ()


def _quoted(root: str) -> str:
    """Quote `root` for the shell, which still expands `~/`."""
    home, rest = ("~/", root[2:]) if root.startswith("~/") else ("", root)
    return home + shlex.quote(rest)


def _check_names(collection: str, part: str) -> None:
    if collection not in COLLECTIONS:
        raise ValueError(f"there is no collection {collection!r}; there are {', '.join(COLLECTIONS)}")
    if part not in PARTS:
        raise ValueError(f"there is no part {part!r} of {collection}; there are {', '.join(PARTS)}")


def _read_indices(path: Path) -> dict[str, list[int]]:
    """Read the positions of the listed configurations by graph."""
    advice = "want a JSON object with a list of configurations for each graph"
    try:
        lists = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({plain(error)}); {advice}") from error
    if not isinstance(lists, dict) or not lists:
        raise ValueError(f"{path} holds no object; {advice}")
    for name, rows in lists.items():
        if not isinstance(rows, list) or not rows or not all(type(row) is int and 0 <= row < 2**31 for row in rows):
            raise ValueError(f"{path}: {plain(name, 60)} has no list of places in a file, counted from 0; {advice}")
    return lists
