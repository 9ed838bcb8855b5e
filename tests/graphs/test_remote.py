from __future__ import annotations

import importlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gst.cli import main
from gst.data.loader import StepLoader
from gst.data.synthetic import SyntheticPrograms, synthetic_program
from gst.data.tpugraphs import write_npz
from gst.graphs.graph import Graph
from gst.graphs.segments import SegmentedGraph, segment
from gst.graphs.store import open_store, prepare
from gst.method.batch import assemble
from gst.method.estimator import GraphSegmentTraining
from gst.nn import SAGE, Head
from gst.util import copies
from gst.util.addresses import Address

pytest.importorskip("moto")
s3fs = pytest.importorskip("s3fs")
Server: Any = importlib.import_module("experiments.bench.s3_server").Server

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing", "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_MAX_ATTEMPTS": "1",
}  # fmt: skip
ROOT = Address("s3://bucket/stores")


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def server(running: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """An empty bucket, and an empty cache of this machine."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", running.endpoint)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    s3fs.S3FileSystem.clear_instance_cache()  # which knows another server
    _ask(running, "/moto-api/reset")
    client().create_bucket(Bucket="bucket")
    running.sent.clear()
    running.requests.clear()
    return running


def client() -> Any:
    import boto3

    return boto3.client("s3")


def _ask(server: Server, path: str, data: bytes = b"") -> None:
    headers = {"Content-Type": "text/plain"}
    urllib.request.urlopen(urllib.request.Request(server.endpoint + path, data, headers, method="POST")).read()


def keys() -> list[str]:
    return sorted(each["Key"] for each in client().list_objects_v2(Bucket="bucket").get("Contents", ()))


def programs(num_nodes: int = 1200, num_configs: int = 8) -> list[Graph]:
    """Two graphs whose configurations are packed in a store."""
    made = [synthetic_program(num_nodes=num_nodes, num_configs=num_configs, seed=seed) for seed in range(2)]
    features = [np.repeat(each.config_features % 6, 18, axis=2).astype(np.int8) for each in made]
    return [
        replace(each, name=f"program-{i}", config_features=packed)
        for i, (each, packed) in enumerate(zip(made, features, strict=True))
    ]


def arrays(graph: SegmentedGraph) -> dict[str, np.ndarray]:
    return {name: np.asarray(array) for name, array in graph._arrays()}


def bytes_of(server: Server) -> int:
    """Bytes of segments that were sent; arrays that are read when a store is opened come before."""
    return sum(sent for key, sent in server.sent.items() if key.endswith(".bin"))


@pytest.mark.parametrize("dtype", [np.int8, pytest.param(np.float32, marks=pytest.mark.slow)])
def test_a_store_behind_an_address_holds_what_a_local_one_does(server: Server, dtype: type) -> None:
    more = {"node_data": {"weight": np.linspace(0, 1, 1200)}, "edge_data": {}}
    graphs = [replace(each, config_features=each.config_features.astype(dtype), **more) for each in programs()]
    local, far = prepare(graphs, "stores", max_nodes=200, halo=1), prepare(graphs, ROOT, max_nodes=200, halo=1)
    assert isinstance(far, Address) and far == ROOT / local.name
    requests = server.requests["PUT"]
    assert prepare(graphs, ROOT, max_nodes=200, halo=1) == far and server.requests["PUT"] == requests
    for here, there in zip(open_store(local), open_store(far), strict=True):
        assert here.fingerprint == there.fingerprint
        for name, array in arrays(here).items():
            assert array.dtype == arrays(there)[name].dtype and np.array_equal(array, arrays(there)[name])
    for path in local.glob("*.bin"):
        key = next(key for key in keys() if key.endswith(path.name))
        assert client().get_object(Bucket="bucket", Key=key)["Body"].read() == path.read_bytes()


@pytest.mark.slow
def test_a_local_store_that_was_copied_to_a_bucket_is_read(server: Server) -> None:
    local = prepare(programs(), "stores", max_nodes=200)
    for path in local.iterdir():
        client().upload_file(str(path), "bucket", f"copied/{path.name}")
    for here, there in zip(open_store(local), open_store("s3://bucket/copied"), strict=True):
        assert all(np.array_equal(array, arrays(there)[name]) for name, array in arrays(here).items())


def test_any_use_of_an_array_reads_it(server: Server) -> None:
    (graph,) = open_store(prepare(programs()[:1], ROOT, max_nodes=200))
    opcodes, edges = graph.opcodes, graph.edges
    here = segment(programs()[0], max_nodes=200)
    assert np.array_equal(opcodes + 1, here.opcodes + 1) and np.array_equal(edges == 3, here.edges == 3)
    assert opcodes.max() == here.opcodes.max() and np.diff(opcodes).sum() == np.diff(here.opcodes).sum()
    assert np.array_equal(edges[0], here.edges[0]) and np.array_equal(edges[:, 5:9], here.edges[:, 5:9])
    assert np.array_equal(opcodes[::-2], here.opcodes[::-2]) and opcodes[-1] == here.opcodes[-1]
    with pytest.raises(IndexError):
        graph.config_features.words[np.array([[8]]), np.array([[0]])]


def losses(graphs: list[SegmentedGraph], epochs: int = 2, all_fresh: bool = True) -> Iterator[list[float]]:
    """Train on all configurations; the losses of each epoch."""
    torch.manual_seed(0)
    model = GraphSegmentTraining(SAGE(8, 1), Head(8), num_fresh=100 if all_fresh else 1)
    model.exact(graphs[:1], torch.zeros(1, 1, dtype=torch.int64))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    loader = StepLoader([(graph, torch.arange(graph.num_configs)) for graph in graphs], configs_per_graph=4)
    loader.reader = lambda step, ahead: partial(model.load, model.draw(step.graphs, step.configs, ahead))
    for _ in range(epochs):
        seen = []
        for step in loader:
            loss = (model(step.graphs, step.configs, step.prefetched) - step.targets.float().log()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        yield seen


def test_training_is_the_same_and_reads_what_it_draws_once(server: Server) -> None:
    graphs = programs(2000)
    local = open_store(prepare(graphs, "stores", max_nodes=1000))
    drawn = sum(
        array.nbytes
        for graph in local
        for name, array in graph._arrays()
        if name not in ("node_ids", "targets", "counts", "spreads", "owned_counts") and "_ptr" not in name
    )
    far = open_store(prepare(graphs, ROOT, max_nodes=1000))
    server.sent.clear()
    sent = []
    for here, there in zip(losses(local), losses(far), strict=True):
        assert here == there
        sent.append(bytes_of(server))
    assert drawn * 0.9 < sent[0] <= 1.2 * drawn and sent[1] == sent[0]
    server.requests.clear()
    assert list(losses(open_store(ROOT / "".join(keys()[0].split("/")[1:2])))) and bytes_of(server) == sent[0]


def test_a_step_reads_the_segments_that_it_drew_alone(server: Server) -> None:
    (graph,) = open_store(prepare(programs(6000, num_configs=32)[:1], ROOT, max_nodes=1000))
    server.sent.clear()
    server.requests.clear()
    configs = torch.tensor([[3, 4, 5, 20]])
    batch = assemble([graph], [(0, 2), (0, 4)], configs)
    stored = {"opcodes": 4, "edge_index": 8, "config_nodes": 8}  # config_columns and config_rows have 4 bytes each
    uses = len(batch.config_nodes)
    drawn = sum(getattr(batch, name).numel() * size for name, size in stored.items()) + batch.node_features.nbytes
    drawn += uses * 4 * graph.config_features.words.dtype.itemsize - batch.edge_index.numel() * 4
    assert 0.9 * drawn < bytes_of(server) <= 1.2 * drawn
    before = bytes_of(server)
    assemble([graph], [(0, 2), (0, 4)], configs)
    assert bytes_of(server) == before


@pytest.mark.slow
def test_copies_take_no_more_than_their_room(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "CHUNK", 1 << 14)
    graphs = programs(4000)
    local = open_store(prepare(graphs, "stores", max_nodes=500))
    far = open_store(prepare(graphs, ROOT, max_nodes=500), cache=3e-4)
    draws = random.Random(0)
    for _ in range(30):
        picks = [(draws.randrange(2), draws.randrange(local[0].num_segments)) for _ in range(2)]
        configs = torch.tensor([draws.sample(range(8), 3) for _ in range(2)])
        here, there = (assemble(graphs, picks, configs).tensors() for graphs in (local, far))
        assert all(torch.equal(tensor, there[name]) for name, tensor in here.items())
    assert 1e5 < sum(size for _, size, _ in copies._contents()) <= 3e5
    assert bytes_of(server) > 1.5 * sum(graph.nbytes() for graph in far) / 2  # some were read again


def spoil(what: str, store: Address) -> None:
    bucket, key = "bucket", next(each for each in keys() if each.endswith("/edges.bin"))
    content = client().get_object(Bucket=bucket, Key=key)["Body"].read()
    if what == "missing":
        client().delete_object(Bucket=bucket, Key=key)
    else:
        changed = content[:-8] if what == "truncated" else bytes(len(content))
        client().put_object(Bucket=bucket, Key=key, Body=changed)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        pytest.param("missing", "edges.bin holds no bytes, want", marks=pytest.mark.slow),
        ("truncated", "edges.bin holds .* bytes, want"),
        ("changed", r"edges.bin was changed since it was written \(its tag differs\)"),
    ],
)  # fmt: skip
def test_a_damaged_store_is_refused_in_one_line(server: Server, what: str, words: str) -> None:
    store = prepare(programs(), ROOT, max_nodes=200)
    _, graph = open_store(store)
    spoil(what, store)
    with pytest.raises(ValueError, match=words) as caught:
        open_store(store)
    assert "\n" not in str(caught.value) and str(store) in str(caught.value)
    if what != "changed":  # after it was opened
        with pytest.raises(ValueError, match=r"edges\.bin"):
            np.asarray(graph.edges)


def test_a_bucket_that_is_missing_or_closed_is_refused_in_one_line(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["prepare", "synthetic:200", "--store"]
    assert main([*command, "s3://no-such-bucket/stores"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "s3://no-such-bucket/stores" in said and "no such object or bucket" in said
    store = prepare(programs(), ROOT, max_nodes=200)
    _ask(server, "/moto-api/reset-auth", b"0")
    try:
        assert main([*command, ROOT]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and "access is denied" in said and "nothing" not in said
        with pytest.raises(ValueError, match="access is denied"):
            open_store(store)
    finally:
        _ask(server, "/moto-api/reset-auth", b"inf")


class Elsewhere(BaseHTTPRequestHandler):
    """A region that does not hold the bucket, and does not say which one does."""

    def do_HEAD(self) -> None:
        self.send_response(301)
        self.end_headers()

    do_GET = do_PUT = do_HEAD

    def log_message(self, *words: Any) -> None: ...


def test_a_bucket_of_another_region_is_refused_in_one_line(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as elsewhere:
        threading.Thread(target=elsewhere.serve_forever).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{elsewhere.server_port}")
        s3fs.S3FileSystem.clear_instance_cache()
        status = main(["prepare", "synthetic:200", "--store", ROOT])
        elsewhere.shutdown()
    said = capsys.readouterr().err
    assert status == 2 and said.count("\n") == 1 and ROOT in said and "AWS_DEFAULT_REGION" in said


def test_a_store_that_is_none_is_refused(server: Server) -> None:
    with pytest.raises(ValueError, match=r"s3://bucket/nothing/meta\.json: there is no such object"):
        open_store("s3://bucket/nothing")


@pytest.mark.slow
def test_two_writers_of_the_same_graphs_do_no_harm(server: Server) -> None:
    made: list[Any] = []
    threads = [
        threading.Thread(target=lambda: made.append(prepare(programs(), ROOT, max_nodes=200))) for _ in range(2)
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 2 and made[0] == made[1]
    local = open_store(prepare(programs(), "stores", max_nodes=200))
    for here, there in zip(local, open_store(made[0]), strict=True):
        assert all(np.array_equal(array, arrays(there)[name]) for name, array in arrays(here).items())


def test_a_lost_connection_says_what_goes_on(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Server()
    monkeypatch.setenv("AWS_ENDPOINT_URL", other.endpoint)
    s3fs.S3FileSystem.clear_instance_cache()
    other.close()
    assert main(["prepare", "synthetic:200", "--store", "s3://elsewhere/stores"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "s3://elsewhere/stores" in said
    assert said.strip().endswith("the same command goes on where this one stopped")


WRITER = """
from gst.data.synthetic import SyntheticPrograms
from gst.graphs.store import prepare
print("ready", flush=True)
print(prepare(SyntheticPrograms(num_nodes=1500, num_graphs=2, num_configs=8), "s3://bucket/stores", max_nodes=200))
"""


@pytest.mark.slow
def test_a_killed_writer_leaves_no_half_store(server: Server, tmp_path: Path) -> None:
    local = prepare(SyntheticPrograms(num_nodes=1500, num_graphs=2, num_configs=8), "stores", max_nodes=200)
    draws = random.Random(0)
    server.latency = 0.05
    try:
        for _ in range(3):
            server.requests.clear()
            process = subprocess.Popen([sys.executable, "-c", WRITER], stdout=subprocess.PIPE, env=os.environ.copy())
            assert process.stdout is not None
            process.stdout.readline()
            wanted = draws.randrange(12)
            while server.requests["PUT"] < wanted and process.poll() is None:
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
            process.wait()
            if process.returncode == -signal.SIGKILL:
                assert not any(key.endswith("meta.json") for key in keys()) or len(keys()) > 12
    finally:
        server.latency = 0.0
    done = subprocess.run([sys.executable, "-c", WRITER], capture_output=True, text=True, check=True)
    far = done.stdout.split()[-1]
    for here, there in zip(open_store(local), open_store(far), strict=True):
        assert all(np.array_equal(array, arrays(there)[name]) for name, array in arrays(here).items())
    assert not list((tmp_path / "cache/gst/stores").rglob("*.bin"))  # nothing of it is left on this disk


@pytest.mark.e2e
@pytest.mark.slow
def test_commands_take_addresses_from_files_to_a_ranking(server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    for i, graph in enumerate(programs(800, num_configs=20)):
        write_npz(graph, f"files/program-{i}.npz")
        client().upload_file(f"files/program-{i}.npz", "bucket", f"files/program-{i}.npz")
    example = Path(__file__).parents[2] / "experiments/configs/giant_synthetic.yaml"
    results = {}
    for name, root in (("here", "."), ("there", "s3://bucket")):
        checkpoints = f"{name}/checkpoints"
        command = (
            f"fit --config {example} --data.source gst.data.TpuGraphs --data.source.files [{root}/files/*.npz] "
            f"--data.store {root}/stores --data.max_nodes 200 --data.num_valid 4 --data.num_test 4 "
            "--trainer.max_epochs 2 --trainer.logger false --trainer.enable_progress_bar false "
            f"--trainer.callbacks.dirpath {checkpoints} --trainer.default_root_dir {name} --json {name}.json"
        )
        done = subprocess.run([sys.executable, "-m", "gst.cli", *command.split()], env=os.environ.copy())
        assert done.returncode == 0
        results[name] = json.loads(Path(f"{name}.json").read_text())
    metrics = [
        {key: each["metrics"][key] for key in ("train/loss", "val/tau") if key in each["metrics"]}
        for each in results.values()
    ]
    assert metrics[0] == metrics[1] and len(metrics[0]) == 2
    client().upload_file("there/checkpoints/last.ckpt", "bucket", "run/checkpoints/last.ckpt")
    capfd.readouterr()
    for checkpoint, file in (
        ("there/checkpoints/last.ckpt", "files/program-0.npz"),
        ("s3://bucket/run/checkpoints/last.ckpt", "s3://bucket/files/program-0.npz"),
    ):
        assert main(["rank", checkpoint, file, "--top", "3"]) == 0
    first, second = capfd.readouterr().out.strip().split("config  score (lower = faster)")[1:]
    assert first.strip() == second.strip()
