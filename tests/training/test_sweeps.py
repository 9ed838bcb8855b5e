"""W&B's sweep files under the real parsers, and run here: every combination, killed and resumed, and what fails."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from made_targets import SMALL

from gst.cli.command_line import _parser, main
from gst.training.sweeps import Sweep, metric_of, read_sweep
from tests.choices import with_rest
from tests.clusters import cluster_here
from tests.processes import is_running

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "experiments/sweeps").glob("*.yaml"))
SCRIPT = """
import argparse, json, os, pathlib, time
parser = argparse.ArgumentParser()
for name in ("--x", "--y", "--json", "--out"):
    parser.add_argument(name)
found = parser.parse_args()
with open("tried.txt", "a") as tried:
    print(found.x, found.y, file=tried)
if pathlib.Path("lost").exists() and len(open("tried.txt").readlines()) == 2:
    pathlib.Path("lost").unlink()
    pathlib.Path(found.out, "left").touch()
    pathlib.Path("trial").write_text(str(os.getpid()))
    os.kill(os.getppid(), 9)
    time.sleep(100)
if pathlib.Path("stuck").exists() and len(open("tried.txt").readlines()) == 4:
    pathlib.Path("trial").write_text(str(os.getpid()))
    pathlib.Path("stuck").unlink()
    time.sleep(100)
if found.y == "bad":
    raise SystemExit("it does not work")
value = (float(found.x) - 0.3) ** 2 + len(found.y)
if found.out:
    names = ("WANDB_MODE", "WANDB_RUN_GROUP", "WANDB_SERVICE")
    pathlib.Path(found.out, "wandb.txt").write_text(" ".join(os.environ.get(name, "none") for name in names))
json.dump({"metrics": {"loss": value}}, open(found.json, "w"))
"""


@pytest.fixture(autouse=True)
def in_own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{Path(__file__).parent}")
    (tmp_path / "script.py").write_text(SCRIPT)


def sweep_file(**changed: Any) -> str:
    content = {
        "method": "random",
        "metric": {"name": "loss", "goal": "minimize"},
        "parameters": {"x": {"min": 0.0, "max": 1.0}, "y": {"values": ["a", "bb"]}},
        "command": ["${interpreter}", "script.py", "${args}"],
    }
    kept = {name: value for name, value in (content | changed).items() if value is not None}
    Path("sweep.yaml").write_text(yaml.safe_dump(kept))
    return "sweep.yaml"


def tried() -> list[str]:
    return Path("tried.txt").read_text().splitlines()


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main(["sweep", *arguments]) == 2
    (line,) = [each for each in capsys.readouterr().err.splitlines() if each.startswith("gst: error: ")]
    return line


# The shipped files ---------------------------------------------------------------------------------


def extremes(sweep: Sweep) -> list[dict[str, Any]]:
    """Two sets of values in which every parameter takes its first and its last."""
    ends = {
        name: (each.choices[0], each.choices[-1]) if hasattr(each, "choices") else (each.low, each.high)
        for name, each in sweep.parameters.items()
    }
    return [{name: pair[end] for name, pair in ends.items()} for end in (0, 1)]


def parsed(words: list[str]) -> dict[str, Any]:
    """What a command would run with, by dotted name, as its own parser says."""
    assert words[0] == "gst"
    if words[1] != "fit":
        return vars(_parser().parse_args(words[1:]))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), pytest.raises(SystemExit) as ended:
        main([*words[1:], "--print_config"])
    assert ended.value.code in (0, None)
    flat: dict[str, Any] = {}
    waiting = [("", yaml.safe_load(printed.getvalue()))]
    for name, value in waiting:
        flat[name] = value
        if isinstance(value, dict):
            waiting += [(f"{name}.{key}" if name else key, entry) for key, entry in value.items()]
    return flat


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_key_and_value_of_a_shipped_file_means_something_to_its_command(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wandb.sdk.launch.sweeps.utils import load_sweep_config  # costs seconds

    monkeypatch.chdir(ROOT)
    sweep = read_sweep(path)
    assert sweep.name == path.stem and load_sweep_config(str(path))["command"] == list(sweep.command)
    for values in extremes(sweep):
        found = parsed(sweep.words(values))
        assert {name: found.get(name) for name in values} == values


def test_flags_are_those_that_the_agent_of_wandb_makes() -> None:
    from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

    values = {"a.b": True, "lr": 1e-5, "n": 3, "name": "x y", "none": None}
    parameters = {name: {"value": value} for name, value in values.items()}
    sweep = read_sweep(Path(sweep_file(parameters=parameters, command=["${env}", "${interpreter}", "${args}"])))
    theirs = create_sweep_command_args({"args": parameters})["args"]
    assert sweep.words(values) == ["/usr/bin/env", "python", *theirs]


# Run here ------------------------------------------------------------------------------------------


def test_a_grid_is_tried_whole_and_the_best_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    grid = {"x": {"values": [0.0, 0.25]}, "y": {"values": ["a", "bb"]}}
    file = sweep_file(method="grid", parameters=grid)
    assert main(["sweep", "--local", file, "--trials", "3", "--out", "out", "--json", "r.json"]) == 0
    assert main(["sweep", "--local", file, "--out", "out", "--json", "r.json", "--resume"]) == 0
    assert tried() == [f"{x} {y}" for x in (0.0, 0.25) for y in ("a", "bb")]
    result = json.loads(Path("r.json").read_text())
    assert result["best"]["parameters"] == {"x": 0.25, "y": "a"}
    assert result["best"]["value"] == min(each["value"] for each in result["trials"]) == pytest.approx(1.0025)
    printed = capsys.readouterr().out.splitlines()
    first = printed.index(next(line for line in printed if line.startswith("trial "))) + 1
    assert "x=0.25 y=a" in printed[first] and any("script.py --x=0.25 --y=a" in line for line in printed)


@pytest.mark.parametrize("method", with_rest(["grid", "random"], ["random"]))
def test_trials_at_once_are_those_that_run_one_after_the_other(method: str) -> None:
    file = sweep_file(method=method, parameters={"x": {"values": [0.0, 0.25, 1.0]}, "y": {"values": ["a", "bb"]}})
    assert main(["sweep", "--local", file, "--trials", "5", "--out", "one"]) == 0
    alone = tried()
    Path("tried.txt").unlink()
    assert main(["sweep", "--local", file, "--trials", "5", "--out", "two", "--at-once", "2", "--json", "r.json"]) == 0
    trials = json.loads(Path("r.json").read_text())["trials"]
    assert sorted(tried()) == sorted(alone) and [each["number"] for each in trials] == list(range(5))
    assert [f"{each['parameters']['x']} {each['parameters']['y']}" for each in trials] == alone


def test_a_sweep_that_ends_stops_its_other_trials_and_resumes_with_them(capsys: pytest.CaptureFixture[str]) -> None:
    grid = {"x": {"value": 0}, "y": {"values": ["a", "bb", "bad", "ccc"]}}
    file = sweep_file(method="grid", parameters=grid)
    failing = 'if found.y == "ccc":\n    time.sleep(100)\nelse:'
    Path("script.py").write_text(SCRIPT.replace('if found.y == "bad":', failing))
    assert "3 trials in a row failed" in refused(capsys, "--local", file, "--out", "out", "--at-once", "4")
    Path("script.py").write_text(SCRIPT)
    Path("tried.txt").unlink()
    assert main(["sweep", "--local", file, "--out", "out", "--at-once", "4", "--resume"]) == 0
    assert tried() == ["0 ccc"]


def test_a_trial_has_a_directory_and_a_service_of_its_own_and_stays_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SERVICE", "3-1-unix-/nowhere")  # as where something was logged before
    file = sweep_file(name="mine", command=["${interpreter}", "script.py", "--out=elsewhere", "${args}"])
    assert main(["sweep", "--local", file, "--trials", "1", "--out", "out"]) == 0
    monkeypatch.setenv("WANDB_MODE", "online")
    assert main(["sweep", "--local", file, "--trials", "2", "--out", "out", "--resume"]) == 0
    assert Path("out/trial-0000/wandb.txt").read_text() == "offline mine none"
    assert Path("out/trial-0001/wandb.txt").read_text() == "online mine none"
    assert not Path("elsewhere").exists()


def test_a_sweep_of_a_larger_is_better_metric_finds_the_largest() -> None:
    file = sweep_file(metric={"name": "loss", "goal": "maximize"})
    assert main(["sweep", "--local", file, "--trials", "3", "--json", "r.json"]) == 0
    result = json.loads(Path("r.json").read_text())
    assert result["best"]["value"] == max(each["value"] for each in result["trials"])
    assert Path("runs/sweeps/sweep/trial-0002/output.log").exists()


@pytest.mark.e2e
def test_a_killed_sweep_goes_on_as_if_it_had_not_been() -> None:
    """The last of 13 trials are no longer drawn by chance, but by what came of the others."""
    file = sweep_file(method="bayes")
    assert main(["sweep", "--local", file, "--trials", "13", "--out", "whole"]) == 0
    whole = tried()
    assert len(set(whole)) == 13
    Path("tried.txt").unlink()
    Path("stuck").touch()
    command = [sys.executable, "-m", "gst.cli", "sweep", "--local", file, "--trials", "13", "--out", "killed"]
    killed(command, signal.SIGKILL)
    assert len(tried()) == 4
    assert main([*command[3:], "--resume", "--json", "r.json"]) == 0
    assert tried() == [*whole[:4], *whole[3:]]  # the one under way once more, and nothing else
    assert len(json.loads(Path("r.json").read_text())["trials"]) == 13


def killed(command: list[str], number: int) -> None:
    """Run a sweep, end it during the fourth trial, and wait for the end of that trial."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        while Path("stuck").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(number)
    ends(int(Path("trial").read_text()))


def ends(trial: int) -> None:
    """Wait for the end of a process whose parent was killed."""
    deadline = time.monotonic() + 30
    while is_running(trial) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(trial)


# On the hosts of a cluster -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    if find_spec("ray") is None:
        pytest.skip("ray is not installed (extra ray)")
    with cluster_here() as patch:
        import ray

        patch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)  # of controllers that tests start
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # the address is of the loopback interface
        yield "ray"


def outcomes(path: str) -> list[tuple[Any, ...]]:
    return [
        (each["number"], each["parameters"], each["value"]) for each in json.loads(Path(path).read_text())["trials"]
    ]


@pytest.mark.e2e
def test_trials_on_a_cluster_are_those_here(cluster: str) -> None:
    command = ["sweep", "--local", sweep_file(method="bayes"), "--trials", "12", "--at-once", "1"]
    assert main([*command, "--out", "here", "--json", "here.json"]) == 0
    assert main([*command, "--out", "there", "--json", "there.json", "--workers", cluster]) == 0
    assert outcomes("here.json") == outcomes("there.json") and tried()[:12] == tried()[12:]
    written = [{path.name for path in Path(out).glob("trial-*/*")} for out in ("here", "there")]
    assert written[0] == written[1] == {"output.log", "result.json"}


@pytest.mark.e2e
def test_a_killed_worker_costs_its_trial_alone_which_runs_again(cluster: str) -> None:
    file = sweep_file(command=["${interpreter}", "script.py", "--out=elsewhere", "${args}"])
    Path("lost").touch()
    command = ["sweep", "--local", file, "--trials", "4", "--out", "out", "--at-once", "1", "--workers", cluster]
    assert main([*command, "--json", "r.json"]) == 0
    ends(int(Path("trial").read_text()))
    assert [each[0] for each in outcomes("r.json")] == [0, 1, 2, 3] and tried()[1] == tried()[2] and len(tried()) == 5
    assert not list(Path("out").glob("*/left"))  # of the attempt that was lost


@pytest.mark.e2e
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_controller_that_was_ended_ends_its_trials_and_goes_on(cluster: str, number: int) -> None:
    file = sweep_file(parameters={"x": {"min": 0.0, "max": 1.0}, "y": {"value": "a"}})
    Path("stuck").touch()
    command = ["sweep", "--local", file, "--trials", "6", "--out", "out", "--at-once", "1", "--workers", cluster]
    killed([sys.executable, "-m", "gst.cli", *command], number)
    assert len(tried()) == 4
    assert main([*command, "--resume", "--json", "r.json"]) == 0
    assert len(tried()) == 7 and tried()[3] == tried()[4] and len(set(tried())) == len(outcomes("r.json")) == 6


@pytest.mark.e2e
def test_failures_on_a_cluster_are_told_as_here(cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = sweep_file(parameters={"x": {"min": 0.0, "max": 1.0}, "y": {"value": "bad"}})
    said = refused(capsys, "--local", file, "--out", "out", "--workers", cluster)
    assert "3 trials in a row failed, the last one with: exit status 1: it does not work" in said


@pytest.mark.e2e
def test_a_folder_that_hosts_do_not_share_is_named(cluster: str) -> None:
    from gst.training import sweep_hosts

    _, begin = sweep_hosts.on_hosts(1)
    trial = begin(["python"], "sweep", Path("out"))
    Path("out").rmdir()  # as if it were on another host; the cluster is busy for longer with a process that starts
    with pytest.raises(ValueError, match=r"out is not on .*; give an --out that all hosts share"):
        while trial.poll() is None:
            time.sleep(0.02)


@pytest.mark.parametrize(
    ("hosts", "limit", "most", "expected"),
    [
        ([(8, 0), (8, 0)], "CPU", 2, (2, 8)),  # a host each
        ([(8, 0), (8, 0)], "CPU", 3, (3, 4)),
        ([(8, 0), (2, 0)], "CPU", 1, (1, 8)),
        ([(8, 0), (2, 0)], "CPU", 100, (10, 1)),
        ([(8, 2), (16, 4), (64, 0)], "GPU", 100, (6, 4)),
        ([(8, 2), (16, 4), (64, 0)], "GPU", 1, (1, 16)),
        ([(1, 4)], "GPU", 4, (1, 1)),
    ],
)
def test_trials_have_equal_shares_of_hosts(
    hosts: list[tuple[int, int]], limit: str, most: int, expected: tuple[int, int]
) -> None:
    shares = pytest.importorskip("gst.training.sweep_hosts", exc_type=ImportError).shares
    assert shares([{"CPU": cores, "GPU": gpus} for cores, gpus in hosts], limit, most) == expected
    with pytest.raises(ValueError, match="no host of the cluster has a core"):
        shares([{"CPU": 0}, {}], limit, most)


def test_bayes_tries_better_values_than_chance() -> None:
    """The first ten are drawn by chance; of four more the mean would be 0.96 of theirs, where `bayes` has 0.6."""
    assert main(["sweep", "--local", sweep_file(method="bayes"), "--trials", "14", "--json", "r.json"]) == 0
    values = [each["value"] for each in json.loads(Path("r.json").read_text())["trials"]]
    assert sum(values[10:]) / 4 < 0.8 * sum(values[:10]) / 10


def test_failed_trials_are_told_and_three_in_a_row_end_the_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    file = sweep_file(method="grid", parameters={"x": {"values": [0, 1]}, "y": {"values": ["a", "bad"]}})
    assert main(["sweep", "--local", file, "--out", "some", "--json", "r.json"]) == 0
    errors = [each["error"] for each in json.loads(Path("r.json").read_text())["trials"]]
    assert errors == ["", "exit status 1: it does not work"] * 2
    assert "failed: exit status 1: it does not work" in capsys.readouterr().out
    file = sweep_file(parameters={"x": {"min": 0.0, "max": 1.0}, "y": {"value": "bad"}})
    said = refused(capsys, "--local", file, "--out", "all")
    assert "3 trials in a row failed" in said and "it does not work" in said and "trial-0002/output.log" in said
    file = sweep_file(metric={"name": "accuracy"})
    assert "no finite 'accuracy'; it has loss" in refused(capsys, "--local", file, "--out", "other")


NUMBERS = {
    "{distribution: log_uniform_values, min: 1e-5, max: 1e-2}": (1e-5, 1e-2),
    "{min: '1e-5', max: '0.1'}": (1e-5, 0.1),
    "{distribution: uniform, min: -1E+2, max: 1.5e3}": (-100.0, 1500.0),
    "{distribution: int_uniform, min: 1e0, max: 1e3}": (1, 1000),
}


@pytest.mark.parametrize("written", NUMBERS)
def test_numbers_with_an_exponent_are_numbers(written: str) -> None:
    """YAML 1.1 reads `1e-5` as text, since it has no point, and `1.5e3` too, since its exponent has no sign."""
    Path("sweep.yaml").write_text(sweep_text(written))
    distribution = read_sweep(Path("sweep.yaml")).parameters["lr"]
    assert (distribution.low, distribution.high) == NUMBERS[written]
    assert type(distribution.low) is type(NUMBERS[written][0]) or distribution.low == NUMBERS[written][0]


@pytest.mark.parametrize(
    ("written", "values"),
    [("[1e-3, 1E-4]", (1e-3, 1e-4)), ("['1e-3', e5, 1e, 2021-01e1]", ("1e-3", "e5", "1e", "2021-01e1"))],
)  # fmt: skip
def test_values_with_an_exponent_are_numbers_and_texts_stay_texts(written: str, values: tuple[Any, ...]) -> None:
    Path("sweep.yaml").write_text(sweep_text(f"{{values: {written}}}"))
    assert read_sweep(Path("sweep.yaml")).parameters["lr"].choices == values


def sweep_text(parameter: str) -> str:
    command = "command: [gst, fit, '${args}']"
    return f"method: random\nmetric: {{name: val/tau, goal: maximize}}\nparameters:\n  lr: {parameter}\n{command}\n"


@pytest.mark.e2e
def test_checkpoints_of_a_trial_are_in_its_directory_and_named_in_its_result() -> None:
    Path("small.yaml").write_text(SMALL)
    command = ["gst", "fit", "--config=small.yaml", "${args}"]
    parameters = {"optimizer.init_args.lr": {"values": [1e-3, 1e-2]}}
    file = sweep_file(
        method="grid", metric={"name": "val/tau", "goal": "maximize"}, parameters=parameters, command=command
    )
    assert main(["sweep", "--local", file, "--out", "out"]) == 0
    for number in (0, 1):
        folder = Path(f"out/trial-000{number}").resolve()
        (named,) = json.loads((folder / "result.json").read_text())["checkpoints"]
        assert Path(named).parent == folder / "checkpoints" and Path(named).is_file()
        assert (folder / "config.yaml").is_file() and (folder / "report.html").is_file()
    assert not Path("run").exists()


def test_no_trial_begins_after_one_that_reached_the_target() -> None:
    grid = {"x": {"values": [0.0, 0.25, 1.0]}, "y": {"values": ["bb", "a"]}}
    metric, words = {"name": "loss", "target": 1.1}, ["${env}", "${interpreter}", "${program}", "${args}"]
    file = sweep_file(method="grid", parameters=grid, metric=metric, program="script.py", command=words)
    assert main(["sweep", "--local", file, "--out", "out"]) == 0
    assert tried() == ["0.0 bb", "0.0 a"]


def test_results_are_never_mixed(capsys: pytest.CaptureFixture[str]) -> None:
    file = sweep_file()
    assert main(["sweep", "--local", file, "--trials", "1", "--out", "out"]) == 0
    assert "out holds a sweep already" in refused(capsys, "--local", file, "--out", "out")
    assert "of another file or --seed" in refused(capsys, "--local", file, "--out", "out", "--resume", "--seed", "1")
    file = sweep_file(parameters={"x": {"min": 0.0, "max": 2.0}, "y": {"value": "a"}})
    assert "of another file or --seed" in refused(capsys, "--local", file, "--out", "out", "--resume")
    assert len(tried()) == 1


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"method": "custom"}, "method is 'custom'; want one of grid, random, bayes"),
        ({"parameters": {"x": {"min": 2, "max": 1}}}, "x: "),
        ({"parameters": {"x": {"min": 1}}}, "'min' has no effect here; x, a categorical, has values"),
        ({"parameters": {"x": {"distribution": "beta", "a": 1}}}, "x has distribution 'beta'; known here are"),
        ({"parameters": {"x": {"values": [[1, 2]]}}}, "write lists as text"),
        ({"command": ["gst", "--config=nowhere.yaml", "${args}"]}, "has --config=nowhere.yaml, and there is no such"),
        ({"method": "grid"}, "x has infinitely many values"),
        ({"command": ["${args_json}", "${args}"]}, "command has '${args_json}'"),
        ({"controller": {"type": "local"}}, "'controller' has no effect here; a sweep file has command, "),
        ({"metric": {"name": "loss", "impute": "worst"}}, "'impute' has no effect here"),
        ({"parameters": {"x": {"values": [1, 2], "probabilities": [0.9, 0.1]}}}, "'probabilities' has no effect here"),
        ({"parameters": {"x": {"parameters": {"y": {"value": 1}}}}}, "'parameters' has no effect here; x, a categ"),
    ],
)
def test_what_cannot_be_run_here_is_one_line(
    changed: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(capsys, "--local", sweep_file(**changed))
    assert "`wandb sweep sweep.yaml`" in refused(capsys, "sweep.yaml")
    assert not Path("tried.txt").exists()


def test_the_metric_is_of_the_best_epoch_else_of_the_last_else_of_the_result() -> None:
    metrics = {"metrics": {"val/tau": 0.5}, "epochs": 3}
    assert metric_of({"best": {"val/tau": 0.7}, **metrics}, "val/tau") == 0.7
    assert metric_of({"best": None, **metrics}, "val/tau") == 0.5
    assert metric_of({"best": "ours", **metrics}, "epochs") == 3
    with pytest.raises(ValueError, match="no finite 'val/tau'; it has"):
        metric_of({"metrics": {"val/tau": float("nan")}}, "val/tau")
