"""Scores of the configurations of one program, from a checkpoint."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from tqdm import tqdm

from gst.data.derivation import derived
from gst.data.tpugraphs import read
from gst.graph import Graph
from gst.segments import SegmentedGraph, segment
from gst.training.datamodule import SegmentDataModule
from gst.training.module import SegmentTrainingModule

UNCHANGED = {"features": (), "reduction": "none"}


def load(checkpoint: Path) -> tuple[SegmentTrainingModule, Callable[[Graph], SegmentedGraph]]:
    """The model of a checkpoint in evaluation mode, and what makes of a graph the segments it would have learned from.

    Raises:
        ValueError: it is missing, damaged, or not a checkpoint of `gst fit`.
    """
    if not checkpoint.is_file():
        raise ValueError(f"{checkpoint}: there is no such checkpoint; train one with `gst fit`")
    try:
        content = torch.load(checkpoint, map_location="cpu", weights_only=True)
        segmentation, derivation = content["segmentation"], content.get(SegmentDataModule.__qualname__, UNCHANGED)
        model = SegmentTrainingModule.load_from_checkpoint(
            checkpoint, map_location="cpu", weights_only=True, strict=False
        )
    except (KeyError, TypeError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{checkpoint}: not a checkpoint of `gst fit` ({first_line})") from error
    return model.eval(), lambda graph: segment(derived(graph, **derivation), **segmentation)


def rank(checkpoint: Path, file: Path, configs_at_once: int = 256) -> Float[np.ndarray, " configs"]:
    """Scores of all configurations of `file`, in its order; the lower, the faster. Memory does not grow with them."""
    model, cut = load(checkpoint)
    if model.loss == "cross_entropy":
        raise ValueError(f"{checkpoint} tells classes apart; it ranks nothing")
    graph = cut(read(file, merge=False))
    try:
        return score(model, graph, configs_at_once)
    except (AssertionError, RuntimeError) as error:  # widths of lazy layers
        first_line = str(error).splitlines()[0]
        raise ValueError(f"{file} does not have the features {checkpoint} was trained on ({first_line})") from error


def score(model: SegmentTrainingModule, graph: SegmentedGraph, configs_at_once: int) -> Float[np.ndarray, " configs"]:
    parts = torch.arange(graph.num_configs).split(configs_at_once)
    scores = [model.estimator.exact([graph], part[None])[0] for part in tqdm(parts, "scoring", delay=2, leave=False)]
    return (torch.cat(scores).cpu() + model.offset.float()).numpy()
