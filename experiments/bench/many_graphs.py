"""Stores of many graphs: time to prepare and to open them, files, bytes and memory, by the number of graphs.

python -m experiments.bench many_graphs --json experiments/results/many_graphs.json
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.bench.child import call
from gst.data.synthetic import synthetic_program
from gst.graphs.graph import Graph
from gst.graphs.index import INDEX, RECORDS, read_index, record_of, write_index
from gst.graphs.store import open_store, prepare
from gst.machine.devices import machine_record
from gst.util.arrays import JOURNAL
from gst.util.progress import Progress, no_progress

HELP = {
    "graphs": "numbers of graphs in the stores", "nodes": "of each graph",
    "indexed": "graphs of an index whose records repeat those of the largest store",
}  # fmt: skip


@dataclass(frozen=True)
class Programs:
    """Synthetic programs, made one by one."""

    count: int
    nodes: int

    def __iter__(self) -> Iterator[Graph]:
        return (synthetic_program(self.nodes, 4, seed=seed) for seed in range(self.count))

    def fingerprint(self) -> str:
        return f"{self.count} programs of {self.nodes} nodes"


def run(
    graphs: tuple[int, ...] = (500, 1000, 2000), nodes: int = 10_000, indexed: int = 100_000, out: Path = Path("runs"),
    progress: Progress = no_progress,
) -> dict[str, Any]:  # fmt: skip
    """Return one entry for each store: `prepare_cpu_s` without making the graphs, `files`, `store_mib`, and those of
    `opened`, each in a process of its own; the last entry is of the index of `indexed` graphs, whose arrays are shared.
    """
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="many-", dir=out) as folder:
        for count in graphs:
            progress(f"{count} graphs", len(rows), len(graphs) + 1)
            rows.append(call("many_graphs:prepared", count=count, nodes=nodes, folder=folder))
        largest, repeated = Path(rows[-1]["store"]), Path(folder, "repeated")
        progress(f"{indexed} graphs", len(graphs), len(graphs) + 1)
        call("many_graphs:repeat", store=str(largest), count=indexed, folder=str(repeated))
        rows.append({"graphs": indexed, "store": str(repeated), "index_mib": _mib(repeated, (INDEX, RECORDS))})
        for row in rows:
            row |= call("many_graphs:opened", store=row.pop("store"))
    return {"rows": rows, "nodes": nodes, "machine": machine_record()}


def prepared(count: int, nodes: int, folder: str) -> dict[str, Any]:
    """Prepare a store in this process."""
    programs = Programs(count, nodes)
    started = time.process_time()
    for _ in programs:
        pass
    making, started = time.process_time() - started, time.process_time()
    store = Path(prepare(programs, folder, workers=1))
    seconds, names = time.process_time() - started - making, [path.name for path in store.iterdir()]
    return {
        "graphs": count, "prepare_cpu_s": seconds, "files": len(names), "store_mib": _mib(store, names),
        "index_mib": _mib(store, (INDEX, RECORDS)), "prepare_mib": _anonymous_mib(), "store": str(store),
    }  # fmt: skip


def repeat(store: str, count: int, folder: str) -> None:
    """Make a store whose graphs have other names and the arrays of those of another store."""
    meta, lines = read_index(Path(store)), Path(store, RECORDS).read_bytes()
    Path(folder).mkdir()
    for name in meta["files"]:
        if name != RECORDS:
            Path(folder, name).hardlink_to(Path(store, name))
    number = len(meta["graphs"]["names"])
    records = [record_of(meta, lines, i) for i in range(number)]
    records = [records[i % number] | {"name": f"graph {i}"} for i in range(count)]
    Path(folder, JOURNAL).write_text("".join(f"{json.dumps(each)}\n" for each in records))
    sizes = {name: size for name, size in meta["files"].items() if name != RECORDS}
    write_index(Path(folder), meta["settings"], records, sizes)


def opened(store: str) -> dict[str, float]:
    """Open a store and then use a field of each graph; times are of the processor, memory is anonymous and added."""
    times, memory = [time.process_time()], [_anonymous_mib()]
    graphs = open_store(store)
    times.append(time.process_time())
    memory.append(_anonymous_mib())
    assert all(graph.num_segments > 0 for graph in graphs)
    times.append(time.process_time())
    memory.append(_anonymous_mib())
    return {
        "open_cpu_s": times[1] - times[0], "open_mib": memory[1] - memory[0],
        "use_cpu_s": times[2] - times[1], "use_mib": memory[2] - memory[1],
    }  # fmt: skip


def _mib(folder: Path, names: Any) -> float:
    return sum((folder / name).stat().st_size for name in names) / 2**20


def _anonymous_mib() -> float:
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) / 1024
