"""Labels and scores of circuits that a model never saw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.reproductions.circuits.labels import label, planned_jobs
from experiments.reproductions.circuits.predictor import load_predictor
from experiments.reproductions.circuits.training import example, mean_score, score
from gst.util.progress import bar, notice


def evaluate(
    data: Path, checkpoint: Path, labels: Path, number: int, seed: int, processes: int, timeout: float,
    recipes: Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    """`tau` and `error` of each circuit below `data`, and their means.

    `tau` is Kendall's, of the predicted ratio of ANDs against the labels over recipes; None where the labels are all
    equal, and the mean leaves such circuits out. `error` is the mean of |predicted - labelled| / labelled ANDs.
    """
    predictor = load_predictor(checkpoint)
    jobs = planned_jobs(data, recipes, number, seed)
    counts = label(jobs, labels, processes, timeout)
    scores: dict[str, Any] = {}
    files = list({job.file.name: job.file for job in jobs}.values())
    for file in bar(files, desc="scores"):
        in_time = {
            job.recipe: found for job in jobs if job.file == file and (found := counts[job.key]) is not None
        }  # fmt: skip
        if not in_time:
            notice(f"{file.path}: no recipe ended within {timeout:.0f} s; it is not scored, raise --timeout")
            continue
        each = example(file, in_time)
        scores[file.name] = score(predictor.predict(each), each)
    if not scores:
        raise ValueError(f"{data}: no circuit could be labelled within {timeout:.0f} s a recipe; raise --timeout")
    return {**mean_score(scores), "circuits": scores}
