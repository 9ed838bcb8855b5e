"""The datasets that a command knows by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gst.data.collections import USUAL_ROOT, TpuGraphsCollection, parts_below
from gst.data.elf import ElfBinaries
from gst.data.malnet import MalNet
from gst.data.source import GraphSource
from gst.data.synthetic import SyntheticPrograms
from gst.data.tpugraphs import TpuGraphs

KNOWN = "synthetic:NODES, elf, malnet FOLDER, tpugraphs, or TpuGraphs npz files and patterns of them"
FILES = "a TpuGraphs npz file"
OPTIONS = {
    "synthetic": (),
    "elf": ("root", "label", "min_bytes", "limit", "min_groups"),
    "malnet": ("part", "splits"),
    "tpugraphs": ("root", "collection", "part", "eval_indices", "features", "reduction"),
    FILES: ("features", "reduction"),
}
"""The options that each kind of dataset takes."""


def datasets(words: Sequence[str], **options: Any) -> Sequence[GraphSource]:
    """As `dataset`, but `tpugraphs` may stand for several: every part that is asked for, or is there."""
    if words[0] != "tpugraphs":
        return [dataset(words, **options)]
    _nothing_after("tpugraphs", words[1:])
    _check_options("tpugraphs", options)
    return parts_below(**{"root": USUAL_ROOT} | options)


def dataset(words: Sequence[str], **options: Any) -> GraphSource:
    """What a user names: `synthetic:NODES`, `elf`, `malnet FOLDER`, or TpuGraphs files.

    Args:
        options: arguments of `ElfBinaries`, `MalNet` or `TpuGraphs`, see `OPTIONS`.

    Raises:
        ValueError: there is no such dataset, it does not take one of the options, or words are missing or left over.
    """
    name, rest = words[0], list(words[1:])
    kind = name.partition(":")[0]
    _check_options(name, options)
    if kind == "synthetic":
        _nothing_after(name, rest)
        return SyntheticPrograms(num_nodes=_number_of_nodes(name))
    if name == "elf":
        _nothing_after(name, rest)
        return ElfBinaries(**options)
    if name == "malnet":
        if not rest:
            raise ValueError("malnet needs its folder: malnet FOLDER, the one that holds type/family/hash.edgelist")
        _nothing_after(f"malnet {rest[0]}", rest[1:])
        return MalNet(rest[0], **options)
    for word in words:
        if not (word.endswith(".npz") or set(word) & set("*?[/") or Path(word).exists()):
            raise ValueError(f"there is no dataset {word!r}; there are {KNOWN}")
    return TpuGraphs(words, **options)


def _check_options(name: str, options: dict[str, Any]) -> None:
    kind = name.partition(":")[0]
    for option in options:
        if option not in OPTIONS.get(kind, OPTIONS[FILES]):
            takers = " or ".join(taker for taker, taken in OPTIONS.items() if option in taken) or "no dataset"
            raise ValueError(f"{name} takes no option {option}; {takers} does")


def expected_graphs(source: GraphSource) -> int | None:
    """About how many graphs will come, where that is known without reading them: the length of a progress bar."""
    match source:
        case ElfBinaries():
            return len(source.binaries)
        case MalNet() | TpuGraphsCollection():
            return len(source.files)
        case TpuGraphs():
            return len(source.paths())
        case SyntheticPrograms():
            return source.num_graphs
    return None


def _nothing_after(name: str, rest: Sequence[str]) -> None:
    if rest:
        raise ValueError(f"{name} stands alone; prepare {rest[0]} by a command of its own")


def _number_of_nodes(name: str) -> int:
    number = name.partition(":")[2]
    if not number.isascii() or not number.isdigit() or not int(number):
        raise ValueError(f"{name}: want the number of nodes, such as synthetic:200000")
    return int(number)
