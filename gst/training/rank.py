"""`gst rank`: scores of the configurations of one program from a trained checkpoint."""

from __future__ import annotations

from argparse import ArgumentError
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from gst.data.tpugraphs import read
from gst.graphs.graph import Graph
from gst.graphs.segments import SegmentedGraph, segment
from gst.training.datamodule import SegmentDataModule
from gst.training.module import SegmentTrainingModule
from gst.util.copies import local_copy
from gst.util.progress import Bars
from gst.util.untrusted import DAMAGE, plain, read_tensors


def load(
    checkpoint: Path | str, trusted: Sequence[str] = ()
) -> tuple[SegmentTrainingModule, Callable[[Graph], SegmentedGraph]]:
    """Return the model of a checkpoint in evaluation mode, and the function that cuts a graph.

    The checkpoint may name networks of this package, torch, listed layers of torch_geometric and `trusted` packages.

    Raises:
        ValueError: it is missing, damaged, or not a checkpoint of `gst fit`.
    """
    checkpoint = local_copy(checkpoint)
    if not checkpoint.is_file():
        raise ValueError(f"{checkpoint}: there is no such checkpoint; train one with `gst fit`")
    try:
        content = read_tensors(checkpoint)
        segmentation, derivation = content["segmentation"], content.get(SegmentDataModule.__qualname__)
        model = SegmentTrainingModule.load_from_checkpoint(
            checkpoint, map_location="cpu", weights_only=True, strict=False,
            trusted=[f"{name.rstrip('.')}." for name in trusted],
        )  # fmt: skip
    except (*DAMAGE, ArgumentError) as error:
        raise ValueError(f"{checkpoint}: not a checkpoint of `gst fit` ({plain(error, 400)})") from error
    if derivation not in (None, {}, {"features": [], "reduction": "none"}):
        raise ValueError(f"{checkpoint} was trained on derived node features, which this version lacks; train it again")
    return model.eval(), partial(segment, **segmentation)


@contextmanager
def opened(
    checkpoint: Path | str, program: Path | str | Graph, trusted: Sequence[str] = ()
) -> Iterator[tuple[SegmentTrainingModule, SegmentedGraph]]:
    """Load the model of a checkpoint, and cut a graph, or that of a TpuGraphs file, as its training did.

    Raises:
        ValueError: a file is wrong, or the checkpoint is of graphs with other features.
    """
    model, cut = load(checkpoint, trusted)
    graph = cut(program if isinstance(program, Graph) else read(program, merge=False))
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    model = model if accelerator is None or accelerator.type == "mps" else model.to(accelerator)  # mps: no float64
    try:
        yield model, graph
    except torch.OutOfMemoryError as error:
        raise ValueError(f"the accelerator is full ({plain(error)}); CUDA_VISIBLE_DEVICES= uses the CPU") from error
    except (AssertionError, RuntimeError) as error:  # widths of lazy layers
        raise ValueError(
            f"{graph.name} does not have the features {checkpoint} was trained on ({plain(error)})"
        ) from error


def score(model: SegmentTrainingModule, graph: SegmentedGraph) -> Float[np.ndarray, " configs"]:
    """Return scores of all configurations; the lower, the faster. A head of several outputs raises ValueError."""
    with Bars() as bars:
        scores = model.estimator.scores(graph, configs_at_once=256, progress=bars.show)
    if scores.dim() > 1:
        raise ValueError(f"it tells {scores.shape[1]} classes apart, or predicts as many targets; it ranks nothing")
    return (scores + model.offset.float()).cpu().numpy()
