"""`gst fit` ends with a page of what it logged; a resumed training's page shows all of its epochs."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest
from report_html import Html, faults

from gst.cli import main

ROOT = Path(__file__).parents[2]
FIT = [
    "fit", "--config", str(ROOT / "experiments/configs/giant_synthetic.yaml"), "--trainer.logger=false",
    "--data.source.init_args.num_nodes=1000", "--data.source.init_args.num_configs=40", "--data.max_nodes=100",
    "--data.num_valid=8", "--data.num_test=8", "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false", "--trainer.accelerator=cpu", "--trainer.callbacks=[]",
    "--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint", "--trainer.callbacks.filename=last",
    "--trainer.callbacks.enable_version_counter=false", "--trainer.callbacks.dirpath=runs/made/checkpoints",
]  # fmt: skip


@pytest.fixture(autouse=True)
def in_own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def epochs(page: Path) -> list[list[str]]:
    """The rows of the table of epochs."""
    rows = re.findall(r"<tr>(.*?)</tr>", page.read_text().split('aria-label="Epochs"')[1].split("</table>")[0])
    return [[html.unescape(cell) for cell in re.findall(r"<t[hd][^>]*>([^<]*)", row)] for row in rows]


def test_the_page_shows_what_was_logged_and_goes_on_after_a_resume(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path("runs/made/report.html")
    assert main([*FIT, "--trainer.max_epochs=2", "--json", "fit.json"]) == 0
    printed, control = capsys.readouterr().out, json.loads(Path("fit.json").read_text())["control"]["tau"]
    assert f"Look at {page.resolve()}" in printed
    assert f"ridge regression on sums {control:.3f}, this model" in printed
    first, text = epochs(page), Html(page.read_text()).text
    assert faults(page.read_text()) == []
    metrics = json.loads(Path("fit.json").read_text())["metrics"]
    heads, rows = first[0], first[1:]
    assert [row[0] for row in rows] == ["1", "2"]
    last = dict(zip(heads, rows[-1], strict=True))
    assert last["Kendall's tau"] == f"{metrics['val/tau']:.4f}"
    for words in ("GST+E, difference", "SyntheticPrograms(", "SAGE", "made", "gst fit --config", "slowest"):
        assert words in text, words
    assert f"{100 * metrics['table/share_unknown']:.2f} %" in page.read_text()
    assert f"{control:.3f} Kendall's tau of the control" in text
    assert "validation" in text and "8 configurations held out" in text

    resumed = [*FIT, "--trainer.max_epochs=3", "--ckpt_path=runs/made/checkpoints/last.ckpt"]
    assert main(resumed) == 0
    again = epochs(page)
    assert again[: len(first)] == first and len(again) == len(first) + 1


def test_without_checkpoints_there_is_no_page() -> None:
    without = [word for word in FIT if "callbacks" not in word]
    assert main([*without, "--trainer.callbacks=[]", "--trainer.fast_dev_run=1"]) == 0
    assert not list(Path().rglob("report.html"))
