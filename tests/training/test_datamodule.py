"""Parts of a dataset under Lightning: held out of one source, or from sources of their own, as published."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gst.cli import main
from gst.data import TpuGraphs, TpuGraphsCollection
from gst.data.loader import Selection
from gst.graphs.graph import Graph
from gst.graphs.segments import segment
from gst.training import SegmentDataModule
from gst.training.datamodule import TEST, TRAIN, VALID, _check_scorable

FIXTURES = Path(__file__).parents[1] / "fixtures"

ALEXNET = FIXTURES / "alexnet_small.npz"
CONFIG = Path(__file__).parents[2] / "experiments" / "configs" / "layout_xla_random.yaml"
COLLECTION = Path("layout/xla/random")


class Narrow(TpuGraphs):
    """The files without the last column of node features."""

    def __iter__(self) -> Iterator[Graph]:
        return (replace(graph, node_features=graph.node_features[:, :-1]) for graph in super().__iter__())

    def fingerprint(self) -> str:
        return f"narrow {super().fingerprint()}"


@pytest.fixture(autouse=True)
def collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small collection below the directory of the test: 60, 40 and 20 rows, those of the test withheld."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_SILENT", "true")
    arrays = dict(np.load(ALEXNET))
    for part, rows in (("train", slice(0, 60)), ("valid", slice(60, 100)), ("test", slice(100, 120))):
        runtimes = arrays["config_runtime"][rows]
        changed = {
            "node_config_feat": arrays["node_config_feat"][rows],
            "config_runtime": np.zeros_like(runtimes) if part == "test" else runtimes,
        }
        (COLLECTION / part).mkdir(parents=True)
        np.savez(COLLECTION / part / f"{part}.npz", **arrays | changed)


def part(name: Any, **options: Any) -> TpuGraphsCollection:
    return TpuGraphsCollection(".", str(COLLECTION), name, merge=False, **options)


def module(**sources: Any) -> SegmentDataModule:
    return SegmentDataModule(part("train"), "stores", 100, num_valid=7, num_test=5, **sources)


def sizes(data: SegmentDataModule) -> dict[int, list[tuple[str, int]]]:
    return {number: [(g.name, len(configs)) for g, configs in chosen] for number, chosen in data.parts.items()}


def test_a_part_with_a_source_is_all_of_it_and_the_others_are_held_out() -> None:
    def parts(**sources: Any) -> dict[int, list[tuple[str, int]]]:
        data = module(**sources)
        data.setup("fit")
        data.setup("predict")
        return sizes(data)

    valid, test = part("valid"), part("test")
    one = parts()
    assert one == {TRAIN: [("train", 48)], VALID: [("train", 7)], TEST: [("train", 5)]}
    three = parts(valid_source=valid, test_source=test)
    assert three == {TRAIN: [("train", 60)], VALID: [("valid", 40)], TEST: [("test", 20)]}
    assert parts(valid_source=valid) == {TRAIN: [("train", 55)], VALID: [("valid", 40)], TEST: [("train", 5)]}
    assert parts(test_source=test) == {TRAIN: [("train", 53)], VALID: [("train", 7)], TEST: [("test", 20)]}


@pytest.mark.parametrize(
    ("stage", "needed"), [("fit", {"train", "valid"}), ("validate", {"valid"}), ("predict", {"test"})]
)
def test_only_the_parts_that_a_command_needs_have_to_be_there(stage: str, needed: set[str]) -> None:
    for name in {"train", "valid", "test"} - needed:
        shutil.rmtree(COLLECTION / name)
    data = module(valid_source=part("valid"), test_source=part("test"))
    data.setup(stage)
    assert {name for (chosen,) in sizes(data).values() for name in chosen[:1]} == needed
    assert bool(data.digest) == ("train" in needed)


def test_placeholders_are_ranked_and_not_scored() -> None:
    data = module(valid_source=part("test"), test_source=part("test"))
    data.setup("predict")
    for stage in ("test", "validate", "fit"):
        with pytest.raises(
            ValueError, match="graph 'test' has 0 for every target, and so have all others: placeholders"
        ):
            data.setup(stage)


def selections(*targets: list[float]) -> list[Selection]:
    graphs = [
        segment(
            Graph(np.ones((2, 1), np.float32), np.zeros((2, 0), np.int64), targets=np.array(each), name=str(number))
        )
        for number, each in enumerate(targets)
    ]
    return [(graph, torch.arange(graph.num_configs)) for graph in graphs]


def test_zeros_of_one_graph_may_be_true_and_zeros_of_all_are_placeholders() -> None:
    _check_scorable(selections([0.0, 0.0], [1.0, 2.0]))
    _check_scorable(selections([0.0], [0.0]))  # a class, say
    with pytest.raises(ValueError, match="graph '0' has 0 for every target, and so have all others: placeholders"):
        _check_scorable(selections([0.0, 0.0], [0.0, 0.0, 0.0]))


def test_features_of_one_part_alone_are_refused() -> None:
    unet = FIXTURES / "hlo" / "unet_3d_part.npz"
    data = SegmentDataModule(Narrow([str(unet)]), "stores", valid_source=TpuGraphs([str(unet)]), num_test=1)
    with pytest.raises(ValueError, match=r"140 columns of node_features .* give valid_source the settings of source"):
        data.setup("fit")


# Through the commands ------------------------------------------------------------------------------


def command(verb: str, root: str, *more: str) -> list[str]:
    roots = [f"--data.{name}.init_args.root={root}" for name in ("source", "valid_source", "test_source")]
    return [verb, "--config", str(CONFIG), *roots, "--trainer.enable_progress_bar=false", "--data.max_nodes=100", *more]


def last_error(capsys: pytest.CaptureFixture[str]) -> str:
    lines = capsys.readouterr().err.strip().splitlines()
    assert len([line for line in lines if line.startswith("gst: error: ")]) == 1 and lines[-1].startswith("gst: error:")
    return lines[-1]


@pytest.mark.e2e
def test_the_published_parts_by_commands_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Training keeps a table of the train part; the other parts are evaluated where that part is no more."""
    table = "--model.table=true"
    assert main(command("fit", ".", table, "--trainer.max_epochs=1", "--trainer.limit_train_batches=2")) == 0
    shutil.rmtree(COLLECTION / "train")
    best = "--ckpt_path=runs/layout_xla_random/checkpoints/best.ckpt"
    assert main(command("validate", ".", table, best)) == 0
    assert main(command("predict", ".", table, best, "--predictions.path=p.csv")) == 0
    with Path("p.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert [(row["graph"], row["config"]) for row in rows] == [("test", str(i)) for i in range(20)]
    assert {row["target"] for row in rows} == {""}  # placeholders
    assert len({row["score"] for row in rows}) > 10
    capsys.readouterr()
    assert main(command("test", ".", table, best)) == 2
    assert "graph 'test' has 0 for every target, and so have all others: placeholders" in last_error(capsys)


@pytest.mark.e2e
def test_predict_and_rank_number_configurations_as_the_file_does() -> None:
    arrays = dict(np.load(ALEXNET))
    different = np.unique(arrays["node_config_feat"], axis=0, return_index=True)[1][:12]
    chosen = different[np.random.default_rng(0).integers(12, size=60)]  # each about five times
    arrays |= {"node_config_feat": arrays["node_config_feat"][chosen], "config_runtime": 1000 + np.arange(60)}
    np.savez("repeats.npz", **arrays)
    flags = ["--data.source=gst.data.TpuGraphs", "--data.source.init_args.files=[repeats.npz]", "--data.num_test=5",
             "--data.valid_source=null", "--data.test_source=null", "--data.num_valid=3"]  # fmt: skip
    assert main(command("fit", ".", "--trainer.max_epochs=1", *flags)) == 0
    best = "runs/layout_xla_random/checkpoints/best.ckpt"
    assert main(command("predict", ".", *flags, f"--ckpt_path={best}", "--predictions.path=p.csv")) == 0
    assert main(["rank", best, "repeats.npz", "--out", "r.csv"]) == 0
    with Path("p.csv").open() as predicted, Path("r.csv").open() as ranked:
        ours, theirs = list(csv.DictReader(predicted)), list(csv.DictReader(ranked))
    scores = {int(row["config"]): float(row["score"]) for row in theirs}
    held_out = {int(row["config"]): float(row["score"]) for row in ours}
    assert len(scores) == 60 and len(held_out) == len(ours)
    assert len({chosen[number] for number in held_out}) == 5  # whole groups of repeats
    assert set(held_out) == {number for number in range(60) if chosen[number] in {chosen[each] for each in held_out}}
    assert [held_out[number] for number in held_out] == pytest.approx([scores[number] for number in held_out], rel=1e-4)
    assert {int(row["config"]): float(row["target"]) for row in ours} == {each: 1000.0 + each for each in held_out}
