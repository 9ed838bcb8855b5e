"""Reader of HLSyn, from its archive or an unpacked folder: program graphs, designs and C sources."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple
from xml.parsers import expat

import numpy as np

from experiments.reproductions.dataset_files import dataset_files
from experiments.reproductions.hlsyn.source.functions import parse_kernel
from experiments.reproductions.hlsyn.source.loop_tree import Kernel
from experiments.reproductions.hlsyn.source.pragmas import MODES
from gst.data.source import GraphSource, fingerprint_of_files
from gst.graphs.graph import Graph
from gst.util.untrusted import parse_json, plain, shown

VERSION = 1  # of what is read
TOOLS = ("v18", "v20")
RESOURCES = ("BRAM", "DSP", "LUT", "FF")
TARGETS = ("cycles", "valid", *RESOURCES)
WANTED = re.compile(r"(?:.*/)?(graphs/[^/]+\.gexf|designs/v\d+/[^/]+\.json|sources/[^/]+\.c)")
KINDS = ("PARA", "PIPE", "TILE")
FLOWS = 4  # control, data, call, pragma
OPCODES = (
    "[external]", "alloca", "store", "load", "br", "icmp", "fcmp", "add", "sub", "mul", "sdiv", "udiv", "srem", "urem",
    "and", "or", "xor", "shl", "lshr", "ashr", "fadd", "fsub", "fmul", "fdiv", "fneg", "sext", "zext", "trunc",
    "sitofp", "fptosi", "bitcast", "getelementptr", "call", "ret", "phi", "select", "switch", "PIPELINE", "TILE",
    "PARALLEL",
)  # fmt: skip
"""Instructions, in the order of their opcodes from 1 on; 0 is any other, such as a variable or a constant."""


class ProgramGraph(NamedTuple):
    """Program graph of one kernel.

    Args:
        types: of each node: 0 instruction, 1 variable, 2 constant, 3 pragma.
        blocks, functions: basic block and function of each node.
        texts: instruction, type of the variable or constant, or kind of the pragma.
        edges: (2, edges), producer -> consumer.
        flows: kind of each edge: 0 control, 1 data, 2 call, 3 pragma.
        positions: which operand of the consumer an edge is.
        pragmas: node of each pragma by its name, `__PARA__L0`.
    """

    types: np.ndarray
    blocks: np.ndarray
    functions: np.ndarray
    texts: tuple[str, ...]
    edges: np.ndarray
    flows: np.ndarray
    positions: np.ndarray
    pragmas: dict[str, int]


class Design(NamedTuple):
    """One design and its outcome.

    Args:
        point: value of each pragma.
        cycles: latency; NaN if it was not synthesised.
        is_valid: it was synthesised and passed the checks of the authors.
        resources: fractions of BRAM, DSP, LUT and FF that it uses; zeros if it was not synthesised.
    """

    point: dict[str, int | str]
    cycles: float
    is_valid: bool
    resources: tuple[float, float, float, float]


@dataclass(frozen=True)
class HlsKernel:
    """One kernel under one version of the tool.

    Args:
        name: of the kernel.
        tool: `v18` or `v20`; labels of the two are not comparable.
        kernel: its loop tree.
        graph: its program graph; None where the dataset holds none.
        designs: in the order of the file.
    """

    name: str
    tool: str
    kernel: Kernel
    graph: ProgramGraph | None
    designs: tuple[Design, ...]

    @property
    def label(self) -> str:
        """`v18/atax`."""
        return f"{self.tool}/{self.name}"


def read_kernels(
    path: Path | str, tools: Sequence[str] = TOOLS, broken: dict[str, str] | None = None
) -> list[HlsKernel]:  # fmt: skip
    """The kernels of an HLSyn archive (`hlsyn.tar.xz`) or unpacked folder, by tool and name. Nothing is unpacked.

    Args:
        path: the archive, or the folder that holds `data/graphs`, `data/designs` and `data/sources`.
        tools: versions of the tool to read.
        broken: where it is given, a kernel that cannot be read is left out, and its label and what is wrong with it
            (`v18/atax`: message) are written here, instead of an error for all.

    Raises:
        ValueError: the archive is cut off, a file is damaged, or a kernel has no source; the message names the file.
    """
    path = Path(path)
    root = path / "data" if (path / "data").is_dir() else path
    files = dict(dataset_files(root, WANTED, "HLSyn"))
    kernels = []
    for name in sorted(each for each in files if each.startswith("designs/")):
        _, tool, stem = PurePosixPath(name).with_suffix("").parts
        if tool not in tools:
            continue
        try:
            kernels.append(_kernel(files, name, tool, stem, path))
        except ValueError as error:
            if broken is None:
                raise
            broken[f"{tool}/{stem}"] = str(error)
    if not kernels and broken:
        raise ValueError(f"{path}: no kernel can be read; the first: {next(iter(broken.values()))}")
    if not kernels:
        raise ValueError(f"{path} holds no designs/{tools[0]}/*.json; give hlsyn.tar.xz or the folder unpacked from it")
    return kernels


def _kernel(files: dict[str, bytes], name: str, tool: str, stem: str, path: Path) -> HlsKernel:
    source = _partner(files, "sources", stem, "_kernel.c", f"{path}/{name}")
    graph = _partner(files, "graphs", stem, "_processed_result.gexf", None)
    if source is None:
        raise ValueError(f"{path}: {name} lacks sources/{stem}_kernel.c; add this C source")
    kernel = parse_kernel(_text(files[source], f"{path}/{source}"), f"{path}/{source}")
    program = parse_gexf(files[graph], f"{path}/{graph}") if graph else None
    return HlsKernel(stem, tool, kernel, program, _designs(files[name], kernel, f"{path}/{name}"))


def _partner(files: dict[str, bytes], folder: str, stem: str, ending: str, where: str | None) -> str | None:
    """The file of `stem`, which may carry the name of its top function (`stencil_stencil2d`)."""
    exact = f"{folder}/{stem}{ending}"
    if exact in files:
        return exact
    others = [each for each in files if each.startswith(f"{folder}/{stem}_") and each.endswith(ending)]
    return min(others) if others else None


def _text(content: bytes, where: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not text ({plain(error)})") from error


def _designs(content: bytes, kernel: Kernel, where: str) -> tuple[Design, ...]:
    try:
        records = parse_json(content)
    except ValueError as error:
        raise ValueError(f"{where}: not JSON ({plain(error)})") from error
    if not isinstance(records, dict):
        raise ValueError(f"{where}: holds a {type(records).__name__}, want an object of designs")
    names = {f"__{kind}__{loop.place}" for loop in kernel.loops() for kind in loop.pragmas}
    return tuple(_design(record, names, f"{where}, design {shown(key)}") for key, record in records.items())


def _design(record: Any, names: set[str], where: str) -> Design:
    if not isinstance(record, dict) or not {"point", "perf", "valid"} <= record.keys():
        raise ValueError(f"{where}: want an object with point, perf and valid")
    point, perf, usage = record["point"], record["perf"], record.get("res_util") or {}
    if not isinstance(point, dict) or not isinstance(usage, dict):
        raise ValueError(f"{where}: point and res_util are objects")
    for name, value in point.items():
        if name not in names:
            raise ValueError(f"{where}: its source has no pragma {shown(name)}")
        is_good = value in MODES if name.startswith("__PIPE__") else type(value) is int and 1 <= value <= 10**6
        if not is_good:
            raise ValueError(f"{where}: {name} is {shown(value)}; want a factor from 1 on, or '', 'off', 'flatten'")
    numbers = [perf, *(usage.get(f"util-{each}", 0) for each in RESOURCES)]
    if any(isinstance(each, bool) or not isinstance(each, int | float) or not math.isfinite(each) for each in numbers):
        raise ValueError(f"{where}: perf and res_util hold {shown(numbers)}; want finite numbers")
    is_done = perf > 0
    resources = tuple(float(each) for each in numbers[1:])
    return Design(point, float(perf) if is_done else math.nan, bool(record["valid"]) and is_done, resources)  # type: ignore[arg-type]


def parse_gexf(content: bytes, where: str) -> ProgramGraph:
    """A program graph from GEXF. Document types and entities are refused, so that none is expanded.

    Raises:
        ValueError: it is no GEXF of HLSyn; the message names the place.
    """
    titles: dict[tuple[str, str], str] = {}
    nodes: dict[str, dict[str, str]] = {}
    edges: list[tuple[str, str, dict[str, str]]] = []
    state: dict[str, Any] = {"class": "", "values": {}}
    parser = expat.ParserCreate()

    def refuse(*_: Any) -> None:
        raise ValueError("it declares a document type or an entity")

    def start(tag: str, attributes: dict[str, str]) -> None:
        match tag.rpartition(":")[2]:
            case "attributes":
                state["class"] = attributes["class"]
            case "attribute":
                titles[state["class"], attributes["id"]] = attributes["title"]
            case "node":
                state["class"], state["values"] = "node", nodes.setdefault(attributes["id"], {})
            case "edge":
                state["class"], state["values"] = "edge", {}
                edges.append((attributes["source"], attributes["target"], state["values"]))
            case "attvalue":
                state["values"][titles[state["class"], attributes["for"]]] = attributes["value"]

    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.StartElementHandler = start
    try:
        parser.Parse(content, True)
        return _program(nodes, edges)
    except KeyError as error:
        raise ValueError(f"{where}, line {parser.CurrentLineNumber}: lacks or does not declare {error}") from error
    except (expat.ExpatError, ValueError) as error:
        raise ValueError(f"{where}, line {parser.CurrentLineNumber}: {plain(error)}") from error


def _program(nodes: dict[str, dict[str, str]], edges: list[tuple[str, str, dict[str, str]]]) -> ProgramGraph:
    if not nodes:
        raise ValueError("it holds no nodes")
    number = {name: place for place, name in enumerate(nodes)}
    rows = list(nodes.values())
    pragmas = {}
    for place, row in enumerate(rows):
        for kind, at in re.findall(r"auto\{__(PARA|PIPE|TILE)__(\w+)\}", row.get("full_text", "")):
            pragmas[f"__{kind}__{at}"] = place
    for source, target, _ in edges:
        if source not in number or target not in number:
            raise ValueError(f"an edge leads from {shown(source)} to {shown(target)}, which are not both nodes")
    flows = np.array([int(row["flow"]) for *_, row in edges], np.int64)
    if len(flows) and not 0 <= int(flows.min()) <= int(flows.max()) < FLOWS:
        raise ValueError(f"flow of an edge is outside 0..{FLOWS - 1}")
    return ProgramGraph(
        types=np.array([int(row["type"]) for row in rows], np.int64),
        blocks=np.array([int(row["block"]) for row in rows], np.int64),
        functions=np.array([int(row["function"]) for row in rows], np.int64),
        texts=tuple(row["text"] for row in rows),
        edges=np.array(
            [[number[source] for source, *_ in edges], [number[target] for _, target, _ in edges]], np.int64
        ),
        flows=flows,
        positions=np.array([int(row["position"]) for *_, row in edges], np.int64),
        pragmas=pragmas,
    )


@dataclass(frozen=True)
class HlSyn(GraphSource):
    """HLSyn: one graph for each kernel and version of the tool, its designs as configurations of its pragma nodes.

    Configuration features of a pragma node: log2 of its factor (0 for a pipeline pragma), `flatten`, `''`, `off`.
    Node features: type (4 columns), place of the block and function as log(1 + number), and edges that enter and leave
    by kind (8), as log(1 + number), and the mean position of those that enter. `edge_data` holds `flow` and `position`
    of each edge.

    Args:
        path: `hlsyn.tar.xz`, or the folder unpacked from it.
        tool: a version of the tool, or `all`.
        target: `cycles` (log2, NaN where a design was not synthesised), `valid` (1 or 0 for every design), or the
            fraction of a resource: `BRAM`, `DSP`, `LUT`, `FF`.

    Raises:
        ValueError: there is no such tool or target.
    """

    path: str
    tool: Literal["all", "v18", "v20"] = "all"
    target: str = "cycles"

    def __post_init__(self) -> None:
        if self.tool not in ("all", *TOOLS):
            raise ValueError(f"tool is {self.tool!r}; choose all, {', '.join(TOOLS)}")
        if self.target not in TARGETS:
            raise ValueError(f"target is {self.target!r}; choose {', '.join(TARGETS)}")

    def __iter__(self) -> Iterator[Graph]:
        for kernel in read_kernels(self.path, TOOLS if self.tool == "all" else (self.tool,)):
            yield as_graph(kernel, self.target)

    def fingerprint(self) -> str:
        """Equal for equal files and settings, so that a segment store is found without reading the files."""
        path = Path(self.path)
        if not path.exists():
            raise ValueError(f"{path}: there is no such file; give hlsyn.tar.xz or the folder unpacked from it")
        files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
        return fingerprint_of_files(files, f"HlSyn {VERSION} {self.tool} {self.target}")


def as_graph(kernel: HlsKernel, target: str = "cycles") -> Graph:
    """The graph of one kernel, its designs as configurations; see `HlSyn`.

    Raises:
        ValueError: it has no program graph or no designs, or its program graph lacks a pragma of its designs.
    """
    program, designs = kernel.graph, kernel.designs
    if program is None or not designs:
        raise ValueError(
            f"{kernel.label} has no {'designs' if program else 'program graph'}; add its file or leave it out"
        )
    names = sorted({name for design in designs for name in design.point})
    for name in names:
        if name not in program.pragmas:
            raise ValueError(
                f"{kernel.label}: its program graph has no node of pragma {name}; is it of another version?"
            )
    nodes = len(program.types)
    degrees = np.zeros((nodes, 2 * FLOWS), np.float32)
    np.add.at(degrees, (program.edges[1], program.flows), 1)
    np.add.at(degrees, (program.edges[0], FLOWS + program.flows), 1)
    entering = np.maximum(np.bincount(program.edges[1], minlength=nodes), 1)
    positions = np.bincount(program.edges[1], program.positions, nodes) / entering
    places = np.log1p(np.stack([program.blocks, program.functions, positions], 1))
    features = np.concatenate([np.eye(4)[np.clip(program.types, 0, 3)], places, np.log1p(degrees)], 1)
    opcode = {text: number for number, text in enumerate(OPCODES, 1)}
    configurations = np.zeros((len(designs), len(names), 4), np.float32)
    for row, design in enumerate(designs):
        for column, name in enumerate(names):
            value = design.point.get(name, 1)
            if isinstance(value, str):
                configurations[row, column, 1 + ("flatten", "", "off").index(value)] = 1
            else:
                configurations[row, column, 0] = np.log2(value)
    outcome: dict[str, Any] = {
        "cycles": lambda each: math.log2(each.cycles),
        "valid": lambda each: float(each.is_valid),
    }
    for place, name in enumerate(RESOURCES):
        outcome[name] = lambda each, place=place: each.resources[place]
    return Graph(
        features.astype(np.float32), program.edges, np.array([opcode.get(text, 0) for text in program.texts], np.int64),
        np.array([program.pragmas[name] for name in names], np.int64), configurations,
        np.array([outcome[target](each) for each in designs]), name=kernel.label,
        edge_data={"flow": program.flows, "position": program.positions},
    )  # fmt: skip
