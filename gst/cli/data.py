"""Commands `gst prepare` and `gst data`: their arguments, datasets by name, and output."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gst.data.source import GraphSource

DATASETS = (
    "synthetic:NODES, elf, malnet FOLDER, hlsyn PATH, timm FOLDER, neusight PATH, graphnet PATH, tpugraphs, or "
    "TpuGraphs npz files and patterns of them"
)
FILES = "a TpuGraphs npz file"
OPTIONS = {
    "synthetic": (),
    "elf": ("root", "label", "min_bytes", "limit", "min_groups"),
    "malnet": ("part", "splits"),
    "hlsyn": ("tool", "target"),
    "timm": ("mode", "limit"),
    "neusight": ("mode",),
    "graphnet": (),
    "tpugraphs": ("root", "collection", "part", "eval_indices", "features", "reduction"),
    FILES: ("features", "reduction"),
}
"""Options of each kind of dataset."""


def add_data(commands: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `prepare` and `data`; `command(commands, name, run, summary, examples)` makes one as all of `gst` are."""
    prepare = command(
        commands,
        "prepare",
        _prepare,
        "cut graphs into segments and write the segment store",
        "gst prepare 'data/layout/xla/random/train/*.npz' --max-nodes 2000\n"
        "gst prepare synthetic:200000 --method contiguous\n"
        "gst prepare elf --root /usr --label language\n"
        "gst prepare elf --root /usr/lib --label call_depth --limit 100\n"
        "gst prepare malnet data/malnet-graphs-tiny --part train --splits data/split_info_tiny/type\n"
        "gst prepare hlsyn data/hlsyn.tar.xz --tool v20 --target DSP\n"
        "gst prepare timm data --mode infer       # data/timm.tar.xz and data/graphnet_timm.tar.xz\n"
        "gst prepare neusight data/neusight.tar.xz\n"
        "gst prepare graphnet data/graphnet.tar.xz\n"
        "gst prepare tpugraphs --root data/tpugraphs --collection layout/xla/random --part train\n"
        "gst prepare tpugraphs --collection layout/nlp/random --features costs,padding --reduction hops:6\n"
        "gst prepare tpugraphs --root data/tpugraphs",
    )
    _add_sources(prepare)
    prepare.add_argument(
        "--store", type=Path, default=Path("runs/stores"), help="where stores live (default: %(default)s)"
    )
    prepare.add_argument("--max-nodes", type=int, default=1000, help="most nodes of a segment (default: %(default)s)")
    prepare.add_argument(
        "--method", default="metis", help="a partitioner, or auto: the smallest cut found (default: %(default)s)"
    )
    prepare.add_argument("--halo", type=int, default=0, help="hops of context around a segment (default: %(default)s)")
    prepare.add_argument("--seed", type=int, default=0, help="of the partitioner (default: %(default)s)")
    data = command(
        commands,
        "data",
        _data,
        "which parts of a published dataset are here, and how to get them",
        "gst data tpugraphs --root data/tpugraphs\ngst data tpugraphs --print-download > download.sh",
    )
    data.add_argument("dataset", choices=("tpugraphs",))
    data.add_argument("--root", help="folder of the dataset (default: ~/data/tpugraphs)")
    data.add_argument("--print-download", action="store_true", help="print the commands that download all of it")


def _add_sources(prepare: argparse.ArgumentParser) -> None:
    """The dataset, and the options of each kind, `OPTIONS`."""
    prepare.add_argument(
        "dataset",
        nargs="+",
        help="TpuGraphs npz files or patterns; synthetic:NODES; elf, the call graphs of this machine's binaries; "
        "malnet FOLDER; hlsyn PATH, neusight PATH, graphnet PATH, an archive or folder; timm FOLDER, which holds the "
        "tables and the GraphNet sources of its models; tpugraphs, its collections below --root, all that are there "
        "unless named",
    )
    prepare.add_argument(
        "--root", help="elf: folder to search (default: /usr); tpugraphs: its folder (default: ~/data/tpugraphs)"
    )
    elf = prepare.add_argument_group("elf")
    elf.add_argument(
        "--label",
        choices=("language", "section", "call_depth"),
        help="target: programming language, section of the Debian package, or depth of calls (default: language)",
    )
    elf.add_argument("--min-bytes", type=int, help="leave out smaller files (default: 100000)")
    elf.add_argument(
        "--limit", type=int, metavar="N", help="at most N binaries, or models of timm, evenly from all (default: all)"
    )
    elf.add_argument(
        "--min-groups", type=int, metavar="N", help="leave out classes of fewer groups of packages (default: 5)"
    )
    malnet = prepare.add_argument_group("malnet and tpugraphs")
    malnet.add_argument(
        "--part",
        choices=("all", "train", "val", "valid", "test"),
        help="as published: val of malnet, valid of tpugraphs",
    )
    malnet.add_argument("--splits", help="folder of train.txt, val.txt and test.txt, for --part")
    hlsyn = prepare.add_argument_group("hlsyn")
    hlsyn.add_argument("--tool", choices=("all", "v18", "v20"), help="version of the tool that labelled (default: all)")
    hlsyn.add_argument("--target", help="cycles (log2), valid, BRAM, DSP, LUT or FF (default: cycles)")
    prepare.add_argument_group("timm and neusight").add_argument(
        "--mode", choices=("all", "infer", "inf", "train"), help="infer (inf of neusight) or train alone (default: all)"
    )
    tpugraphs = prepare.add_argument_group("tpugraphs")
    tpugraphs.add_argument("--collection", metavar="NAME", help="layout/xla/random, tile/xla, ... (default: all there)")
    tpugraphs.add_argument("--eval-indices", metavar="JSON", help="only the configurations listed, as published")
    derived = prepare.add_argument_group("tpugraphs and TpuGraphs npz files")
    derived.add_argument(
        "--features",
        type=lambda names: tuple(names.split(",")),
        metavar="NAMES",
        help="derived node features to add, separated by commas, of costs, modulo, tiles, padding, layout, log "
        "(default: the published columns alone)",
    )
    derived.add_argument(
        "--reduction",
        metavar="HOW",
        help="none, or hops:K, only the nodes within K hops of a configurable one (default: none)",
    )


def _prepare(options: argparse.Namespace) -> dict[str, Any]:
    names = {name for each in OPTIONS.values() for name in each}
    values = {name: value for name in sorted(names) if (value := getattr(options, name)) is not None}
    results = [_prepare_one(source, options) for source in datasets(options.dataset, **values)]
    return results[0] if len(results) == 1 else {"stores": results}


def _prepare_one(source: GraphSource, options: argparse.Namespace) -> dict[str, Any]:
    from collections import Counter

    from gst.data import ElfBinaries, MalNet, TpuGraphsCollection
    from gst.graphs.store import open_store, prepare
    from gst.util.progress import bar

    with bar(desc="searching", unit=" graphs") as shown:
        shown.reset(expected_graphs(source))
        shown.set_description("preparing")
        directory = prepare(
            source, options.store, options.max_nodes, options.method, options.halo, options.seed,
            lambda name: shown.update() and None,
        )  # fmt: skip
    graphs = open_store(directory)
    result: dict[str, Any] = {
        "store": str(directory),
        "graphs": len(graphs),
        "nodes": sum(graph.num_nodes for graph in graphs),
        "segments": sum(graph.num_segments for graph in graphs),
        "configs": sum(graph.num_configs for graph in graphs),
        "bytes": sum(graph.nbytes() for graph in graphs),
        "edge_cut": max(graph.edge_cut for graph in graphs),
        "balance": max(graph.balance for graph in graphs),
    }
    if isinstance(source, TpuGraphsCollection):
        result |= {"collection": source.collection, "part": source.part}
        print(f"{source.collection}, part {source.part}:")
    print(
        "{store}: {graphs} graphs, {nodes} nodes in {segments} segments, {configs} configurations; "
        "worst edge cut {edge_cut:.3f}, worst balance {balance:.2f}".format(**result)
    )
    if isinstance(source, ElfBinaries | MalNet):
        result["classes"] = list(source.classes)
        print("classes: " + (", ".join(f"{i} {name}" for i, name in enumerate(source.classes)) or "none, a regression"))
    skipped = getattr(source, "skipped", None)
    if skipped is not None:
        counts = Counter(skipped.values()) if isinstance(source, ElfBinaries) else Counter(skipped)
        result["skipped"] = dict((+counts).most_common())
        print(
            "skipped: " + (", ".join(f"{count} {reason}" for reason, count in result["skipped"].items()) or "nothing")
        )
    return result


def _data(options: argparse.Namespace) -> dict[str, Any]:
    from gst.data.collections import USUAL_ROOT, download_commands, inventory

    root = options.root or USUAL_ROOT
    if options.print_download:
        print("\n".join(commands := download_commands(root)))
        return {"commands": commands}
    files = inventory(root)
    for name, count in files.items():
        print(f"{name:<26} {f'{count} files' if count else 'absent'}")
    print(f"below {root}; gst data tpugraphs --print-download tells how to get what is absent")
    return {"root": root, "files": files}


# Datasets by name ----------------------------------------------------------------------------------------------------


def datasets(words: Sequence[str], **options: Any) -> Sequence[GraphSource]:
    """The datasets that the words of a command name, as `dataset`; `tpugraphs` names all its parts below `root`."""
    from gst.data.collections import USUAL_ROOT, parts_below

    if words[0] != "tpugraphs":
        return [dataset(words, **options)]
    _nothing_after("tpugraphs", words[1:])
    _check_options("tpugraphs", options)
    return parts_below(**{"root": USUAL_ROOT} | options)


def dataset(words: Sequence[str], **options: Any) -> GraphSource:
    """The dataset that the words of a command name: `synthetic:NODES`, `elf`, `malnet FOLDER`, `hlsyn PATH`,
    `timm FOLDER`, `neusight PATH`, `graphnet PATH`, or TpuGraphs files.

    Examples:
        >>> dataset(["synthetic:500"]).num_nodes
        500

    Args:
        options: arguments of `ElfBinaries`, `MalNet`, `HlSyn`, `TimmStepTimes`, `NeuSightTimes` or `TpuGraphs`, see
            `OPTIONS`.

    Raises:
        ValueError: there is no such dataset, it does not take one of the options, or words are missing or left over.
    """
    from gst.data import ElfBinaries, MalNet, SyntheticPrograms, TpuGraphs

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
    if name in ("hlsyn", "timm", "neusight", "graphnet"):
        if not rest:
            raise ValueError(f"{name} needs its archive or folder: {name} PATH")
        _nothing_after(f"{name} {rest[0]}", rest[1:])
        return _published(name)(rest[0], **options)
    for word in words:
        if not (word.endswith(".npz") or set(word) & set("*?[/") or Path(word).exists()):
            raise ValueError(f"there is no dataset {word!r}; there are {DATASETS}")
    return TpuGraphs(words, **options)


def _published(name: str) -> Callable[..., GraphSource]:
    """The dataset of an archive."""
    match name:
        case "timm":
            from experiments.reproductions.timm.dataset import TimmStepTimes

            return TimmStepTimes
        case "neusight":
            from experiments.reproductions.neusight.graphs import NeuSightTimes

            return NeuSightTimes
        case "graphnet":
            from gst.data.fx_graphs import FxGraphs

            return FxGraphs
    from gst.data import HlSyn

    return HlSyn


def _check_options(name: str, options: dict[str, Any]) -> None:
    kind = name.partition(":")[0]
    for option in options:
        if option not in OPTIONS.get(kind, OPTIONS[FILES]):
            takers = " or ".join(taker for taker, options in OPTIONS.items() if option in options) or "no dataset"
            raise ValueError(f"{name} takes no option {option}; {takers} does")


def expected_graphs(source: GraphSource) -> int | None:
    """About how many graphs a source has, for a progress bar; None if only reading them tells."""
    from gst.data import ElfBinaries, MalNet, SyntheticPrograms, TpuGraphs, TpuGraphsCollection

    match source:
        case ElfBinaries():
            return len(source.binaries)
        case MalNet() | TpuGraphsCollection():
            return len(source.files)
        case TpuGraphs():
            return len(source.paths())
        case SyntheticPrograms():
            return source.num_graphs
    return len(source) if hasattr(source, "__len__") else None


def _nothing_after(name: str, rest: Sequence[str]) -> None:
    if rest:
        raise ValueError(f"{name} stands alone; prepare {rest[0]} by a command of its own")


def _number_of_nodes(name: str) -> int:
    number = name.partition(":")[2]
    if not number.isascii() or not number.isdigit() or not int(number):
        raise ValueError(f"{name}: want the number of nodes, such as synthetic:200000")
    return int(number)
