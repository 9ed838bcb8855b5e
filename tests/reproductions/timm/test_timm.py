"""timm step times: kernels of a program, tables, the model, and its commands."""

import json

import numpy as np
import pytest

from experiments.reproductions.graphnet.reader import operator_graph, read_sources
from experiments.reproductions.timm import programs
from experiments.reproductions.timm.__main__ import main
from experiments.reproductions.timm.model import efficiencies, folds_of, predict, save, scores
from experiments.reproductions.timm.networks import NetworkSettings, examples_of, train_network
from experiments.reproductions.timm.programs import load_rows
from experiments.reproductions.timm.step_time.kernels import CLASSES, COLUMNS, kernels_of
from experiments.reproductions.timm.step_time.machines import machine_of
from experiments.reproductions.timm.step_time.model import Model, load, network_times
from experiments.reproductions.timm.tables import family, read_tables, setting_of
from tests.files import FIXTURES

FIXTURE = FIXTURES / "graphnet"
QUICK = NetworkSettings(epochs=1, hidden=8)
HEADER = "model,infer_img_size,infer_batch_size,infer_step_time,param_count\n"
TABLE = "benchmark-infer-{}-nchw-pt240-cu124-{}.csv"


def column(kernels, name):
    return kernels.columns[:, COLUMNS.index(name)]


@pytest.fixture(scope="module")
def operations():
    (source,) = read_sources(FIXTURE)
    return operator_graph(source)


@pytest.fixture
def data(tmp_path):
    """A folder of tables and of one program, on a machine that is in the checkpoint and one that is not."""
    rows = "small_net,32,64,1.5,\nsmall_net,64,64,,\nother,32,64,2.0,\n"
    for precision, machine in (("amp", "rtx3090"), ("fp32", "rtx5090")):
        (tmp_path / TABLE.format(precision, machine)).write_text(HEADER + rows)
    (tmp_path / "timm").mkdir()
    for file in (FIXTURE / "small_net.tiny").iterdir():
        (tmp_path / "timm" / "small_net.tiny").mkdir(exist_ok=True)
        (tmp_path / "timm" / "small_net.tiny" / file.name).write_text(file.read_text())
    return tmp_path


def test_kernels_by_hand(operations):
    kernels = kernels_of(operations, "fp32", False)
    assert [CLASSES[kind] for kind in kernels.kind[:4]] == ["conv stem", "batch norm", "pointwise", "reduction"]
    assert column(kernels, "flops")[0] == 2 * 16 * 16 * 16 * 27
    assert column(kernels, "bytes read")[0] == 4 * 3 * 32 * 32
    assert column(kernels, "bytes of parameters")[0] == 4 * 16 * 27
    assert column(kernels, "bytes written")[0] == 4 * 16 * 16 * 16


def test_compiled_kernels_read_and_write_less_and_multiply_the_same(operations):
    eager, compiled = (kernels_of(operations, "fp32", is_compiled) for is_compiled in (False, True))
    assert len(compiled.kind) < len(eager.kind)
    for name in ("bytes read", "bytes written"):
        assert column(compiled, name).sum() < column(eager, name).sum()
    assert column(compiled, "flops").max() == column(eager, "flops").max()
    fused = compiled.kind == CLASSES.index("fused reduction")  # batch norm, relu and mean
    assert column(compiled, "bytes written")[fused][0] == 4 * 16


def test_halves_move_half_and_autocast_adds_casts(operations):
    single, half, amp = (kernels_of(operations, each, False) for each in ("fp32", "half", "amp"))
    assert column(half, "bytes read").sum() == column(single, "bytes read").sum() / 2
    casts = (amp.kind == CLASSES.index("cast")).sum()
    assert casts >= 3  # the image and two weights
    assert (column(amp, "is half") > 0).sum() == 2
    with pytest.raises(ValueError, match="precision is 'int8'"):
        kernels_of(operations, "int8", False)


def test_settings_in_names_of_tables():
    setting = setting_of("benchmark-infer-amp_bf16-nchw-pt291-cu130-pro6000maxq-dynamo.csv")
    assert setting == ("pro6000maxq", "infer", "amp", False, 291, True)
    assert setting_of("benchmark-train-fp32-nhwc-pt221-cpu-i9_10940x.csv").machine == "cpu-i9_10940x"
    assert setting_of("benchmark-infer-amp-nchw-pt291-cu128-4090.csv").machine == "rtx4090"
    assert family("tf_efficientnet_b0") == family("efficientnet_b7") != family("efficientnetv2_s")
    with pytest.raises(ValueError, match=r"notes\.csv: want benchmark-"):
        setting_of("notes.csv")


@pytest.mark.parametrize("row, reason", [
    ("small_net,32,64,fast,1\n", "line 2: .*fast"), ("small_net,0,64,1,1\n", "want positive numbers"),
])  # fmt: skip
def test_bad_rows_are_named(tmp_path, row, reason):
    (tmp_path / TABLE.format("amp", "rtx3090")).write_text(HEADER + row)
    with pytest.raises(ValueError, match=reason):
        read_tables(tmp_path)


def test_machines_without_rates_are_named(data):
    (data / TABLE.format("amp", "rtx9999")).write_text(HEADER + "small_net,32,64,1.5,\n")
    rows, missing = load_rows(data)
    assert {each.setting.machine for each in rows.measurements} == {"rtx3090", "rtx5090"}
    assert any("rtx9999 has no rates" in reason for reason in missing)
    for machine, precision in (("rtx3090", "amp"), ("rtx5090", "fp32")):
        (data / TABLE.format(precision, machine)).unlink()
    with pytest.raises(ValueError, match="rtx9999 has no rates"):
        load_rows(data)
    assert machine_of("RTX_4090") == machine_of("rtx4090")


def test_a_table_that_merged_branches_is_left_out(data, monkeypatch):
    monkeypatch.setattr(programs, "ROUNDED", 0.0)  # the sample has 592 parameters
    table = data / TABLE.format("amp", "rtx3090")
    for stated, count in ((592e-6, 1), (575e-6, 0), (610e-6, 1)):
        table.write_text(HEADER + f"small_net,32,64,1.5,{stated}\n")
        rows, missing = load_rows(data)
        assert sum(each.setting.machine == "rtx3090" for each in rows.measurements) == count
        assert missing.get("branches merged before it was timed", 0) == 1 - count


def test_efficiencies_are_recovered():
    random = np.random.default_rng(0)
    terms, weights = random.uniform(0.1, 2, (400, 6)), np.array([1.2, 3.0, 0.0, 2.0, 1.5, 5.0])
    assert efficiencies(terms, np.log(terms @ weights)) == pytest.approx(weights, abs=0.02)


def test_groups_are_in_one_fold():
    groups = np.repeat(np.arange(20), 3)
    folds = folds_of(groups, 5, 0)
    assert all(len(set(folds[groups == each])) == 1 for each in range(20))
    assert np.bincount(folds).tolist() == [12] * 5


def test_a_cache_holds_the_same_rows(data, tmp_path):
    cache = tmp_path / "cache" / "rows.npz"
    rows, missing = load_rows(data, cache)
    again, same = load_rows(data, cache)
    assert again.measurements == rows.measurements
    assert all(np.array_equal(*pair) for pair in zip(rows[1:-1], again[1:-1], strict=True))
    for one, other in zip(rows.kernels, again.kernels, strict=True):
        assert all(np.array_equal(*pair) for pair in zip(one, other, strict=True))
    assert missing == same
    assert missing["no source"] == 2


def test_a_checkpoint_predicts_as_the_model(data, tmp_path):
    rows, _ = load_rows(data)
    setting = rows.measurements[0].setting
    weights = np.ones((1, rows.terms.shape[1]), np.float32).astype(np.float64)
    network = train_network(rows, examples_of(rows), [each.setting for each in rows.measurements], 0, QUICK)
    model = Model([setting], weights, {"": weights[0]}, [], [network], [], {"gpu infer eager": 0.5, "new machine": 1.0})
    save(model, tmp_path / "model.pt")
    for first, second in zip(predict(model, rows), predict(load(tmp_path / "model.pt"), rows), strict=True):
        assert first == pytest.approx(second, abs=1e-5)
    assert predict(model, rows)[1].tolist() == [0.5, 1.0]
    assert scores(rows, rows.log_step)["median_error"] == 0
    (tmp_path / "broken.pt").write_bytes(b"none")
    with pytest.raises(ValueError, match=r"broken\.pt holds no model of step times"):
        load(tmp_path / "broken.pt")


def test_a_network_learns_the_times_that_it_was_told(data):
    rows, _ = load_rows(data)
    tables = [each.setting for each in rows.measurements]
    network = train_network(rows, examples_of(rows), tables, 0, QUICK._replace(epochs=150))
    own = {setting: [place] for place, setting in enumerate(tables)}
    times = network_times([network], rows.programs, tables, own)
    assert np.log(times.sum(1)) == pytest.approx(rows.log_step, abs=0.1)
    assert (times >= 0).all() and (times[rows.terms == 0] == 0).all()


def test_evaluate_with_the_shipped_weights(data, tmp_path, capsys):
    main(["evaluate", "--data", str(data), "--json", str(tmp_path / "scores.json")])
    result = json.loads((tmp_path / "scores.json").read_text())
    assert set(result["machines"]) == {"rtx3090", "rtx5090"}
    for each in (result, *result["machines"].values()):
        assert each["median_error"] >= 0 and each["p90_error"] >= 0 and 0 <= each["coverage"] <= 1
        assert each["families"] == 1
    assert "rtx5090" in capsys.readouterr().out


def test_a_folder_without_tables_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["evaluate", "--data", str(tmp_path)])
    assert "it holds no tables" in capsys.readouterr().err
