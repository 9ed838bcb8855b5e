"""`gst demo`: its three parts at small sizes, the files of each, `--resume`, and the command itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gst.cli import demo_parts
from gst.cli.command_line import main
from gst.cli.demo import run_demo
from gst.cli.demo_parts import Sizes, growth, ranking, train
from gst.data.loader import StepLoader, split
from gst.data.tpugraphs import read
from gst.graphs.segments import segment
from gst.machine.load import LoadMeter
from gst.method.estimator import GraphSegmentTraining
from gst.nn import SAGE, Head
from gst.reporting.demo import NEXT
from gst.util.progress import no_progress

TINY = Sizes((1_000, 4_000), 2_000, 3, 4, "rnnlm:layers=1,steps=1,hidden=16,vocabulary=20", 2, 0.0)


@pytest.mark.e2e
@pytest.mark.slow
def test_growth_measures_every_size_in_a_process_of_its_own(tmp_path: Path) -> None:
    record = growth(TINY, tmp_path, 0, False, no_progress)
    assert [entry["nodes"] for entry in record["segments"]] == [1_000, 4_000]
    assert [entry["nodes"] for entry in record["whole"]] == [1_000, 4_000]
    assert [entry["segments"] for entry in record["whole"]] == [1, 1]
    assert record["segments"][1]["segments"] >= 4 and record["compared"]["segments"]["segments"] >= 20
    for entry in (*record["segments"], *record["whole"]):
        assert 100 < entry["peak_mib"] < 4_000 and entry["step_ms"] > 0 and entry["prepare_s"] > 0
    assert all(0 <= record["compared"][mode]["wrong_pairs"] <= 1 for mode in ("segments", "whole"))
    assert list(tmp_path.iterdir()) == [], "stores are removed"


def test_ranking_learns_and_is_compared_with_linear_regressions(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    record = ranking(TINY, tmp_path, 0, False, lambda what, done, total: told.append((done, total)))
    layouts = record["held_out"]["graphs"][0]
    assert told[-1] == (4, 4) and len(layouts["predicted"]) == len(layouts["measured"]) == record["num_held_out"] == 300
    assert record["num_train"] + record["num_held_out"] == 1_175 and record["nodes"] == 372
    assert set(record["tau"]) == {"GST", "linear regression on sums", "linear regression on each node"}
    assert 0.4 < record["tau"]["linear regression on sums"] < 0.6 < record["tau"]["linear regression on each node"]
    assert layouts["tau"] == record["tau"]["GST"] and min(layouts["measured"]) > 1e5


def test_finished_parts_stay_after_an_interruption_and_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def part(name: str, stops: bool = False) -> Any:
        def run(*arguments: Any) -> dict[str, Any]:
            calls.append(name)
            if stops:
                raise KeyboardInterrupt
            return {"value": name}

        return run

    for name in NEXT:
        monkeypatch.setattr(demo_parts, name, part(name, stops=name == "placement"))
    arguments = (TINY, tmp_path, 0)
    with pytest.raises(KeyboardInterrupt):
        run_demo(*arguments, False, "gst demo", no_progress)
    assert json.loads((tmp_path / "ranking.json").read_text())["value"] == "ranking"
    page = (tmp_path / "report.html").read_text()
    assert "2 of 3 parts" in page
    monkeypatch.setattr(demo_parts, "placement", part("placement"))
    record = run_demo(*arguments, True, "gst demo --resume", no_progress)
    assert calls == ["growth", "ranking", "placement", "placement"] and record["placement"]["value"] == "placement"
    run_demo(TINY, tmp_path, 1, True, "gst demo --seed 1 --resume", no_progress)
    assert calls[4:] == list(NEXT), "another seed measures anew"


def test_parts_are_smaller_on_busy_cores_and_share_the_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sizes] = []

    def run(sizes: Sizes, *arguments: Any) -> dict[str, Any]:
        asked.append(sizes)
        return {"tau": {"GST": 0.5}}

    for name in NEXT:
        monkeypatch.setattr(demo_parts, name, run)
    for share in (0.0, 0.9):
        monkeypatch.setattr(LoadMeter, "share", lambda meter, share=share: share)
        run_demo(Sizes(), tmp_path, 0, False, "gst demo", no_progress)
    assert [each.nodes for each in asked] == 3 * [Sizes().nodes] + 3 * [demo_parts.QUICK.nodes]
    growing, ranked, placed = (each.seconds for each in asked[:3])
    assert 0 < ranked < growing < placed <= Sizes().seconds, "seconds that a part leaves are those of the next"
    assert "smaller ones, as other processes took 90% of the cores" in (tmp_path / "report.html").read_text()
    run_demo(Sizes(), tmp_path, 0, True, "gst demo --resume", no_progress)
    assert len(asked) == 6, "a smaller part is finished too"


def test_a_training_ends_with_its_time_and_its_rate_has_fallen_by_then() -> None:
    graph = segment(read(Path(__file__).parents[1] / "fixtures" / "alexnet_small.npz"), 128)
    rates: list[float] = []

    class Watched(torch.optim.AdamW):
        def step(self, closure: Any = None) -> None:
            super().step()
            rates.append(self.param_groups[0]["lr"])

    for seconds in (0.0, 0.5):
        rates.clear()
        model = GraphSegmentTraining(SAGE(8, 1, config_symbols=7), Head(8), "sum", num_fresh=1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.optim, "AdamW", Watched)
            loader = StepLoader(split([graph], "configs", 10, 0, 0)[0], 1, 4)
            ended = list(train(model, loader, 100_000, 1e-3, seconds))
        assert len(ended) == len(rates) < 100_000 and rates == sorted(rates, reverse=True) and rates[0] == 1e-3
    assert rates[-1] < 0.5e-3


@pytest.mark.e2e
@pytest.mark.slow
def test_the_command_shows_three_gains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo_parts, "QUICK", TINY)
    assert main(["demo", "--quick", "--out", "out", "--json", "demo.json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[:3]] == [title for title, _ in NEXT.values()]
    assert lines[3] == "Look at out/report.html"
    record = json.loads(Path("demo.json").read_text())
    assert record["placement"]["cost_model"]["num_measured"] == 2
    page = Path("out/report.html").read_text()
    assert "Predicted before, measured after" in page
    assert {path.name for path in Path("out").iterdir()} >= {"growth.json", "ranking.json", "placement.json"}
