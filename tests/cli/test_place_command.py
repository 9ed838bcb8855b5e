"""`gst place` end to end: measured, simulated and of a cost graph; killed and resumed; and what it refuses."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from gst.cli import main
from gst.execution.measure import Log
from gst.lowering.plan import Plan
from gst.machine.devices import usable_cores
from gst.placement.baselines.bounds import words
from gst.placement.cost_models import COST_MODELS, LEARNED, NetworkSurrogate
from gst.placement.machines import machine
from gst.placement.methods import METHODS
from gst.placement.objectives import SimulatedObjective
from gst.placement.planning import Settings
from gst.programs import WORKLOADS, capture
from gst.reporting.headline import step_kind
from gst.util.compiled import compiler
from tests.choices import with_rest
from tests.outcomes import refused

ROOT = Path(__file__).parents[2]
SIZES = {"layers": 1, "hidden": 8, "steps": 2, "batch": 2, "vocabulary": 10}
PROGRAM = "rnnlm:" + ",".join(f"{name}={size}" for name, size in SIZES.items())
COLOCRL = "experiments.reproductions.colocrl.method:colocrl"
QUICK = ("--evaluations", "60", "--methods", f"annealing,{COLOCRL},go")
needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
needs_two_cores = pytest.mark.skipif(len(usable_cores()) < 2, reason="this machine has one core")


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(autouse=True)
def in_own_directory(tmp_path: Path, traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each program is captured once for all tests."""
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    Path("runs/traces").symlink_to(traces)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(Path(__file__).parents[1])]))


@pytest.mark.e2e
@pytest.mark.slow
@needs_compiler
@needs_two_cores
def test_a_measured_plan_is_the_fastest_of_all_that_were_measured(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["place", PROGRAM, "--devices", "cpu:0,cpu:1,cpu:0-1", "--budget", "14", "--patience", "0"]
    arguments += ["--no-compile", *QUICK, "--out", "out"]
    assert main([*arguments, "--json", "result.json"]) == 0
    result = json.loads(Path("result.json").read_text())
    plans = result["plans"]
    wanted = {"chunks", "metis", "heft", "annealing", "colocrl", "go", "pytorch"}
    assert wanted <= set(plans) and sum(name.startswith("single:") for name in plans) == 1
    again = {name: plan for name, plan in plans.items() if plan["again_median_ms"] and not step_kind(name)}
    both = {name: plan["median_ms"] * plan["again_median_ms"] for name, plan in again.items()}
    assert both[result["best"]] == min(both.values()), "chosen by both sets of runs"
    assert result["objective"] == plans[result["best"]]["again_median_ms"], "and timed by the second"
    assert step_kind(result["winner"]) or result["winner"] == result["best"]
    assert result["winner_ms"] <= result["pytorch_ms"]
    assert plans["compiled"]["reason"] == "left out, as asked"
    assert result["lower_bound"] > 0 and plans["loop"]["measurements"] == 14
    assert {"annealing", "colocrl", "go"} & set(result["proposed"])
    assert all(plan["low_ms"] <= plan["median_ms"] <= plan["high_ms"] for plan in plans.values() if plan["feasible"])
    plan = Plan.load(Path("out/plan.json"))
    assert set(plan.devices) == {"cpu:0", "cpu:1", "cpu:0-1"}
    assert result["best"] in Path("out/report.html").read_text()
    assert "Look at" in capsys.readouterr().out
    before = Path("out/measurements.jsonl").read_bytes()
    refused(capsys, arguments, "out/measurements.jsonl is there already", "--resume")
    assert main([*arguments, "--resume"]) == 0  # nothing is left to search
    assert Path("out/measurements.jsonl").read_bytes() == before


@pytest.mark.e2e
@pytest.mark.slow
@needs_compiler
@needs_two_cores
def test_the_gst_cost_model_rewards_a_policy_whose_plans_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[int] = []

    class Recorded(NetworkSurrogate):
        def learn(self, plans: Sequence[Plan], *told: np.ndarray) -> None:
            learned.append(len(plans))
            super().learn(plans, *told)

    monkeypatch.setitem(COST_MODELS, "gst", lambda task, seed, learned: Recorded(task, seed))
    arguments = ["place", PROGRAM, "--devices", "cpu:0,cpu:1", "--budget", "26", "--evaluations", "10"]
    arguments += ["--patience", "0", "--no-compile", "--methods", "go", "--cost-model", "gst", "--out", "out"]
    assert main([*arguments, "--json", "result.json"]) == 0
    result = json.loads(Path("result.json").read_text())
    assert result["cost_model"]["name"] == "gst" and result["cost_model"]["num_measured"] == 26
    assert learned and learned == sorted(learned) and result["plans"]["loop"]["feasible"]
    assert result["proposed"]["go"]["measured"] > 0


@pytest.mark.e2e
@pytest.mark.slow
@needs_compiler
@needs_two_cores
def test_a_search_starts_from_the_costs_that_another_learned() -> None:
    quick = ["--devices", "cpu:0,cpu:1", "--budget", "12", "--evaluations", "40", "--patience", "0", "--no-compile"]
    assert main(["place", PROGRAM, *quick, "--out", "first"]) == 0
    other = PROGRAM.replace("steps=2", "steps=3")
    assert main(["place", other, *quick, "--warm-start", "first", "--out", "second"]) == 0
    first, second = (json.loads(Path(out, LEARNED).read_text())["costs"] for out in ("first", "second"))
    assert first.keys() <= second.keys() and first != second, "it learned on"
    cold = Log(Path("first/measurements.jsonl")).read(), Log(Path("second/measurements.jsonl")).read()
    assert [len(log) for log in cold] == [12, 12]
    assert main(["place", other, *quick, "--warm-start", "first", "--out", "second", "--resume"]) == 0
    assert len(Log(Path("second/measurements.jsonl")).read()) == 12, "nothing is left to measure"


def test_the_help_is_short_and_names_the_methods_and_cost_models_that_there_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit, match="0"):
        main(["place", "--help"])
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 70 and "examples:" in text.splitlines()
    printed = "".join(text.split())
    names = [f"{name}({METHODS[name].words})" for name in METHODS]
    names += [f"--cost-model{{{','.join(COST_MODELS)}}}", f"(default:{','.join(Settings().methods)})"]  # as gst.place
    assert [name for name in names if "".join(name.split()) not in printed] == []
    with pytest.raises(ValueError, match="no cost model 'magic'; there are fitted, gst, none"):
        Settings(cost_model="magic")


@pytest.mark.parametrize(
    "words", with_rest(["--help", "place --help", "trace experiments.mine:step"], ["trace experiments.mine:step"])
)
def test_a_package_of_the_user_called_experiments_is_not_shadowed(words: str) -> None:
    Path("experiments").mkdir()
    Path("experiments/mine.py").write_text("from gst.programs import WORKLOADS\nstep = WORKLOADS['rnnlm']\n")
    code = f"""import sys; from gst.cli import main
try: main({words.split()})
finally: assert "experiments.bench" not in sys.modules"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([".", str(ROOT)])}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, stdout=subprocess.DEVNULL)


def test_simulated_figures_are_of_the_plan_that_is_written() -> None:
    arguments = ["place", PROGRAM, "--machine", "cores:2", "--evaluations", "50", "--methods", "annealing"]
    assert main([*arguments, "--out", "out", "--json", "result.json"]) == 0
    result = json.loads(Path("result.json").read_text())
    task = machine("cores:2").task(capture(WORKLOADS["rnnlm"](**SIZES)))
    (simulated,) = SimulatedObjective(task)([Plan.load(Path("out/plan.json"))])
    assert result["objective"] == pytest.approx(simulated) and result["runtime"] == "simulated"
    assert (
        result["lower_bound"]
        <= result["objective"]
        == min(plan["latency"] for plan in result["plans"].values() if plan["feasible"])
    )


def test_without_a_budget_there_is_the_portfolio_alone() -> None:
    arguments = ["place", PROGRAM, "--machine", "gpus:2", "--budget", "0", "--out", "out", "--json", "result.json"]
    assert main(arguments) == 0
    plans = json.loads(Path("result.json").read_text())["plans"]
    assert "heft" in plans and not {"annealing", "go"} & set(plans)


def test_the_plan_is_written_with_its_certificate(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["place", PROGRAM, "--machine", "cores:2", "--evaluations", "20", "--methods", "annealing"]
    assert main([*command, "--out", "out", "--json", "result.json"]) == 0
    record, result = (json.loads(Path(name).read_text()) for name in ("out/plan.json", "result.json"))
    certificate = record["certificate"]
    assert certificate == result["certificate"] and certificate["plan"] == pytest.approx(result["objective"])
    assert 0 < certificate["lower_bound"] == pytest.approx(result["lower_bound"])
    assert certificate["lower_bound"] <= certificate["plan"] and max(certificate["peak_bytes"].values()) > 0
    assert words(certificate) in capsys.readouterr().out
    assert "By these costs no plan takes less than" in Path("out/report.html").read_text()


def test_a_directory_of_the_user_stays_and_a_method_that_asked_less_goes_on() -> None:
    """On one device ColocRL asks about one plan, whatever it may."""
    Path("out/dataset").mkdir(parents=True)
    Path("out/dataset/mine").write_text("mine")
    command = ["place", PROGRAM, "--machine", "cores:1", "--methods", COLOCRL, "--out", "out"]
    assert main(command) == 0 and Path("out/dataset/mine").exists()
    assert main([*command, "--resume"]) == 0


def test_what_cannot_be_placed_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", "out"]
    refused(capsys, ["place", PROGRAM, "--machine", "gpus:2", "--tasks", "placement,fusion", *out], "--machine")
    refused(capsys, ["place", PROGRAM, "--machine", "tpus:2", *out], "tpus:2", "gpus:4")
    refused(capsys, ["place", PROGRAM, "--machine", "gpus", *out], "'gpus'", "such as gpus:4")
    refused(capsys, ["place", PROGRAM, "--machine", "gpus:2", "--seconds", "3", *out], "--seconds")
    refused(capsys, ["place", PROGRAM, "--seconds", "0", *out], "--seconds is 0, want more than 0")
    refused(capsys, ["place", PROGRAM, "--machine", "gpus:2", "--methods", "magic", *out], "magic", "annealing")
    refused(capsys, ["place", PROGRAM, "--machine", "gpus:2", "--tasks", "schedule", *out], "placement")
    refused(capsys, ["place", PROGRAM, "--machine", "gpus:2", "--budget", "-1", *out], "budget")
    for more in (["--machine", "gpus:2"], ["--runtime", "simulated"], ["--budget", "0"]):
        refused(capsys, ["place", PROGRAM, "--cost-model", "gst", *more, *out], "--cost-model", "measures")
    warm = ["place", PROGRAM, "--machine", "gpus:2", "--warm-start", "first", *out]
    refused(capsys, warm, "--warm-start", "measured")
    refused(capsys, ["place", PROGRAM, "--warm-start", out[-1], *out], "another search", "--resume")
    refused(capsys, ["place", PROGRAM, "--warm-start", "nowhere", *out], "no nowhere/learned_costs.json", "--out")
    refused(capsys, ["place", PROGRAM, "--machine", "gpus:2", "--memory-limit", "1KiB", *QUICK, *out], "MiB", "least")


def test_results_of_another_program_are_not_gone_on_with(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--machine", "cores:2", "--evaluations", "20", "--methods", "annealing", "--out", "out"]
    assert main(["place", PROGRAM, *arguments]) == 0
    other = PROGRAM.replace("hidden=8", "hidden=4")
    refused(capsys, ["place", other, *arguments, "--resume"], "searches.jsonl", "--out")
    for more in (["--memory-limit", "1GiB"], ["--tasks", "placement"]):
        refused(capsys, ["place", PROGRAM, *arguments, *more, "--resume"], "searches.jsonl was made with", "--out")


def test_a_directory_of_another_search_is_refused_before_anything_is_compiled_or_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    search = ["--devices", "cpu:0", "--patience", "0", "--out", "out"]
    assert main(["place", PROGRAM, *search, "--runtime", "simulated"]) == 0
    other = PROGRAM.replace("hidden=8", "hidden=4")
    refused(capsys, ["place", other, *search, "--resume"], "costs.json was made with program", "--out")
    children_s = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    refused(
        capsys, ["place", PROGRAM, *search, "--seed", "1", "--resume"], "searches.jsonl was made with seed 0", "--out"
    )
    assert sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) == children_s, "no process was started"


def test_results_have_a_directory_of_the_program_without_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["place", PROGRAM, "--machine", "cores:2", "--evaluations", "20"]) == 0
    (folder,) = Path("runs/place").iterdir()
    assert folder.name.startswith("rnnlm-layers-1") and f"Look at {folder}/report.html" in capsys.readouterr().out


def test_what_each_part_contributed_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["place", PROGRAM, "--machine", "gpus:2", "--evaluations", "60", "--methods", "annealing"]
    assert main([*arguments, "--out", "all", "--explain"]) == 0
    printed = capsys.readouterr().out
    parts = ("baselines: ", "search in simulation: annealing, ", "no plan can take less than")
    assert all(part in printed for part in parts)
    assert main([*arguments, "--out", "less", "--tasks", "placement"]) == 0
    assert "baselines: " not in capsys.readouterr().out
    assert Plan.load(Path("less/plan.json")).priority is None
