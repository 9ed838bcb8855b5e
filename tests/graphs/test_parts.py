"""Graphs that are read and cut by tasks of a Ray cluster: the store of one host, byte for byte, whoever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from gst.cli import main
from gst.data.source import GraphSource
from gst.data.synthetic import SyntheticPrograms, synthetic_program
from gst.data.tpugraphs import write_npz
from gst.graphs.graph import Graph
from gst.graphs.parts import Parts
from gst.graphs.store import prepare
from tests.clusters import ROOT, cluster_here

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed (extra ray)")]
settings: Any = {"max_nodes": 100, "halo": 1, "seed": 3}


class Watched(GraphSource):
    """Programs; a file tells how often each was made, and another one which of them is to end its process once."""

    def __init__(self, folder: str, count: int = 6) -> None:
        self.folder, self.count = folder, count

    def __iter__(self) -> Iterator[Graph]:
        return map(self.load, self.items())

    def items(self) -> range:
        return range(self.count)

    def load(self, item: int) -> Graph:
        with Path(self.folder, "made").open("a") as made:
            made.write(f"{item}\n")
        if (order := Path(self.folder, f"kill {item}")).exists():
            order.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if item == 4 and Path(self.folder, "damaged").exists():
            raise ValueError("program 4 is damaged")
        return synthetic_program(300 + item, 20, seed=item)

    def fingerprint(self) -> str:
        return f"watched {self.count}"

    def made(self) -> list[int]:
        path = Path(self.folder, "made")
        return sorted(map(int, path.read_text().split())) if path.exists() else []


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with cluster_here(Path(__file__).parent):
        yield "ray"


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.chdir(tmp_path)
    return Watched(str(tmp_path))


def content(directory: Any) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(directory).iterdir()}


def left(root: str) -> set[str]:
    """What a preparation leaves beside stores and notes."""
    return {path.name for path in Path(root).glob(".*")}


def test_the_store_is_that_of_one_host(cluster: str, watched: Watched) -> None:
    here = prepare(watched, "here", **settings)
    there = prepare(watched, "there", workers=cluster, **settings)
    assert here.name == there.name and content(here) == content(there)
    assert not left("there")
    before = watched.made()
    assert prepare(watched, "there", workers=cluster, **settings) == there and watched.made() == before


def test_files_at_relative_paths_packed_or_not(cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for seed, most in enumerate((3, 9, 5)):  # nine does not fit into three bits
        graph = synthetic_program(400, 10, seed=seed)
        graph.config_features[-1, -1, -1] = most
        write_npz(graph, f"program-{seed}.npz")
    command = ["prepare", "*.npz", "--max-nodes", "100", "--store"]
    assert main([*command, "here"]) == main([*command, "there", "--workers", cluster]) == 0
    (here,), (there,) = (list(Path(name).glob("[!s]*")) for name in ("here", "there"))
    assert here.name == there.name and content(here) == content(there)


def test_a_killed_worker_costs_its_task_alone(cluster: str, watched: Watched) -> None:
    Path("kill 2").touch()
    there = prepare(watched, "there", workers=cluster, **settings)
    assert not Path("kill 2").exists()
    assert content(there) == content(prepare(watched, "here", **settings))


def test_a_damaged_graph_is_named_and_what_was_cut_is_kept(
    cluster: str, watched: Watched, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("damaged").touch()
    with pytest.raises(ValueError, match=r"^program 4 is damaged$"):
        prepare(watched, "there", workers=cluster, **settings)
    assert set(watched.made()) >= {0, 1, 2, 3, 4}
    Path("damaged").unlink()
    Path("made").unlink()
    prepare(watched, "there", workers=cluster, **settings)
    assert 4 in watched.made() and 0 not in watched.made()
    assert not left("there")


CONTROLLER = """
import sys
from gst.graphs.store import prepare
from test_parts import Watched, settings
print(prepare(Watched(sys.argv[1]), "there", workers="ray", **settings))
"""


def test_a_killed_controller_goes_on(watched: Watched, tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    start = partial(subprocess.Popen, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, text=True)
    process = start([sys.executable, "-c", CONTROLLER, str(tmp_path)])
    while len(watched.made()) < 3 and process.poll() is None:
        time.sleep(0.02)
    process.kill()
    process.wait()
    Path("made").unlink()
    process = start([sys.executable, "-c", CONTROLLER, str(tmp_path)])
    said, _ = process.communicate()
    assert process.returncode == 0
    assert content(said.strip()) == content(prepare(watched, "here", **settings))
    assert not left("there")


def test_a_source_without_items_is_refused() -> None:
    with pytest.raises(ValueError, match=r"list has no items\(\) and load\(item\)"):
        prepare([synthetic_program(50, 8)], "stores", workers="ray")


def test_every_shipped_source_of_files_has_items() -> None:
    source = SyntheticPrograms(num_nodes=60, num_graphs=2, num_configs=8)
    assert [graph.digest() for graph in map(source.load, source.items())] == [graph.digest() for graph in source]


def test_a_folder_that_hosts_do_not_share_is_named(tmp_path: Path) -> None:
    parts = Parts(SyntheticPrograms(60), tmp_path, "ray", prepare, {})
    with pytest.raises(ValueError, match="elsewhere is not on this host; give a folder that all hosts share"):
        parts._opened(tmp_path / "elsewhere")
