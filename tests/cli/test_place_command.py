"""`gst place` end to end: measured, simulated and on a published graph; killed and resumed; and what it refuses."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from gst import cli
from gst.cli import main
from gst.cli import place as place_command
from gst.execution.interpreter import compiler
from gst.execution.measure import Log
from gst.lowering.plan import Plan
from gst.lowering.race_check import check
from gst.lowering.stream_program import StreamProgram
from gst.machine.devices import usable_cores
from gst.placement.machines import machine
from gst.placement.objectives import SimulatedObjective
from gst.placement.planning import COST_MODELS, Settings
from gst.placement.search.surrogates import NetworkSurrogate
from gst.programs import WORKLOADS, capture

ROOT = Path(__file__).parents[2]
SIZES = {"layers": 1, "hidden": 8, "steps": 2, "batch": 2, "vocabulary": 10}
PROGRAM = "rnnlm:" + ",".join(f"{name}={size}" for name, size in SIZES.items())
QUICK = ("--evaluations", "60", "--methods", "annealing,colocrl,hdp,go,guided_search")
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


@pytest.fixture
def graph_file(tmp_path: Path) -> Path:
    """A chain of six operators, thrice as fast on the one accelerator, whose memory holds four of them."""
    nodes = [
        {"id": n, "cpuLatency": 3.0, "fpgaLatency": 1.0, "supportedOnFpga": 1, "size": 10.0, "isBackwardNode": 0}
        for n in range(6)
    ]
    edges = [{"sourceId": n, "destId": n + 1, "cost": 0.5} for n in range(5)]
    record = {"nodes": nodes, "edges": edges, "maxFPGAs": 1, "maxCPUs": 2, "maxSizePerFPGA": 40.0}
    path = tmp_path / "chain.json"
    path.write_text(json.dumps(record))
    return path


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str], *words: str) -> None:
    capsys.readouterr()
    assert main(arguments) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("gst: error: ") and all(word in last for word in words), last


@pytest.mark.e2e
@pytest.mark.slow
@needs_compiler
@needs_two_cores
def test_a_measured_plan_is_the_fastest_of_all_that_were_measured(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "place",
        PROGRAM,
        "--devices",
        "cpu:0,cpu:1,cpu:0-1",
        "--budget",
        "14",
        "--patience",
        "0",
        "--no-compile",
        *QUICK,
    ]
    arguments += ["--out", "out"]
    assert main([*arguments, "--json", "result.json"]) == 0
    result = json.loads(Path("result.json").read_text())
    plans = result["plans"]
    wanted = {
        "chunks",
        "metis",
        "heft",
        "annealing",
        "colocrl",
        "hdp",
        "go",
        "guided_search",
        "pytorch",
    }
    assert wanted <= set(plans) and sum(name.startswith("single:") for name in plans) == 1
    ran = {name: plan["median_ms"] for name, plan in plans.items() if plan["feasible"] and name != "pytorch"}
    assert ran[result["best"]] == min(ran.values()), "chosen by the first runs"
    assert result["objective"] == plans[result["best"]]["again_median_ms"], "and timed by others"
    assert result["winner"] in ("pytorch", result["best"]) and result["winner_ms"] <= result["pytorch_ms"]
    assert plans["compiled"]["reason"] == "left out, as asked"
    assert result["lower_bound"] > 0 and plans["guided_search"]["measurements"] == 14
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
def test_the_gst_cost_model_corrects_the_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[int] = []

    class Recorded(NetworkSurrogate):
        def learn(self, plans: Sequence[Plan], *told: np.ndarray) -> None:
            learned.append(len(plans))
            super().learn(plans, *told)

    monkeypatch.setattr("gst.placement.loop.NetworkSurrogate", Recorded)
    arguments = ["place", PROGRAM, "--devices", "cpu:0,cpu:1", "--budget", "26", "--evaluations", "10"]
    arguments += [
        "--patience",
        "0",
        "--no-compile",
        "--methods",
        "guided_search",
        "--cost-model",
        "network",
        "--out",
        "out",
    ]
    assert main([*arguments, "--json", "result.json"]) == 0
    result = json.loads(Path("result.json").read_text())
    assert result["cost_model"]["name"] == "network" and result["cost_model"]["num_measured"] == 26
    assert learned and learned == sorted(learned) and result["plans"]["guided_search"]["feasible"]


def test_the_command_line_names_the_cost_models_that_there_are() -> None:
    parser = cli._parser()
    commands = next(each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    for name in ("place", "demo"):
        (choices,) = [each.choices for each in commands.choices[name]._actions if each.dest == "cost_model"]
        assert choices == COST_MODELS
    assert commands.choices["place"].get_default("methods") == ",".join(Settings().methods), "as gst.place"
    with pytest.raises(ValueError, match="no cost model 'magic'; there are sums, network"):
        Settings(cost_model="magic")


@pytest.mark.parametrize("words", ["--help", "place --help", "trace experiments.mine:step"])
def test_a_package_of_the_user_called_experiments_is_not_shadowed(words: str) -> None:
    Path("experiments").mkdir()
    Path("experiments/mine.py").write_text("from gst.programs import WORKLOADS\nstep = WORKLOADS['rnnlm']\n")
    code = f"""import sys; from gst.cli import main
try: main({words.split()})
finally: assert "experiments.bench" not in sys.modules"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([".", str(ROOT)])}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, stdout=subprocess.DEVNULL)


@pytest.mark.e2e
@pytest.mark.slow
def test_a_simulated_search_killed_anywhere_goes_on_to_the_same_plan() -> None:
    methods = ["--methods", "annealing,colocrl,hdp,go,guided_search"]
    arguments = ["place", PROGRAM, "--machine", "gpus:2", "--evaluations", "400", *methods, "--out"]
    assert main([*arguments, "whole"]) == 0
    command = [sys.executable, "-m", "gst.cli", *arguments, "killed"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as child:
        deadline = time.monotonic() + 200
        while not Path("killed/searches.jsonl").exists() and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert child.poll() is None and Path("killed/searches.jsonl").exists()
        child.send_signal(signal.SIGKILL)
    begun = Log(Path("killed/searches.jsonl")).read()
    assert main([*arguments, "killed", "--resume"]) == 0
    assert 0 < len(begun) < len(Log(Path("killed/searches.jsonl")).read()), "it goes on with what was found"
    one, other = (Plan.load(Path(name) / "plan.json") for name in ("whole", "killed"))
    assert one.key == other.key


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


@pytest.mark.e2e
@pytest.mark.slow
@needs_compiler
def test_a_simulated_search_on_these_devices_goes_on_with_the_costs_it_began_with() -> None:
    arguments = ["place", PROGRAM, "--devices", "cpu:0", "--runtime", "simulated", "--evaluations", "30"]
    arguments += ["--out", "out"]
    assert main([*arguments, "--methods", "annealing"]) == 0
    before = Path("out/costs.json").read_bytes(), Plan.load(Path("out/plan.json")).key
    Path("out/searches.jsonl").unlink()
    assert main([*arguments, "--methods", "annealing", "--resume"]) == 0
    assert before == (Path("out/costs.json").read_bytes(), Plan.load(Path("out/plan.json")).key)


def test_without_a_budget_there_is_the_portfolio_alone() -> None:
    arguments = ["place", PROGRAM, "--machine", "gpus:2", "--budget", "0", "--out", "out", "--json", "result.json"]
    assert main(arguments) == 0
    plans = json.loads(Path("result.json").read_text())["plans"]
    assert "heft" in plans and not {"annealing", "go", "guided_search"} & set(plans)


def test_the_stream_program_of_a_plan_is_printed_verified_and_saved(
    capsys: pytest.CaptureFixture[str], graph_file: Path
) -> None:
    arguments = ["place", PROGRAM, "--machine", "gpus:2", "--evaluations", "20", "--methods", "annealing"]
    assert main([*arguments, "--out", "out", "--program", "--verify", "--json", "result.json"]) == 0
    printed, text = capsys.readouterr().out, Path("out/program.txt").read_text()
    assert (
        text in printed and "lane cuda:0 in cuda:0" in text and "5 hostile runs of the plan gave the outputs" in printed
    )
    streams = StreamProgram.from_dict(json.loads(Path("out/plan.json").read_text())["streams"])
    result = json.loads(Path("result.json").read_text())["streams"]
    assert result["peak_bytes"] == check(streams).peak_bytes and result["steps"] == streams.num_steps
    assert result["hostile_runs"] == 5 and Plan.load(Path("out/plan.json")).devices == ("cuda:0", "cuda:1")
    refused(capsys, ["place", "--graph", str(graph_file), "--out", "out", "--verify"], "cost graph", "--verify")


def test_a_published_graph_is_placed_by_its_published_latency(graph_file: Path) -> None:
    arguments = ["place", "--graph", str(graph_file), *QUICK, "--out", "out", "--json", "result.json"]
    assert main(arguments) == 0
    result = json.loads(Path("result.json").read_text())
    # Four on the accelerator at one end, one value on the way: 4 * 1 + 0.5 + 2 * 3.
    assert result["objective"] == pytest.approx(10.5) and result["lower_bound"] <= 10.5
    placement = np.array(Plan.load(Path("out/plan.json")).placement)
    assert (placement >= 2).sum() == 4


def test_a_directory_of_the_user_stays_and_a_method_that_asked_less_goes_on() -> None:
    """On one device ColocRL asks about one plan, whatever it may."""
    Path("out/dataset").mkdir(parents=True)
    Path("out/dataset/mine").write_text("mine")
    command = ["place", PROGRAM, "--machine", "cores:1", "--methods", "colocrl", "--proof", "0", "--out", "out"]
    assert main(command) == 0 and Path("out/dataset/mine").exists()
    assert main([*command, "--resume"]) == 0


def test_what_cannot_be_placed_is_refused_in_one_line(capsys: pytest.CaptureFixture[str], graph_file: Path) -> None:
    out = ["--out", "out"]
    refused(capsys, ["place", *out], "a program", "--graph")
    refused(capsys, ["place", PROGRAM, "--graph", str(graph_file), *out], "--graph")
    refused(capsys, ["place", "--graph", str(graph_file), "--devices", "cpu:0", *out], "--devices", "--machine")
    refused(capsys, ["place", PROGRAM, "--machine", "tpus:2", *out], "tpus:2", "gpus:4")
    refused(capsys, ["place", PROGRAM, "--machine", "rtx4090", *out], "'rtx4090'", "such as rtx4090:4")
    refused(capsys, ["place", "--graph", "nofile.json"], "nofile.json: there is no such file")
    refused(capsys, ["place", PROGRAM, "--machine", "gpus:2", "--policy", "mine.npz", *out], "--policy")
    refused(capsys, ["place", PROGRAM, "--machine", "gpus:2", "--methods", "magic", *out], "magic", "annealing")
    refused(capsys, ["place", PROGRAM, "--machine", "gpus:2", "--tasks", "schedule", *out], "placement")
    refused(capsys, ["place", PROGRAM, "--machine", "gpus:2", "--budget", "-1", *out], "budget")
    unmeasured = (["--machine", "gpus:2"], ["--runtime", "simulated"], ["--budget", "0"], ["--methods", "go"])
    for more in unmeasured:
        refused(capsys, ["place", PROGRAM, "--cost-model", "network", *more, *out], "--cost-model", "guided_search")
    refused(capsys, ["place", PROGRAM, "--machine", "gpus:2", "--memory-limit", "1KiB", *QUICK, *out], "MiB", "least")
    record = json.loads(graph_file.read_text())
    record["edges"].append({"sourceId": 5, "destId": 0, "cost": 0.5})
    graph_file.write_text(json.dumps(record))
    refused(capsys, ["place", "--graph", str(graph_file), *out], "cycle")
    record["edges"].pop()
    record["nodes"][2]["cpuLatency"] = -1.0
    graph_file.write_text(json.dumps(record))
    refused(capsys, ["place", "--graph", str(graph_file), *out], "cpuLatency")


def test_results_of_another_program_are_not_gone_on_with(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--machine", "cores:2", "--evaluations", "20", "--methods", "annealing", "--out", "out"]
    assert main(["place", PROGRAM, *arguments]) == 0
    other = PROGRAM.replace("hidden=8", "hidden=4")
    refused(capsys, ["place", other, *arguments, "--resume"], "searches.jsonl", "--out")
    for more in (["--memory-limit", "1GiB"], ["--tasks", "placement"]):
        refused(capsys, ["place", PROGRAM, *arguments, *more, "--resume"], "searches.jsonl was made with", "--out")


def test_what_is_left_out_is_left_out_and_the_rest_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["place", PROGRAM, "--machine", "gpus:2", "--evaluations", "60", "--methods", "annealing"]
    assert main([*arguments, "--out", "all", "--explain", "--json", "all.json"]) == 0
    words = capsys.readouterr().out
    assert (
        "baselines: " in words
        and "search in simulation: annealing, " in words
        and "no plan can take less than" in words
    )
    assert main([*arguments, "--out", "less", "--without", "schedule", "--json", "less.json"]) == 0
    assert "baselines: " not in capsys.readouterr().out
    every, less = (json.loads(Path(f"{name}.json").read_text()) for name in ("all", "less"))
    assert less["plans"].keys() == every["plans"].keys()
    assert Plan.from_dict(json.loads(Path("less/plan.json").read_text())).priority is None


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (("--without", "measurements"), {"budget": 0}),
        (("--without", "network", "--cost-model", "network"), {"cost_model": "sums"}),
        (("--without", "policy", "--methods", "annealing,policy"), {"methods": "annealing"}),
        (("--without", "fusion,schedule", "--tasks", "placement,schedule,fusion"), {"tasks": "placement"}),
    ],
)
def test_a_part_that_is_left_out_sets_the_option_for_it(
    arguments: tuple[str, ...], options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[argparse.Namespace] = []
    monkeypatch.setattr(place_command, "_fill_in", lambda given: seen.append(given) or sys.exit(0))
    with pytest.raises(SystemExit):
        main(["place", PROGRAM, "--out", "runs", *arguments])
    assert {name: getattr(seen[0], name) for name in options} == options


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((PROGRAM, "--without", "luck"), "there is no part 'luck' to leave out; there are policy, network"),
        (("--graph", "some.json", "--without", "fusion"), "--without leaves out the policy alone"),
        ((PROGRAM, "--without", "measurements", "--cost-model", "network"), None),
    ],
)
def test_parts_that_are_not_there_are_refused(
    arguments: tuple[str, ...], words: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["place", *arguments, "--out", "runs"]) == 2
    assert words is None or words in capsys.readouterr().err
