"""The model of recipes: what it may not depend on, its file, and scoring circuits never seen, end to end."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.reproductions.circuits.__main__ import CHECKPOINT, LABELS, main
from experiments.reproductions.circuits.circuit import write_aiger
from experiments.reproductions.circuits.compare import BASELINES, VARIANTS, by_design, by_recipe
from experiments.reproductions.circuits.files import CircuitFile
from experiments.reproductions.circuits.labels import PROGRAM, read_labels
from experiments.reproductions.circuits.model import SynthesisModel
from experiments.reproductions.circuits.predictor import combined, load_predictor, save_predictor, train_predictor
from experiments.reproductions.circuits.recipes import SHIPPED_RECIPES, numbers, read_recipes
from experiments.reproductions.circuits.training import (
    Example,
    Schedule,
    describe,
    examples_of,
    mean_score,
    predict,
    score,
    train_ensemble,
    trajectory_loss,
)
from tests.reproductions.circuits.made_circuits import random_circuit

needs_abc = pytest.mark.skipif(
    shutil.which(PROGRAM) is None, reason="labels come from berkeley-abc: apt-get install berkeley-abc"
)
RECIPES = read_recipes(SHIPPED_RECIPES)[:12]


def made_examples(count: int = 6) -> list[Example]:
    """Circuits on which each `rewrite -z` takes 2 % and each `balance` gives 1 %, half as much on odd ones."""
    commands = numbers(RECIPES)
    steps = np.where(commands == 2, -0.02, np.where(commands == 0, 0.01, 0.0))
    examples = []
    for k in range(count):
        graph, columns = describe(random_circuit(k, num_ands=400), max_nodes=100)
        logs = np.repeat((steps / (1 + k % 2)).cumsum(1)[..., None], 2, 2)
        examples.append(Example(f"made{k}", f"made{k}", graph, columns, commands, logs))
    return examples


@pytest.mark.slow
def test_it_learns_the_order_of_recipes() -> None:
    examples = made_examples()
    for settings, estimator in (VARIANTS["GST+E, composite"], ({"sees": "statistics"}, {})):
        models = train_ensemble(examples[:4], 0, 1, Schedule(150, circuits=4), settings, estimator)
        scores = {each.name: score(predict(models, each)[:, -1, 0], each) for each in examples[4:]}
        assert (mean_score(scores)["tau"] or 0) > 0.8, settings
    for name, baseline in BASELINES.items():
        predictions = baseline(examples[:4], examples[4:], 0)
        assert min(score(predictions[each.name], each)["tau"] or 0 for each in examples[4:]) > 0.4, name


def test_a_later_command_does_not_change_what_came_before() -> None:
    each = made_examples(1)[0]
    models = train_ensemble([each, each], 0, 1, Schedule(2, circuits=2), {}, {})
    shorter = predict(models, replace(each, recipes=each.recipes[:, :7]))
    np.testing.assert_allclose(predict(models, each)[:, :7], shorter, atol=1e-6)


def test_the_loss_is_zero_for_the_labels_alone_and_sees_the_order() -> None:
    each = made_examples(1)[0]
    logs, spread = torch.from_numpy(each.logs).float()[None], torch.tensor([each.spread])
    assert trajectory_loss(logs, logs, spread, Schedule()) == 0
    shifted = trajectory_loss(logs + 0.05, logs, spread, Schedule(absolute_weight=0))
    assert shifted < 1e-8 < trajectory_loss(logs.flip(1), logs, spread, Schedule(absolute_weight=0))


def test_splits_keep_designs_and_recipes_apart() -> None:
    examples = made_examples()
    cones = [replace(each, name=f"{each.name}+3") for each in examples]
    tested = set()
    for seed in range(3):
        train, test = by_design([*examples, *cones], seed, 3)
        assert not {each.design for each in train} & {each.design for each in test}
        assert not any("+" in each.name for each in test)
        tested |= {each.name for each in test}
        train, test = by_recipe(examples, seed, 3)
        pools = [{tuple(row) for each in part for row in each.recipes.tolist()} for part in (train, test)]
        assert pools[1] and not pools[0] & pools[1]
    assert tested == {each.name for each in examples}


def test_scores_of_ties() -> None:
    each = made_examples(1)[0]
    flat = replace(each, logs=np.zeros_like(each.logs))
    assert score(np.arange(len(RECIPES)) * 0.1, flat)["tau"] is None
    assert score(np.zeros(len(RECIPES)), each)["tau"] == 0.0
    assert mean_score({"a": {"tau": None, "error": 0.1}, "b": {"tau": 0.5, "error": 0.3}}) == {"tau": 0.5, "error": 0.2}
    assert score(each.logs[:, -1, 0] + np.log(1.1), each)["error"] == pytest.approx(0.1)


def test_a_checkpoint_predicts_the_same_and_damage_is_refused(tmp_path: Path) -> None:
    examples = made_examples(2)
    predictor = train_predictor(examples, 0, 2, Schedule(2, circuits=2))
    path, each = tmp_path / "c.pt", examples[0]
    save_predictor(predictor, path, {"circuits": 2})
    np.testing.assert_array_equal(load_predictor(path).predict(each), predictor.predict(each))
    shorter = replace(each, recipes=each.recipes[:, :7], logs=each.logs[:, :7])
    assert predictor.predict(shorter).shape == (len(RECIPES),), "without the trees"
    content = torch.load(path, weights_only=True)
    path.write_bytes(path.read_bytes()[:-100])
    first = content["networks"][0]
    wide = content | {"networks": [first | {"settings": first["settings"] | {"channels": 10**9}}]}
    empty = content | {"networks": [first | {"members": []}]}
    for damaged in (None, content | {"schema": 9}, [1], content | {"networks": []}, empty, wide):
        if damaged is not None:
            torch.save(damaged, path)
        with pytest.raises(ValueError, match=str(path)):
            load_predictor(path)


def test_the_average_keeps_an_order_that_all_agree_on_and_the_level_of_the_networks() -> None:
    rng = np.random.default_rng(0)
    order = rng.normal(size=9)
    networks = [-0.1 + 0.01 * order, -0.3 + 0.03 * order]
    for orders in ([], [500 * order]):
        np.testing.assert_allclose(combined(networks, orders), -0.2 + 0.02 * order)
    np.testing.assert_allclose(combined([np.full(3, -0.2)], [np.zeros(3)]), -0.2)
    given = rng.permutation(9)
    expected = combined(networks, [order**3])[given]
    np.testing.assert_allclose(combined([each[given] for each in networks], [order[given] ** 3]), expected)


def test_the_shipped_files_fit() -> None:
    assert CHECKPOINT.stat().st_size < 1 << 20 and LABELS.stat().st_size < 1 << 20
    assert set(load_predictor(CHECKPOINT).networks) == {"graph", "statistics", "counts"}
    labels = read_labels(LABELS)
    assert len(labels) > 10_000 and {len(recipe) for _, recipe in labels} == {20}


def test_circuits_without_labels_are_an_error(tmp_path: Path) -> None:
    write_aiger(random_circuit(0), tmp_path / "c.aig")
    with pytest.raises(ValueError, match="make some with the command label"):
        examples_of([CircuitFile("c", tmp_path / "c.aig")], {})


def test_a_model_that_sees_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match="want one of graph, statistics, counts"):
        SynthesisModel("all")  # type: ignore[arg-type]


@needs_abc
def test_evaluate_labels_and_scores_circuits_never_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data" / "deep"
    data.mkdir(parents=True)
    write_aiger(random_circuit(1, 20, 200), data / "one.aig")
    (data.parent / "tiny.bench").write_text("INPUT(a)\nINPUT(b)\nOUTPUT(o)\no = AND(a, b)\n")
    command = ["evaluate", "--data", str(data.parent), "--number", "5", "--labels", str(tmp_path / "labels")]
    assert main([*command, "--json", str(tmp_path / "scores.json")]) == 0
    result = json.loads((tmp_path / "scores.json").read_text())
    assert set(result) == {"tau", "error", "circuits"} and set(result["circuits"]) == {"deep/one", "tiny"}
    assert result["circuits"]["tiny"]["tau"] is None, "all recipes leave its only AND"
    assert 0 <= result["circuits"]["deep/one"]["error"] < 1
    before = (tmp_path / "labels" / "labels.jsonl").read_text()
    assert main(command) == 0 and (tmp_path / "labels" / "labels.jsonl").read_text() == before
    (data / "bad.bench").write_text("INPUT(a)\nOUTPUT(o)\n")
    assert main(command) == 2
    assert capsys.readouterr().err.endswith(
        "bad.bench, line 2: signal 'o' is used, and nothing defines it; the file may be cut off\n"
    )
