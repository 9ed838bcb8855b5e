"""Every reader of a file: what writes a genuine small one, and what reads it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.reproductions.elf import call_graph, node_features, open_binary
from experiments.reproductions.elf.calls import language
from experiments.reproductions.elf.files import owners
from experiments.reproductions.go.pretraining import load_policy, save_policy
from experiments.reproductions.public_problems.cost_graphs import CostGraph, read_cost_graph, read_split
from experiments.reproductions.public_problems.published import PublishedObjective
from gst.cli import main
from gst.cost import CostModel
from gst.data import MalNet, TpuGraphsCollection, read_hlo
from gst.data.malnet import read_edge_list
from gst.data.tpugraphs import read
from gst.execution.measure import Log
from gst.graphs.index import checksum_of
from gst.graphs.segments import ARRAYS
from gst.graphs.store import open_store, prepare, verify
from gst.lowering.plan import Plan
from gst.machine.devices import Device
from gst.placement.measured_plans import MeasuredPlans
from gst.placement.policies.go import GO
from gst.placement.task import load_plan, save_plan
from gst.programs import Program, Step, capture
from gst.programs.program import FILES, _checksum
from gst.training.cli import run
from gst.training.rank import load
from gst.util.arrays import as_bytes, shortened, view
from gst.util.untrusted import plain
from tests.files import changed_records
from tests.reference import random_graph

FIXTURES = Path(__file__).parents[1] / "fixtures"
CONFIGS = Path(__file__).parents[2] / "experiments" / "configs"
CPUS = tuple(Device(f"cpu:{number}", "cpu", (), 1, "host", "test") for number in range(2))


@dataclass(frozen=True)
class Reader:
    """Args:
    write: write a genuine small file, or several, into an empty folder; returns the path to read.
    read: read that path, and touch all of what comes out.
    seal: renew what vouches for the others, such as checksums, after a file was damaged: whoever makes a bad file
        on purpose does so too.
    untouched: names of files that are not damaged.
    share: of the cases that others get, where reading takes long.
    """

    write: Callable[[Path], Path]
    read: Callable[[Path], object]
    seal: Callable[[Path], None] = lambda folder: None
    untouched: tuple[str, ...] = ()
    share: float = 1.0


def _copied(*names: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        for name in names:
            shutil.copy(FIXTURES / name, folder)
        return folder / Path(names[0]).name

    return write


def _text(name: str, text: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


def _named(read: Callable[[Path], object]) -> Callable[[Path], object]:
    """For readers whose message is a reason only, since their caller keeps it under the name of the file."""

    def named(path: Path) -> object:
        try:
            return read(path)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    return named


# Graphs ----------------------------------------------------------------------------------------------


@cache
def _cost_graph() -> CostGraph:
    return read_cost_graph(FIXTURES / "cost_graphs/bert24_inference.json")


def _costs(path: Path) -> object:
    graph = read_cost_graph(path)
    return graph.devices[:9], graph.costs() if graph.num_cores + graph.num_accelerators < 100 else None


def _write_split(folder: Path) -> Path:
    ids = _cost_graph().ids.tolist()
    split = {"cpus": [{"nodes": ids[:9] + ids[14:]}], "fpgas": [{"nodes": ids[9:11]}, {"nodes": ids[11:14]}]}
    return _text("split.json", json.dumps(split))(folder)


def _write_indices(folder: Path) -> Path:
    part = folder / "layout/xla/default/valid"
    part.mkdir(parents=True)
    shutil.copy(FIXTURES / "hlo/unet_3d_part.npz", part / "unet.npz")
    return _text("indices.json", json.dumps({"unet": [0, 2, 1], "another": [5]}))(folder)


def _indexed(path: Path) -> object:
    return list(TpuGraphsCollection(str(path.parent), "layout/xla/default", "valid", str(path), merge=False))


def _binary(path: Path) -> object:
    binary = open_binary(path)
    calls = call_graph(binary)
    return node_features(calls), language(binary), binary.needed()


def _write_packages(folder: Path) -> Path:
    _text("info/tool:amd64.list", "/.\n/usr\n/usr/bin\n/usr/bin/tool\n")(folder)
    _text("info/other.list", "/usr/bin/other\n")(folder)
    status = "Package: tool\nSource: tools (1.2)\nSection: main/utils\n\nPackage: other\nDescription: a\n b: c\n"
    return _text("status", status)(folder).parent


def _packages(dpkg: Path) -> object:
    return owners([Path("/usr/bin/tool"), Path("/usr/bin/other")], dpkg)


def _write_malnet(folder: Path) -> Path:
    for name in ("adware/first/a", "trojan/second/b"):
        _text(f"{name}.edgelist", "# caller callee\n1 2\n2 3\n")(folder)
    return _text("train.txt", "adware/first/a\ntrojan/second/b\n")(folder)


def _malnet(listing: Path) -> object:
    return list(MalNet(str(listing.parent), "train", str(listing.parent)))


def _write_store(folder: Path) -> Path:
    graphs = [random_graph(seed, 30, num_configurable=4, channels=18) for seed in range(2)]
    store = prepare(iter(graphs), folder / "stores", max_nodes=8)
    shutil.move(store, folder / "store")
    shutil.rmtree(folder / "stores")
    return folder / "store"


def _store(path: Path) -> object:
    found = open_store(path)
    return [[np.asarray(getattr(graph, name)).sum() for name in ARRAYS] for graph in found]


def _seal_store(folder: Path) -> None:
    """Renew all checksums, as far as the store can still be understood."""
    with suppress(ValueError, LookupError, TypeError, AttributeError, OSError, RecursionError, OverflowError):
        files = {path.stem: np.frombuffer(path.read_bytes(), np.uint8) for path in folder.glob("*.bin")}
        with changed_records(folder) as records:
            for record in records:
                for key, entry in record["arrays"].items():
                    entry["checksum"] = shortened(hashlib.sha256(as_bytes(view(files[key], entry))))
        meta = json.loads((folder / "meta.json").read_text())
        meta["files"] |= {path.name: path.stat().st_size for path in folder.glob("*.bin")}
        (folder / "meta.json").write_text(json.dumps(meta | {"checksum": checksum_of(meta)}))


# Programs, plans, measurements ---------------------------------------------------------------------


@cache
def program() -> Program:
    """A small one with a constant, several outputs and unusual arguments."""
    mask = torch.tensor([True, False, True])

    def function(x: torch.Tensor) -> dict[str, Any]:
        hidden = x.masked_fill(mask, float("-inf"))
        return {"hidden": hidden.to(torch.float64), "parts": x.split([1, 2]), "number": 3, "nothing": None}

    return capture(Step("small", function, (torch.tensor([1.0, 2.0, 3.0]),)))


def _write_program(folder: Path) -> Path:
    program().save(folder / "program")
    return folder / "program"


def _seal_program(folder: Path) -> None:
    sums = {name: _checksum(folder / name) for name in FILES if (folder / name).exists()}
    (folder / "checksums.json").write_text(json.dumps(sums))


def _program(path: Path) -> object:
    loaded = Program.load(path)
    return loaded.key, loaded.output_bytes, loaded.num_groups


def _write_plan(folder: Path) -> Path:
    nodes = program().num_nodes
    plan = Plan(("cpu:0", "cpu:1"), np.arange(nodes) % 2, np.arange(nodes), np.full(nodes, -1))
    save_plan(plan, program(), folder / "plan.json")
    return folder / "plan.json"


def _write_measured(folder: Path) -> Path:
    shutil.copy(FIXTURES / "measured/rnnlm/graph.npz", folder)
    lines = (FIXTURES / "measured/rnnlm/measurements.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "measurements.jsonl").write_bytes(b"".join(lines[:4]))
    return folder


def _write_log(folder: Path) -> Path:
    log = Log(folder / "log.jsonl")
    for number in range(3):
        log.append({"number": number, "plan": {"devices": ["cpu:0"], "placement": [0, 1]}, "ms": 1.5})
    return log.path


# Tensors -------------------------------------------------------------------------------------------


def _write_model(folder: Path) -> Path:
    model = CostModel(channels=4, num_layers=1, max_nodes=16)
    graph = random_graph(0, 12, num_configs=3)
    object.__setattr__(graph, "targets", np.array([1.0, 2.0, 3.0]))
    model.fit([graph], epochs=1)
    model.save(folder / "model.pt")
    return folder / "model.pt"


def _write_policy(folder: Path) -> Path:
    save_policy(GO(channels=8), folder / "policy.pt")
    return folder / "policy.pt"


def _write_checkpoint(folder: Path) -> Path:
    with in_folder(folder), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        data = f"--data.source.init_args.files=[{FIXTURES}/tile/*.npz]"
        status = main(
            ["fit", "--config", str(CONFIGS / "tile.yaml"), data, "--data.num_valid=1", "--data.num_test=1",
             "--trainer.max_steps=1", "--trainer.logger=false", "--trainer.callbacks=[]",
             "--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false",
             "--trainer.limit_val_batches=0", "--trainer.enable_checkpointing=true"]
        )  # fmt: skip
    assert status == 0, "the genuine checkpoint was not written"
    (written,) = folder.rglob("*.ckpt")
    content = written.read_bytes()
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "model.ckpt").write_bytes(content)
    return folder / "model.ckpt"


def _write_config(folder: Path) -> Path:
    shutil.copy(CONFIGS / "tile.yaml", folder)
    return folder / "tile.yaml"


def _config(path: Path) -> object:
    """Parsed in full, as for a training; nothing is built of it. The command puts its errors on one line."""
    with redirect_stdout(StringIO()) as printed, redirect_stderr(StringIO()):
        try:
            run(["fit", "--config", str(path), "--print_config"])
        except SystemExit as stopped:
            if stopped.code:
                raise
        except ValueError as error:
            raise ValueError(f"{path}: {plain(' '.join(str(error).split()), 500)}") from error
    return printed.getvalue()


@contextmanager
def in_folder(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


READERS = {
    "tpugraphs layout": Reader(_copied("hlo/unet_3d_part.npz"), read),
    "tpugraphs tile": Reader(_copied("tile/copy.24_715d6c5d784f9262.npz"), read),
    "tpugraphs list": Reader(_write_indices, _indexed, untouched=("unet.npz",)),
    "hlo protobuf": Reader(_copied("hlo/unet_3d_part.pb"), read_hlo),
    "cost graph": Reader(_copied("cost_graphs/bert24_inference.json"), _costs),
    "split": Reader(_write_split, lambda path: PublishedObjective(_cost_graph())([read_split(path, _cost_graph())])),
    "elf x86-64": Reader(_copied("elf/calls_x86_64.so"), _named(_binary)),
    "debian packages": Reader(_write_packages, _packages),
    "edge list": Reader(_text("a.edgelist", "# caller callee\n1 2\n2 3\n\n3 10\n"), read_edge_list),
    "malnet": Reader(_write_malnet, _malnet),
    "store": Reader(_write_store, _store),
    "store verified": Reader(_write_store, verify),
    "store sealed": Reader(_write_store, verify, _seal_store),
    "program": Reader(_write_program, _program, _seal_program, ("checksums.json",)),
    "program unsealed": Reader(_write_program, _program),
    "plan": Reader(_write_plan, lambda path: load_plan(path, program(), CPUS)),
    "plan alone": Reader(_write_plan, lambda path: Plan.load(path).key),
    "log": Reader(_write_log, lambda path: Log(path).read()),
    "measured plans": Reader(_write_measured, lambda path: list(MeasuredPlans([str(path)]))),
    "cost model": Reader(_write_model, CostModel.load),
    "policy": Reader(_write_policy, load_policy),
    "checkpoint": Reader(_write_checkpoint, load, share=0.1),
    "configuration": Reader(_write_config, _config, share=0.02),
}
