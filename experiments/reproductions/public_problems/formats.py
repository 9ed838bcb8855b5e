"""Readers of placement problems that others published: operations with their times, and what moves between them.

| format | recognised by | source |
|---|---|---|
| `doppler` | text: a count, three lines of numbers, a line of costs for each operation | github.com/xinyuyao/Doppler |
| `moirai` | an Excel sheet with columns task, dir_succ, p0, pc00 | github.com/moirai-placement/moirai |
| `pipedream` | text: lines `node -- description -- forward_compute_time=...` | github.com/msr-fiddle/pipedream |
| `piper` | JSON whose nodes have `TMPCs` | github.com/msr-fiddle/piper |
| `msr` | JSON whose nodes have `fpgaLatency` | github.com/msr-fiddle/dnn-partitioning, see `cost_graphs` |
| `wfformat` | JSON with a `workflow` | wfcommons.org, WfFormat 1.5 and those before it |
"""

from __future__ import annotations

import heapq
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from experiments.reproductions.public_problems.cost_graphs import (
    HIGHEST,
    CostGraph,
    accelerators,
    read_cost_graph,
    read_split,
)
from gst.util.untrusted import DAMAGE, parse_json, plain, shown

MOST_NODES = 1_000_000
OLE = bytes.fromhex("d0cf11e0a1b11ae1")  # first bytes of an .xls file
DOPPLER_SCALE = 1e10
"""DOPPLER's simulator divides its result by this (env/cost.py)."""


@dataclass(frozen=True, eq=False)
class PublicGraph:
    """A published placement problem: operations, their times on kinds of devices, and what moves between them.

    Nodes are in topological order: every edge leads to a greater number.

    Args:
        name: of the file.
        format: one of those in the table of this module.
        ids: name of each node as published.
        file_rank: position of each node in the file.
        kinds: kinds of devices that the file knows times of.
        times: of each node on each kind, in `unit` times `scale`; infinite where it cannot run.
        edges: producer -> consumer, each pair once; edges of one producer in the order of the file.
        amounts: what each edge moves: bytes, or a time where `hops` says how often it is taken.
        hops: how often an edge between two devices of these kinds takes its amount as a time; no entries if amounts are
            bytes.
        pair_times: time of each edge between two kinds; no entries if amounts say it.
        groups: nodes with the same number belong on the same device; 0 .. groups - 1.
        sizes: bytes that each node takes of its device as long as the plan lasts.
        limits: bytes that the nodes of one device of each kind may take; infinite where the file does not say it.
        counts: devices of each kind that the file asks for; 0 where it does not say it.
        unit: of times and of results.
        scale: a result in the file's own numbers divided by this is in `unit`.
        bytes_per_unit: bandwidth of the file, in bytes per `unit` of time; NaN where it does not say it.
        first_come: whether a device serves operations in the order in which they become ready, as DOPPLER's does;
            otherwise in the order of the plan.
        split: the published device of each node, -1 for a CPU; no entries where the file has none.
        notes: what the format does not say, and what is assumed.
    """

    name: str
    format: str
    ids: tuple[str, ...]
    file_rank: Int64[np.ndarray, " nodes"]
    kinds: tuple[str, ...]
    times: Float64[np.ndarray, "kinds nodes"]
    edges: Int64[np.ndarray, "2 edges"]
    amounts: Float64[np.ndarray, " edges"]
    hops: Float64[np.ndarray, "hops hops"]
    pair_times: Float64[np.ndarray, "pairs kinds kinds"]
    groups: Int64[np.ndarray, " nodes"]
    sizes: Float64[np.ndarray, " nodes"]
    limits: Float64[np.ndarray, " kinds"]
    counts: tuple[int, ...]
    unit: str = "ms"
    scale: float = 1.0
    bytes_per_unit: float = float("nan")
    first_come: bool = False
    split: Int64[np.ndarray, " placed"] | None = None
    notes: tuple[str, ...] = ()

    @property
    def num_nodes(self) -> int:
        return len(self.ids)


def read_public_graph(path: Path) -> PublicGraph:
    """Read a published placement problem of DOPPLER, Moirai, PipeDream, Piper, MSR or WfFormat, by its content.

    The table of this module says how formats are told apart.

    Examples:
        >>> _ = Path("two.txt").write_text("3\\n0\\n0\\n1\\n400,100\\n200,50\\n")  # one input, two operations
        >>> graph = read_public_graph(Path("two.txt"))
        >>> graph.format, graph.num_nodes, graph.times.tolist(), graph.amounts.tolist()
        ('doppler', 2, [[400.0, 200.0]], [100.0])

    Raises:
        ValueError: the file is missing, of no known format, or not as its format says: a number is missing, negative
            or none, an edge leads nowhere, or the graph has a cycle. Also if an .xls file is read without the package
            xlrd.
    """
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    content = path.read_bytes()
    if content.startswith(OLE):
        return _moirai(path)
    if content.lstrip()[:1] in (b"{", b"["):
        return _of_json(path, content)
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{path}: {_UNKNOWN}") from None
    first = next((line for line in lines if line.strip()), "")
    if re.fullmatch(r"\s*\d+\s*,?\s*", first):
        return _doppler(path, lines[lines.index(first) :])
    if " -- " in first:
        return _pipedream(path, lines)
    raise ValueError(f"{path}: {_UNKNOWN}")


_UNKNOWN = (
    "no known format of placement problems; want DOPPLER's or PipeDream's text, Moirai's .xls, or JSON of Piper, "
    "MSR (fpgaLatency) or WfFormat"
)


def _of_json(path: Path, content: bytes) -> PublicGraph:
    try:
        record = parse_json(content)
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({plain(error)})") from error
    if isinstance(record, dict) and isinstance(record.get("workflow"), dict):
        return _wfformat(path, record["workflow"])
    nodes = record.get("nodes") if isinstance(record, dict) else None
    first = nodes[0] if isinstance(nodes, list) and nodes and isinstance(nodes[0], dict) else {}
    if "TMPCs" in first:
        return _piper(path, record)
    if "fpgaLatency" in first or "cpuLatency" in first:
        return _msr(path, read_cost_graph(path))
    raise ValueError(f"{path}: {_UNKNOWN}")


def _doppler(path: Path, lines: Sequence[str]) -> PublicGraph:
    """Costs of operations in numbers of them, inputs left out; ids in the lines of edges do not count inputs."""
    rows = [re.findall(r"-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?", line) for line in lines]
    if len(rows) < 5:
        raise ValueError(f"{path}: {len(rows)} lines, want a count, inputs, sources, destinations and costs")
    (total, *_), inputs, sources, targets = (list(map(_bounded(path), row)) for row in rows[:4])
    count = total - len(inputs)
    if not 0 < count <= MOST_NODES:
        raise ValueError(f"{path}: {total} nodes and {len(inputs)} inputs leave {count} operations, want 1 or more")
    if len(sources) != len(targets):
        raise ValueError(f"{path}: {len(sources)} sources and {len(targets)} destinations of edges, want as many")
    costs = [row for row in rows[4:] if row]
    if len(costs) < count or any(len(row) < 2 for row in costs[:count]):
        raise ValueError(f"{path}: {len(costs)} lines of costs, want {count} with a compute and a transfer cost each")
    table = np.array([[_value(path, f"operation {n}", row[c]) for c in (0, 1)] for n, row in enumerate(costs[:count])])
    pairs = list(dict.fromkeys(zip(sources, targets, strict=True)))
    amounts = [table[producer, 1] if 0 <= producer < count else 0.0 for producer, _ in pairs]
    return _graph(
        path, "doppler", [str(n) for n in range(count)], pairs, amounts, ("device",), table[:, 0][None], hops=[[1.0]],
        unit="units of 1e10", scale=DOPPLER_SCALE, first_come=True,
        notes=("costs have no unit: a result is in 1e10 of them, as DOPPLER's simulator gives it",),
    )  # fmt: skip


def _pipedream(path: Path, lines: Sequence[str]) -> PublicGraph:
    """Layers with forward and backward time; a backward operation for each layer whose backward pass takes time, on
    the device of the layer, which gradients reach against the edges."""
    names: dict[str, int] = {}
    values: list[list[float]] = []
    stages: list[int] = []
    edges: dict[tuple[str, str], None] = {}
    for number, line in enumerate(lines, 1):
        parts = line.strip().split(" -- ")
        if len(parts) == 2 and "forward_compute_time" not in line:
            edges[parts[0], parts[1]] = None
        elif len(parts) >= 3:
            if parts[0] in names:
                raise ValueError(f"{path}: line {number}: {shown(parts[0])} is there twice")
            names[parts[0]] = len(names)
            fields = dict(re.findall(r"(\w+)=(\[[^\]]*\]|[^,\s]+)", " ".join(parts[2:])))
            values.append([_field(path, number, fields, key) for key in _PIPEDREAM])
            stages.append(int(_field(path, number, fields, "stage_id")) if "stage_id" in fields else -1)
        elif line.strip():
            raise ValueError(f"{path}: line {number} is {shown(line.strip())}, want `node -- description -- times`")
    for end in (end for pair in edges for end in pair if end not in names):
        raise ValueError(f"{path}: an edge names {shown(end)}, but there is no such node")
    forward, backward, activation, parameters = np.array(values, np.float64).reshape(-1, 4).T
    pairs = [(names[a], names[b]) for a, b in edges]
    count, amounts = len(names), [float(activation[a]) for a, _ in pairs]
    ids, group, times, sizes = list(names), list(range(count)), forward, parameters + activation
    if backward.any():  # every layer has both, so that gradients find their way
        pairs += [(n, count + n) for n in range(count)] + [(count + b, count + a) for a, b in pairs]
        amounts += [0.0] * count + amounts
        ids, group = [*ids, *(f"{name}.backward" for name in ids)], group * 2
        times, sizes, stages = np.concatenate([forward, backward]), np.concatenate([sizes, 0 * sizes]), stages * 2
    return _graph(
        path, "pipedream", ids, pairs, amounts, ("device",), times[None], group=group, sizes=sizes,
        split=np.array(stages) if min(stages, default=-1) >= 0 else None,
        notes=("one training step of one minibatch; gradients are as large as activations", _ONE_GPU),
    )  # fmt: skip


_PIPEDREAM = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_ONE_GPU = "times are of the one device that was profiled; devices of --machine are taken to be like it"


def _field(path: Path, number: int, fields: Mapping[str, str], key: str) -> float:
    if key not in fields:
        raise ValueError(f"{path}: line {number}: {key} is missing")
    parts = [part for part in re.split(r"[;,\s]+", fields[key].strip("[]")) if part]
    return sum((_value(path, f"line {number}: {key}", part) for part in parts), 0.0)


def _piper(path: Path, record: dict[str, Any]) -> PublicGraph:
    """Layers on one device each: of the least degree of tensor parallelism, without recomputation."""
    nodes, edges = _objects(path, record, "nodes"), _objects(path, record, "edges", empty=True)
    ids = [_number(path, "a node", node, "id") for node in nodes]
    position = {each: number for number, each in enumerate(ids)}
    if len(position) < len(ids):
        raise ValueError(f"{path}: {len(ids)} nodes have {len(position)} ids, want one each")
    times, sizes, degrees = [], [], set()
    for each, node in zip(ids, nodes, strict=True):
        owner, choices = f"node {each:g}", node.get("TMPCs")
        if not isinstance(choices, dict) or not choices or not all(key.isdecimal() for key in choices):
            raise ValueError(f"{path}: {owner}: TMPCs is {shown(choices)}, want times by degree of parallelism")
        degree = min(choices, key=int)
        variants = _objects(path, choices, degree)
        chosen = next((each for each in variants if each.get("id") == "vanilla"), variants[0])
        times.append(_number(path, owner, chosen, "timePerSample"))
        sizes.append(sum(_number(path, owner, chosen, key) for key in ("memoryUsageA", "memoryUsageB")))
        degrees.add(int(degree))
    pairs: dict[tuple[int, int], float] = {}
    for edge in edges:
        source, target = (_number(path, "an edge", edge, key) for key in ("sourceId", "destId"))
        for end in (source, target):
            if end not in position:
                raise ValueError(f"{path}: an edge from {source:g} to {target:g}, but there is no node {end:g}")
        cost = _number(path, f"the edge from {source:g} to {target:g}", edge, "communicationCost")
        pair = (position[source], position[target])
        pairs[pair] = max(cost, pairs.get(pair, 0.0))
    bandwidth = _number(path, "the file", record, "bandwidth")
    if bandwidth <= 0:
        raise ValueError(f"{path}: the file: bandwidth is {bandwidth:g}, want a number > 0")
    return _graph(
        path, "piper", [str(node.get("name") or f"{each:.17g}") for each, node in zip(ids, nodes, strict=True)],
        list(pairs), list(pairs.values()), ("device",), np.array([times]), sizes=np.array(sizes),
        limits=[_number(path, "the file", record, "maxMemoryPerDevice")],
        counts=[int(_number(path, "the file", record, "maxDevices"))], unit="s", bytes_per_unit=bandwidth,
        notes=(
            "forward and backward pass of one microbatch, each layer on one device "
            f"(degree of tensor parallelism {', '.join(map(str, sorted(degrees)))}, no recomputation)",
            "links have the bandwidth of the file",
        ),
    )  # fmt: skip


def _msr(path: Path, graph: CostGraph) -> PublicGraph:
    split = None
    notes: tuple[str, ...] = (
        "values go from accelerator to accelerator by the CPU's memory, at twice the published time",
    )
    folders = [path.parent, *(up / name for up in path.absolute().parents[:3] for name in _EXPERTS)]
    if file := next((each for folder in folders if (each := folder / f"{path.stem}_expert.json").is_file()), None):
        try:
            split = accelerators(read_split(file, graph))
        except ValueError as error:  # of a graph of the same name, of operators instead of layers say
            notes += (f"the published split is left out: {plain(error)}",)
    cpu, accelerator = graph.cpu_ms, graph.accelerator_ms
    return PublicGraph(
        graph.name, "msr", tuple(map(str, graph.ids)), np.arange(graph.num_nodes), ("cpu", "accelerator"),
        np.stack([cpu, accelerator]), graph.edges, graph.transfer_ms[graph.edges[0]],
        np.array([[0.0, 1.0], [1.0, 2.0]]), np.zeros((0, 2, 2)), graph.colocation, graph.sizes,
        np.array([np.inf, graph.memory_limit]), (graph.num_cores, graph.num_accelerators), split=split,
        notes=notes,
    )  # fmt: skip


_EXPERTS = ("human_experts", "human-experts")


def _wfformat(path: Path, workflow: dict[str, Any]) -> PublicGraph:
    """Tasks of a workflow; what moves from a parent to a child are the files that one writes and the other reads."""
    if isinstance(workflow.get("specification"), dict):
        tasks = _objects(path, workflow["specification"], "tasks")
        sizes = {
            _text(path, "a file", file, "id"): _number(path, f"file {shown(file['id'])}", file, "sizeInBytes")
            for file in _objects(path, workflow["specification"], "files", empty=True)
        }
        execution = workflow.get("execution")
        if not isinstance(execution, dict):
            raise ValueError(f"{path}: the workflow has no 'execution', where the times of its tasks are")
        ran = {_text(path, "a task", each, "id"): each for each in _objects(path, execution, "tasks")}
        written = [set(_names(path, task, "outputFiles")) for task in tasks]
        read = [set(_names(path, task, "inputFiles")) for task in tasks]
    else:  # WfFormat before 1.5
        tasks = _objects(path, workflow, "tasks" if "tasks" in workflow else "jobs")
        files = [[(task, file) for file in _objects(path, task, "files", empty=True)] for task in tasks]
        named = [[(_text(path, "a file", file, "name", "id"), file) for _, file in some] for some in files]
        sizes = {
            name: _number(path, f"file {shown(name)}", file, "sizeInBytes" if "sizeInBytes" in file else "size")
            for some in named for name, file in some
        }  # fmt: skip
        written, read = (
            [{name for name, file in some if file.get("link") == way} for some in named] for way in ("output", "input")
        )
        ran = {_text(path, "a task", task, "id", "name"): task for task in tasks}
    ids = [_text(path, "a task", task, "id", "name") for task in tasks]
    position = {str(task[key]): n for n, task in enumerate(tasks) for key in ("name", "id") if task.get(key)}
    position |= {name: number for number, name in enumerate(ids)}
    if len(set(ids)) < len(ids):
        raise ValueError(f"{path}: {len(ids)} tasks have {len(set(ids))} ids, want one each")
    times: list[float] = []
    pairs: dict[tuple[int, int], None] = {}
    for number, (name, task) in enumerate(zip(ids, tasks, strict=True)):
        if name not in ran:
            raise ValueError(f"{path}: task {shown(name)} has no time in 'execution'")
        key = "runtimeInSeconds" if "runtimeInSeconds" in ran[name] else "runtime"
        times.append(_number(path, f"task {shown(name)}", ran[name], key))
        for way, others in (("children", _names(path, task, "children")), ("parents", _names(path, task, "parents"))):
            for other in others:
                if other not in position:
                    raise ValueError(f"{path}: task {shown(name)}: there is no task {shown(other)} of its {way}")
                pairs[(number, position[other]) if way == "children" else (position[other], number)] = None
    amounts = [float(sum(sizes.get(file, 0.0) for file in written[a] & read[b])) for a, b in pairs]
    return _graph(
        path, "wfformat", ids, list(pairs), amounts, ("device",), np.array([times]), unit="s",
        notes=(
            "times are those measured, on whichever machine ran the task; devices of --machine are taken to be alike",
            "files that no task writes are taken to be everywhere; memory is not limited",
        ),
    )  # fmt: skip


def _moirai(path: Path) -> PublicGraph:
    """Operators with their times on each device, and times of each transfer between each two devices."""
    header, *rows = _sheet(path)
    columns = {str(title).strip(): number for number, title in enumerate(header) if str(title).strip()}
    kinds = [f"p{k}" for k in range(len(columns)) if f"p{k}" in columns]
    count = len(kinds)
    links = [f"pc{a}{b}" for a in range(count) for b in range(count)]
    for title in ("task", "dir_succ", *(kinds or ["p0"]), *links):
        if title not in columns:
            raise ValueError(f"{path}: the first sheet has no column {title!r}, want task, dir_succ, p0 .., pc00 ..")
    cell = lambda row, title: row[columns[title]] if title in columns and columns[title] < len(row) else ""  # noqa: E731
    rows = [row for row in rows if any(str(cell(row, title)).strip() for title in ("dir_succ", *kinds))]
    if not rows:
        raise ValueError(f"{path}: the first sheet has no operators")
    numbers = lambda row, title: _cells(path, f"task {shown(cell(row, 'task'))}: {title}", cell(row, title))  # noqa: E731
    first = lambda row, title, default: (numbers(row, title) or [default])[0]  # noqa: E731
    ids = [first(row, "task", -1.0) for row in rows]
    position = {each: number for number, each in enumerate(ids)}
    if len(position) < len(ids) or -1.0 in position:
        raise ValueError(f"{path}: {len(ids)} operators have {len(position)} task numbers, want one each")
    pairs: dict[tuple[int, int], list[float]] = {}
    for number, row in enumerate(rows):
        targets, moved = numbers(row, "dir_succ"), [numbers(row, title) for title in links]
        lengths = {len(each) for each in moved}
        if lengths - {0, len(targets)} and lengths != {1}:
            raise ValueError(f"{path}: task {ids[number]:g} has {len(targets)} successors, and {lengths} transfers")
        for nth, target in enumerate(targets):
            if target not in position:
                raise ValueError(f"{path}: task {ids[number]:g}: there is no successor {target:g}")
            pairs[number, position[target]] = [each[min(nth, len(each) - 1)] if each else 0.0 for each in moved]
    limits = [next((each for row in rows for each in numbers(row, f"m{k}")), np.inf) for k in range(count)]
    return _graph(
        path, "moirai", [f"{each:.17g}" for each in ids], list(pairs), [0.0] * len(pairs), tuple(kinds),
        np.array([[first(row, kind, 0.0) for row in rows] for kind in kinds]),
        pair_times=np.array(list(pairs.values())).reshape(-1, count, count),
        sizes=np.array([first(row, "mi", 0.0) for row in rows]), limits=limits, counts=[1] * count,
        notes=("times are taken to be milliseconds", "links carry several values at once"),
    )  # fmt: skip


def _sheet(path: Path) -> list[list[Any]]:
    """Rows of the first sheet of an Excel file, each as long as it has cells; cells are numbers or text."""
    try:
        import xlrd
    except ImportError:
        raise ValueError(
            f"{path}: an .xls file is read by xlrd; pip install 'graph-segment-training[experiments]'"
        ) from None
    try:
        with Path(os.devnull).open("w") as nowhere:  # it prints what it doubts
            sheet = xlrd.open_workbook(str(path), logfile=nowhere, ragged_rows=True).sheet_by_index(0)
            rows: list[list[Any]] = [sheet.row_values(number) for number in range(sheet.nrows)]
    except (*DAMAGE, xlrd.XLRDError, xlrd.compdoc.CompDocError) as error:
        raise ValueError(f"{path}: not a readable Excel file ({plain(error)})") from error
    if not rows:
        raise ValueError(f"{path}: the first sheet is empty")
    return rows


def _cells(path: Path, owner: str, value: Any) -> list[float]:
    """The numbers of a cell, which holds one or several with commas between."""
    parts = value.split(",") if isinstance(value, str) else [value]
    return [_value(path, owner, part) for part in parts if str(part).strip()]


def _graph(
    path: Path, form: str, ids: Sequence[str], pairs: Sequence[tuple[int, int]], amounts: Sequence[float],
    kinds: tuple[str, ...], times: Float64[np.ndarray, "kinds nodes"], *, hops: Sequence[Sequence[float]] = (),
    pair_times: Float64[np.ndarray, "pairs kinds kinds"] | None = None, group: Sequence[int] | None = None,
    sizes: Float64[np.ndarray, " nodes"] | None = None, limits: Sequence[float] = (), counts: Sequence[int] = (),
    split: Int64[np.ndarray, " nodes"] | None = None, **settings: Any,
) -> PublicGraph:  # fmt: skip
    """The graph of nodes in the order of the file, sorted topologically: of the nodes that may come next the first of
    the file does."""
    count = len(ids)
    if not 0 < count <= MOST_NODES:
        raise ValueError(f"{path}: {count} operations, want 1 to {MOST_NODES}")
    edges: Int64[np.ndarray, "2 edges"] = np.array(pairs, np.int64).reshape(-1, 2).T
    if edges.size and not 0 <= edges.min() <= edges.max() < count:
        wrong = edges[(edges < 0) | (edges >= count)][0]
        raise ValueError(f"{path}: an edge names operation {wrong}, there are 0 .. {count - 1}")
    waiting = np.bincount(edges[1], minlength=count)
    readers: list[list[int]] = [[] for _ in range(count)]
    for producer, consumer in pairs:
        readers[producer].append(consumer)
    ready = np.flatnonzero(waiting == 0).tolist()
    order: list[int] = []
    while ready:
        order.append(heapq.heappop(ready))
        for consumer in readers[order[-1]]:
            waiting[consumer] -= 1
            if not waiting[consumer]:
                heapq.heappush(ready, consumer)
    if len(order) < count:
        stuck = ids[int(np.flatnonzero(waiting)[0])]
        raise ValueError(f"{path}: {shown(stuck)} waits for itself or for a cycle; want a graph without cycles")
    chosen = np.array(order, np.int64)
    position = np.empty(count, np.int64)
    position[chosen] = np.arange(count)
    of = np.arange(count) if group is None else np.array(group, np.int64)
    return PublicGraph(
        path.stem, form, tuple(ids[node] for node in order), chosen, kinds, np.asarray(times, np.float64)[:, chosen],
        position[edges], np.array(amounts, np.float64), np.array(hops, np.float64).reshape(len(hops), len(hops)),
        np.zeros((0, len(kinds), len(kinds))) if pair_times is None else pair_times,
        np.unique(of[chosen], return_inverse=True)[1].astype(np.int64),
        np.zeros(count) if sizes is None else np.asarray(sizes, np.float64)[chosen],
        np.array(limits or [np.inf] * len(kinds), np.float64), tuple(counts) or (0,) * len(kinds),
        split=None if split is None else split[chosen], **settings,
    )  # fmt: skip


def _value(path: Path, owner: str, value: Any) -> float:
    """A number of a file, which may be text."""
    try:
        number = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not 0 <= number < HIGHEST:
        raise ValueError(f"{path}: {owner} is {shown(value)}, want a number >= 0 and below {HIGHEST:g}")
    return number


def _number(path: Path, owner: str, record: Mapping[str, Any], key: str) -> float:
    if key not in record:
        raise ValueError(f"{path}: {owner}: {key} is missing")
    if isinstance(record[key], str):
        raise ValueError(f"{path}: {owner}: {key} is {shown(record[key])}, want a number >= 0")
    return _value(path, f"{owner}: {key}", record[key])


def _bounded(path: Path) -> Any:
    def whole(text: str) -> int:
        if len(text) > 15 or not text.removeprefix("-").isdecimal():
            raise ValueError(f"{path}: {shown(text)} is no number of an operation")
        return int(text)

    return whole


def _objects(path: Path, record: Mapping[str, Any], key: str, empty: bool = False) -> list[dict[str, Any]]:
    items = record.get(key, [] if empty else None)
    if not isinstance(items, list) or not (items or empty) or not all(isinstance(item, dict) for item in items):
        raise ValueError(f"{path}: {shown(key)} is no list of objects, or is empty")
    return items


def _text(path: Path, owner: str, record: Mapping[str, Any], *keys: str) -> str:
    for key in keys:
        if isinstance(record.get(key), str | int) and not isinstance(record[key], bool) and record[key] != "":
            return str(record[key])
    raise ValueError(f"{path}: {owner} has no {' or '.join(keys)}")


def _names(path: Path, record: Mapping[str, Any], key: str) -> list[str]:
    items = record.get(key) or []
    if not isinstance(items, list) or not all(isinstance(item, str | int) for item in items):
        raise ValueError(f"{path}: {key} of a task is {shown(items)}, want a list of names")
    return [str(item) for item in items]
