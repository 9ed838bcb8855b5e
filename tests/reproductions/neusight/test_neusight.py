"""Reader of NeuSight: operators, layers and edges of a made dataset, damage in one line, and the archive itself."""

from __future__ import annotations

import json
import math
import tarfile
from collections.abc import Callable
from pathlib import Path

import neusight_made
import numpy as np
import pytest

from experiments.reproductions.neusight.dataset import parse_machine, parse_operations, read_neusight
from experiments.reproductions.neusight.graphs import NeuSightTimes
from gst.cli import main
from tests.files import ROOT

ARCHIVE = ROOT.parent / "shared" / "data" / "neusight.tar.xz"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return neusight_made.write(tmp_path / "made")


def test_a_graph_has_its_operations_edges_and_times(data: Path) -> None:
    dataset = read_neusight(data)
    assert sorted(dataset.machines) == sorted(neusight_made.MACHINES) and len(dataset.cases) == 8
    case = next(each for each in dataset.cases if each.machine == "NVIDIA_L4" and each.batch == 4)
    assert (case.model, case.mode, case.length, case.layers) == ("tiny", "inf", 512, 24)
    assert [each.kind for each in case.operations] == ["ids", "Embedding", "Linear", "size", "add", "Linear", "output"]
    assert [each.inputs for each in case.operations] == [(), (0,), (1,), (2,), (2, 1), (4,), (5,)]
    assert case.operations[4].input_shapes == ((4, 512, 1024), (4, 512, 1024))
    assert case.operations[3].output_shape == (1,)
    whole = sum(
        repeats * each.forward_ms
        for repeats, each in zip(case.repeats(), case.operations, strict=True)
        if each.kind != "size"
    )
    assert case.repeats() == [1, 1, 24, 24, 24, 1, 1] and math.isclose(whole, case.time_ms)


def test_an_archive_reads_like_its_folder(data: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "made.tar.xz", "w:xz") as archive:
        archive.add(data, ".")
    assert read_neusight(tmp_path / "made.tar.xz") == read_neusight(data)


def replaced(old: str, new: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "label/Tesla_T4/tiny-inf-512-4.csv"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (replaced("{wte: None}", "{nobody: None}"), r"tiny-inf-512-4\.csv, line 4: input 'nobody' is no earlier"),
        (replaced("fw_latency", "latency"), r"tiny-inf-512-4\.csv: .*column fw_latency is missing"),
        (replaced("0.007", "-1"), r"line 5, fw_latency: is '-1', want a number"),
        (replaced('"(1,)"', '"(1, x)"'), r"line 5, output_shape: .* is no list of shapes"),
        (replaced(",size\n", ",fc\n"), r"line 5: operation 'fc' occurs twice"),
        (lambda folder: (folder / "data/device_configs/Tesla_T4.json").unlink(), r"Tesla_T4\.json; add its rates"),
        (lambda folder: (folder / "label/Tesla_T4/tiny-inf-512-4.json").write_text("[]"), r"holds \[\], want"),
        (lambda folder: (folder / "label/Tesla_T4/tiny.json").write_text("{}"), r"tiny\.json: the name is not MODEL"),
    ],
)  # fmt: skip
def test_damage_is_named_in_one_line(data: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(data)
    with pytest.raises(ValueError, match=message) as error:
        read_neusight(data)
    assert "\n" not in str(error.value)


def test_what_is_no_dataset_is_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such file"):
        read_neusight(tmp_path / "nothing.tar.xz")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"holds no label/MACHINE"):
        read_neusight(tmp_path / "empty")
    with tarfile.open(tmp_path / "made.tar.xz", "w:xz") as archive:
        archive.add(data, ".")
    whole = (tmp_path / "made.tar.xz").read_bytes()
    (tmp_path / "cut.tar.xz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"cut\.tar\.xz: not a readable archive"):
        read_neusight(tmp_path / "cut.tar.xz")


def test_a_machine_without_rates_is_refused() -> None:
    rates = {"SingleFLOPs": 1, "Mem_Bw": 1, "Num_Sm": 1, "Freq": 1, "L2Cache": 1, "Dev_Mem": 1}
    for name in rates:
        with pytest.raises(ValueError, match=rf"here, {name}: is 0, want a positive rate"):
            parse_machine(json.dumps({**rates, name: 0}).encode(), "x", "here")
    with pytest.raises(ValueError, match="here, Mem_Bw: is None"):
        parse_machine(b'{"SingleFLOPs": 1}', "x", "here")
    with pytest.raises(ValueError, match="holds no operations"):
        parse_operations(neusight_made.COLUMNS.encode() + b"\n", "here")


@pytest.mark.slow
@pytest.mark.skipif(not ARCHIVE.is_file(), reason="the archive of NeuSight is not here")
def test_measured_operators_of_the_archive_add_up_to_whole_models() -> None:
    dataset = read_neusight(ARCHIVE)
    judged = [
        each for each in dataset.cases
        if each.machine == "NVIDIA_H100_80GB_HBM3" and each.mode == "inf" and each.operations
    ]  # fmt: skip
    assert len(dataset.cases) == 149 and len(judged) == 10
    for case in judged:
        whole = sum(n * each.forward_ms for n, each in zip(case.repeats(), case.operations, strict=True))
        assert abs(whole / case.time_ms - 1) < 0.12, case.model


def test_prepare_cuts_one_graph_for_each_batch(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["prepare", "experiments.reproductions.neusight.graphs:NeuSightTimes", "--store", str(tmp_path)]
    assert main([*command, "--arg", f"path={data}", "--arg", "mode=inf"]) == 0
    assert ": 2 graphs, " in capsys.readouterr().out
    for arguments, message in (
        (["path=nowhere.tar.xz"], "there is no such file"),
        ([f"path={data}", "mode=infer"], "mode is 'infer'; choose all, inf, train"),
    ):
        assert main([*command, *(f"--arg={each}" for each in arguments)]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1


def test_machines_are_configurations_of_every_operator(data: Path) -> None:
    graphs = list(NeuSightTimes(str(data)))
    assert [(graph.name, graph.num_configs) for graph in graphs] == [("tiny/inf/512/4", 4), ("tiny/inf/512/8", 4)]
    linear = graphs[0].config_features[:, 1]  # all configurations: microseconds of the products of 24 layers
    flops = 24 * 2.0 * 4 * 512 * 1024 * 1024
    rates = sorted(gigaflops * 1e9 for gigaflops, *_ in neusight_made.MACHINES.values())
    np.testing.assert_allclose(sorted(np.exp(linear[:, 0])), sorted(1e6 * flops / rate for rate in rates), rtol=1e-3)
