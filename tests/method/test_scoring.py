"""Scores by one recorded graph for all segments are those of the estimator."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gst
from gst.data.synthetic import synthetic_program
from gst.graphs.segments import SegmentedGraph, segment
from gst.method import encoding, scoring
from gst.method.estimator import GraphSegmentTraining
from gst.method.fixed_batch import Sizes
from gst.method.scoring import RecordedEncoding, recorded_encoding
from tests.choices import with_rest
from tests.execution.recorded import Spoilt, pooled
from tests.method.host_waits import TakesSegments

CONFIGS = 50
ENCODERS = {name: partial(encoder, 8, 2, 8, config_symbols=7) for name, encoder in gst.nn.ENCODERS.items()}


@pytest.fixture
def graph() -> SegmentedGraph:
    return segment(synthetic_program(400, CONFIGS, 5, configurable=0.1), 60)


def model(graph: SegmentedGraph, encoder: nn.Module, pooling: Any = "sum") -> GraphSegmentTraining:
    torch.manual_seed(0)
    made = GraphSegmentTraining(encoder, nn.Linear(8, 1), pooling)
    made.exact([graph])
    return made.eval()


def recorded(monkeypatch: pytest.MonkeyPatch, made: GraphSegmentTraining, graph: SegmentedGraph) -> tuple[Any, Any]:
    """Let scores come from a recording of 16 configurations; return it and its graph."""
    monkeypatch.setattr(encoding, "pool_nodes", pooled)
    stands_for = Spoilt()
    sizes = Sizes.of([graph], 1, 1, 16, made.encoder)
    encode = RecordedEncoding(made, sizes, lambda device: stands_for, is_recorded=True)
    monkeypatch.setattr(scoring, "recorded_encoding", lambda *_: encode)
    return encode, stands_for


@pytest.mark.parametrize("encoder", with_rest(ENCODERS, ["SAGE"]))
def test_scores_of_replays_are_those_of_the_estimator(
    encoder: str, graph: SegmentedGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = model(graph, ENCODERS[encoder]())
    want = made.scores(graph)
    encode, stands_for = recorded(monkeypatch, made, graph)
    torch.testing.assert_close(made.scores(graph), want, rtol=1e-4, atol=1e-5)
    assert encode.recorded.reason == "" and stands_for.replays > 5


def test_a_graph_that_holds_an_old_number_is_left(graph: SegmentedGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    class Scaled(gst.nn.SAGE):
        def forward(self, batch: Any) -> Any:
            states = super().forward(batch)
            host = batch if batch.host is None else batch.host
            factor = float(host.node_features[host.owned].abs().mean())
            return type(states)(states.rows * factor, states.row_of)

    made = model(graph, Scaled(8, 2, 8, config_symbols=7))
    want = made.scores(graph)
    encode, stands_for = recorded(monkeypatch, made, graph)
    torch.testing.assert_close(made.scores(graph), want, rtol=1e-4, atol=1e-5)
    assert encode.recorded.reason.startswith("a replay computes something else") and stands_for.replays == 1


def test_a_full_memory_is_a_reason_to_encode_one_by_one(graph: SegmentedGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    made = model(graph, ENCODERS["SAGE"]())
    want = made.scores(graph)
    encode, _ = recorded(monkeypatch, made, graph)

    def full(batch: Any) -> None:
        raise torch.OutOfMemoryError("out of memory: tried to allocate 2 GiB")

    monkeypatch.setattr(encode.batch, "fill", full)
    torch.testing.assert_close(made.scores(graph), want, rtol=1e-5, atol=1e-5)
    assert "2 GiB" in encode.recorded.reason


def test_it_is_for_an_accelerator_many_parts_and_fixed_shapes(
    graph: SegmentedGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = model(graph, ENCODERS["SAGE"]())
    assert recorded_encoding(made, graph, CONFIGS) is None
    monkeypatch.setattr(scoring, "is_here", lambda device: True)
    assert recorded_encoding(made, graph, CONFIGS) is None, "seven segments under all configurations at once"
    made.max_rows = 10 * int(np.diff(graph.row_ptr).max())
    encode = recorded_encoding(made, graph, CONFIGS)
    assert encode is None, "padded plans have too many more rows"
    monkeypatch.setattr(scoring, "MOST_PADDING", 9.0)
    encode = recorded_encoding(made, graph, CONFIGS)
    assert encode is not None and encode.batch.sizes.configs == 10
    new = GraphSegmentTraining(ENCODERS["SAGE"](), nn.Linear(8, 1), "sum", max_rows=made.max_rows)
    assert recorded_encoding(new, graph, CONFIGS) is None, "lazy layers have no shapes yet"
    handle = made.encoder.register_forward_hook(lambda *_: None)
    assert recorded_encoding(made, graph, CONFIGS) is None, "a replay runs no hooks"
    handle.remove()
    other = model(graph, TakesSegments(ENCODERS["SAGE"]()))
    other.max_rows = made.max_rows
    assert recorded_encoding(other, graph, CONFIGS) is None
    assert recorded_encoding(model(graph, ENCODERS["SAGE"](), "attention"), graph, CONFIGS) is None
    monkeypatch.setattr(scoring, "MOST_PADDING", 99.0)
    made.max_rows = (CONFIGS + 10) * int(np.diff(graph.row_ptr).max())  # more than there are: some of them twice
    encode = recorded_encoding(made, graph, 4 * CONFIGS)
    assert encode is not None and encode.batch.sizes.configs == CONFIGS + 10


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: nothing records graphs")
@pytest.mark.parametrize("encoder", ENCODERS)
def test_scores_of_a_gpu_are_those_of_the_cpu(
    encoder: str, graph: SegmentedGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, made_for = model(graph, ENCODERS[encoder]()), []

    def remembered(*arguments: Any) -> Any:
        made_for.append(recorded_encoding(*arguments))
        return made_for[-1]

    monkeypatch.setattr(scoring, "recorded_encoding", remembered)
    monkeypatch.setattr(scoring, "MOST_PADDING", 9.0)
    made.max_rows = 16 * int(np.diff(graph.row_ptr).max())
    want, got = made.scores(graph), made.to("cuda").scores(graph)
    assert [each is not None and each.recorded.reason for each in made_for] == [False, ""]
    torch.testing.assert_close(got.cpu(), want, rtol=1e-3, atol=1e-4)
