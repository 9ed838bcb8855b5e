"""timm's step times as graphs: `gst prepare`, targets in nanoseconds, bad input."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import timm_made

from experiments.reproductions.graphnet.reader import operator_graph, read_sources
from experiments.reproductions.timm.dataset import CHANNELS, TimmStepTimes
from experiments.reproductions.timm.step_time.kernels import kernels_of
from experiments.reproductions.timm.step_time.machines import machine_of
from experiments.reproductions.timm.step_time.rows import kernel_times
from gst.cli import main
from gst.graphs.store import open_store
from tests.files import FIXTURES

SAMPLES = FIXTURES / "graphnet"
PREPARE = ["prepare", "experiments.reproductions.timm.dataset:TimmStepTimes", "--store", "stores"]
FIRST = "benchmark-infer-amp-nhwc-pt240-cu124-rtx3090.csv"


def archived(folder: Path) -> Path:
    """The made folder as the two archives of the published one."""
    made, place = timm_made.write(folder / "made"), folder / "archives"
    place.mkdir()
    with tarfile.open(place / "timm.tar.xz", "w:xz") as archive:
        for name in timm_made.TABLES:
            archive.add(made / name, name)
    with tarfile.open(place / "graphnet_timm.tar.xz", "w:xz") as archive:
        archive.add(made / "timm", "timm")
    return place


def prepared(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    path = Path("prepare.json")
    assert main([*PREPARE, *(f"--arg={each}" for each in arguments), "--json", str(path)]) == 0
    capsys.readouterr()
    return json.loads(path.read_text())


@pytest.fixture(autouse=True)
def in_own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_measurements_are_configurations_of_every_operator(tmp_path: Path) -> None:
    source = TimmStepTimes(str(timm_made.write(tmp_path / "data")))
    graphs = list(source)
    assert [graph.name for graph in graphs] == [
        f"{name.partition('_')[0]}/{name}.tiny" for name in sorted(timm_made.MODELS)
    ]
    assert len(source) == 4 and source.skipped == {"no source, or one of another size": 4}
    graph = next(each for each in graphs if each.name.startswith("beta"))
    assert graph.num_configs == 8 and graph.targets[2] == 3_000_000  # nanoseconds, whole numbers
    (sample,) = read_sources(SAMPLES)
    first = kernel_times(kernels_of(operator_graph(sample)[:1], "amp", False), 64, machine_of("rtx3090"))
    row = dict(zip(CHANNELS, graph.config_features[2, 0].tolist(), strict=True))
    assert row["log us of products"] == pytest.approx(np.log(1e3 * first[0].sum() + 1e-3), rel=1e-5)
    assert (row["is NHWC"], row["is compiled"], row["is autocast"], row["is training"]) == (1, 0, 1, 0)
    assert row["log batch"] == pytest.approx(np.log(64)) and row["launches"] == len(first[0])


def test_larger_images_and_batches_are_more_work(tmp_path: Path) -> None:
    graph = next(iter(TimmStepTimes(str(timm_made.write(tmp_path / "data")), mode="infer")))
    work = graph.config_features[:2, 0, CHANNELS.index("log us of products")]
    assert np.exp(work[1]) - 1e-3 == pytest.approx(
        8 * (np.exp(work[0]) - 1e-3), rel=1e-3
    )  # twice the batch, 4 x the area


def test_prepare_from_archives_and_a_second_time_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = archived(tmp_path)
    first = prepared(capsys, f"path={place}", "mode=infer")
    assert (first["graphs"], first["configs"]) == (4, 24) and first["skipped"] == {
        "no source, or one of another size": 3
    }
    before = {path: path.stat().st_mtime_ns for path in Path("stores").rglob("*")}
    again = prepared(capsys, f"path={place}", "mode=infer")
    assert again["store"] == first["store"]
    assert before == {path: path.stat().st_mtime_ns for path in Path("stores").rglob("*")}
    stored = {graph.name: graph for graph in open_store(Path(first["store"]))}
    assert stored["alpha/alpha_net.tiny"].targets.tolist() == [1.6e6, 3.2e6, 2e6, 4e6, 180e6, 360e6]
    assert prepared(capsys, f"path={place}", "limit=2")["graphs"] == 2


def broken(folder: Path, before: str, after: str) -> str:
    made = timm_made.write(folder / "data")
    for path in made.rglob("model.py"):
        path.write_text(path.read_text().replace(before, after))
    return str(made)


def test_sources_that_cannot_be_read_are_named_by_file_and_line(tmp_path: Path) -> None:
    source = TimmStepTimes(broken(tmp_path, "torch.conv2d", "torch.compile"))
    assert list(source) == []
    message = next(each for each in source.skipped if "model.py" in each)
    assert "line " in message and "torch.compile is not a function that may be called" in message


def test_a_truncated_archive_is_one_line_and_leaves_no_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = archived(tmp_path)
    archive = place / "graphnet_timm.tar.xz"
    archive.write_bytes(archive.read_bytes()[:-150])
    graphs = ["prepare", "experiments.reproductions.graphnet.fx_graphs:FxGraphs", "--store", "stores"]
    for arguments in ([*PREPARE, f"--arg=path={place}"], [*graphs, f"--arg=path={archive}"]):
        assert main(arguments) == 2
        said = capsys.readouterr().err
        assert "graphnet_timm.tar.xz: not a readable archive" in said and said.strip().count("\n") == 0
    assert not list(Path().glob("stores/*/meta.json"))


def test_machines_without_rates_are_left_out_by_name(tmp_path: Path) -> None:
    made = timm_made.write(tmp_path / "data")
    (made / FIRST).rename(made / FIRST.replace("rtx3090", "rtx9999"))
    source = TimmStepTimes(str(made))
    assert [graph.num_configs for graph in source] == [6] * 4
    assert source.skipped["machine rtx9999 has no rates"] == 9
    for name in list(made.glob("*.csv")):
        if "9999" not in name.name:
            name.unlink()
    with pytest.raises(ValueError, match="machine rtx9999 has no rates; add tables"):
        list(TimmStepTimes(str(made)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: path; give --arg NAME=VALUE for path, mode, limit"),
        (["path=nowhere"], "nowhere is no folder"),
        (["path=nowhere", "mode=fast"], "mode"),
    ],
)
def test_a_dataset_that_cannot_be_prepared_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*PREPARE, *(f"--arg={each}" for each in arguments)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
