"""Steps of padded batches are the steps of the estimator, and replays of one recording are such steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gst
from embedding_cache import EmbeddingTable
from gst.cost.losses import pairwise_hinge
from gst.method import encoding
from gst.method.batch import assemble
from gst.method.encoding import call_of, embed_segments
from gst.method.estimator import GraphSegmentTraining
from gst.method.fixed_step import FixedStep, Sizes
from gst.training.recorded_step import RecordedStep
from tests.devices.execute.recorded import RecordedGraph
from tests.method.host_waits import Messages, graphs

VARIANTS: dict[str, Callable[[], dict[str, Any]]] = {
    "one": lambda: {"omit_rest": True},
    "dropout": lambda: {"table": EmbeddingTable(1, 16), "estimate": "dropout", "keep_probability": 0.5},
    "stale": lambda: {"table": EmbeddingTable(1, 16), "estimate": "dropout", "num_fresh": 2},
    "fixed": lambda: {"table": EmbeddingTable(1, 16), "estimate": "fixed_dropout", "keep_probability": 0.5},
    "difference": lambda: {"table": EmbeddingTable(1, 16), "num_fresh": 2},
}
POOLINGS = ("sum", "mean", "max")
ENCODERS: dict[str, Callable[[], nn.Module]] = {
    "of another": Messages,
    "SAGE": lambda: gst.nn.SAGE(16, 2, 4),
    "SAGE unshared": lambda: gst.nn.SAGE(16, 2, 4, share=False),
    "SAGE max": lambda: gst.nn.SAGE(16, 2, 4, aggregation="max"),
    "SAGE over nodes": lambda: gst.nn.SAGE(16, 1, 4, normalise_over="nodes", channel_attention=True),
    "GCN": lambda: gst.nn.GCN(16, 2, 4),
    "GIN": lambda: gst.nn.GIN(16, 2, 4),
    "GAT": lambda: gst.nn.GAT(16, 2, 4),
    "FusedSAGE": lambda: gst.nn.FusedSAGE(16, 1, 1, 4),
}
STEPS = 8


def pooled(states: Any, batch: Any, pooling: Any) -> Tensor:
    """`pool_nodes` without kernels of the CPU alone, which cannot be recorded."""
    total = encoding._pool_owned_with_torch(states, batch, pooling)
    return total / batch.node_counts[:, None, None] if pooling == "mean" else total


def loss_of(scores: Tensor, targets: Tensor) -> Tensor:
    """Of order and of value, so that each step changes it."""
    return pairwise_hinge(scores, targets, 0.1) + (scores - targets).square().mean()


class Training:
    """A model, its optimizer, and data that change from step to step."""

    def __init__(self, variant: str, pooling: Any, device: str = "cpu", encoder: str = "of another") -> None:
        torch.manual_seed(0)
        self.data, self.device = graphs(), device
        model = GraphSegmentTraining(ENCODERS[encoder](), nn.Linear(16, 1), pooling, **VARIANTS[variant]())
        model.exact(self.data)  # lazy layers take their widths
        self.model = model.to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-4, momentum=0.9)
        self.sizes = Sizes.of(self.data, 2, self.model.num_fresh, 3, self.model.encoder)

    def step(self, number: int) -> tuple[Any, Tensor, Tensor]:
        drawn = torch.Generator().manual_seed(number)
        configs = torch.stack([torch.randperm(5, generator=drawn)[:3] for _ in self.data])
        return self.data, configs, torch.rand(2, 3, generator=drawn)

    def eager(self) -> list[float]:
        """Losses of the estimator's own steps, nothing padded."""
        losses = []
        for number in range(STEPS):
            data, configs, targets = self.step(number)
            loss = loss_of(self.model(data, configs).squeeze(-1), targets.to(self.device))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return losses

    def fixed(self) -> FixedStep:
        return FixedStep(self.model, loss_of, self.optimizer, self.sizes)


class Replayed(RecordedGraph):
    """Recording on an accelerator computes nothing: what it has done here to the state of a training is undone."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self.training, self.saved, self.replays = training, list[tuple[Tensor, Tensor]](), 0

    def capture_begin(self) -> None:
        momenta = [each["momentum_buffer"] for each in self.training.optimizer.state.values()]
        state = [*self.training.model.parameters(), *momenta]
        self.saved = [(each, each.detach().clone()) for each in state]
        super().capture_begin()

    def capture_end(self) -> None:
        super().capture_end()
        for each, before in self.saved:
            each.data.copy_(before)

    def replay(self) -> None:
        self.replays += 1
        self.spoil()
        with torch.no_grad():
            super().replay()


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("more", [(1, 0, 0), (9, 5, 3)])
def test_padding_changes_neither_embeddings_nor_gradients(pooling: Any, more: tuple[int, int, int]) -> None:
    data, encoder = graphs(), Messages().double()
    batch = assemble(data, [(0, 1), (1, 0), (1, 2)], torch.tensor([[0, 1, 2], [1, 2, 3]]))
    batch = batch.to(torch.device("cpu"), torch.float64)
    now = batch.num_nodes, batch.edge_index.shape[1], len(batch.config_nodes)
    padded = batch.padded_to(*(size + extra for size, extra in zip(now, more, strict=True)))
    assert (padded.num_nodes, padded.edge_index.shape[1], len(padded.config_nodes)) == tuple(
        size + extra for size, extra in zip(now, more, strict=True)
    )
    want = embed_segments(encoder, batch, call_of(encoder), pooling)
    got = embed_segments(encoder, padded, call_of(encoder), pooling)[:-1]
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    weights, parameters = torch.randn_like(want), list(encoder.parameters())
    for one, other in zip(
        torch.autograd.grad((got * weights).sum(), parameters),
        torch.autograd.grad((want * weights).sum(), parameters), strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11)


def test_padding_has_no_edges_to_what_is_real() -> None:
    batch = assemble(graphs(), [(0, 1), (1, 0)], torch.tensor([[0], [1]]))
    padded = batch.padded_to(batch.num_nodes + 4, batch.edge_index.shape[1] + 3, len(batch.config_nodes) + 1)
    is_real = padded.edge_index < batch.num_nodes
    assert bool((is_real[0] == is_real[1]).all()) and int((~is_real[0]).sum()) == 3
    assert not padded.owned[batch.num_nodes :].any()
    with pytest.raises(ValueError, match=rf"a batch of {batch.num_nodes + 1} nodes with one for padding, .* not fit"):
        batch.padded_to(batch.num_nodes, 99, 99)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_steps_of_fixed_shapes_are_those_of_the_estimator(variant: str, pooling: str) -> None:
    want, training = Training(variant, pooling), Training(variant, pooling)
    step = RecordedStep(training.fixed())
    losses = [step(*training.step(number)).item() for number in range(STEPS)]
    assert losses == pytest.approx(want.eager(), rel=1e-4) and losses[0] != losses[-1]
    assert step.reason == "graphs are recorded on an accelerator; the model is on cpu"
    if training.model.table is not None:
        keys = torch.arange(training.model.table.num_keys)
        for one, other in zip(training.model.table.pull(keys), want.model.table.pull(keys), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_replays_of_one_recording_are_steps_of_the_estimator(
    monkeypatch: pytest.MonkeyPatch, variant: str, pooling: str
) -> None:
    """What the recording made is spoilt before each replay."""
    monkeypatch.setattr(encoding, "pool_nodes", pooled)
    want, training = Training(variant, pooling), Training(variant, pooling)
    graph = Replayed(training)
    step = RecordedStep(training.fixed(), lambda device: graph, is_recorded=True)
    losses = [step(*training.step(number)).item() for number in range(STEPS)]
    assert step.reason == "" and graph.replays == STEPS - 3
    assert losses == pytest.approx(want.eager(), rel=1e-4)
    for one, other in zip(training.model.parameters(), want.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", ["one", "dropout", "difference"])
@pytest.mark.parametrize("encoder", list(ENCODERS)[1:])
def test_they_are_so_with_encoders_that_share_work_between_configurations(encoder: str, variant: str) -> None:
    """After all steps, the parameters too: gradients are those of what is not padded."""
    want, training = (Training(variant, "mean", encoder=encoder) for _ in range(2))
    step = RecordedStep(training.fixed())
    losses = [step(*training.step(number)).item() for number in range(STEPS)]
    assert losses == pytest.approx(want.eager(), rel=1e-4) and losses[0] != losses[-1]
    for one, other in zip(training.model.parameters(), want.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("encoder", list(ENCODERS)[1:])
def test_replays_read_the_plans_of_their_own_step(monkeypatch: pytest.MonkeyPatch, encoder: str) -> None:
    """What the recording made is spoilt before each replay, as above."""
    monkeypatch.setattr(encoding, "pool_nodes", pooled)
    want, training = (Training("dropout", "mean", encoder=encoder) for _ in range(2))
    graph = Replayed(training)
    step = RecordedStep(training.fixed(), lambda device: graph, is_recorded=True)
    losses = [step(*training.step(number)).item() for number in range(STEPS)]
    assert step.reason == "" and graph.replays == STEPS - 3
    assert losses == pytest.approx(want.eager(), rel=1e-4)
    for one, other in zip(training.model.parameters(), want.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("is_recorded", [False, True])
def test_gradients_are_left_to_an_optimizer_outside(monkeypatch: pytest.MonkeyPatch, is_recorded: bool) -> None:
    """Whoever clears or replaces them in between changes nothing."""
    monkeypatch.setattr(encoding, "pool_nodes", pooled)
    want, training = (Training("stale", "mean", encoder="SAGE") for _ in range(2))
    graph = Replayed(training)
    fixed = FixedStep(training.model, loss_of, None, training.sizes)
    step = RecordedStep(fixed, lambda device: graph, is_recorded=is_recorded)
    losses = []
    for number in range(STEPS):
        losses.append(step(*training.step(number)).item())
        training.optimizer.step()
        training.optimizer.zero_grad()
    assert losses == pytest.approx(want.eager(), rel=1e-4) and graph.replays == is_recorded * (STEPS - 3)


def test_smaller_steps_are_padded() -> None:
    """One graph of two, and one configuration fewer."""
    want, training = (Training("dropout", "mean", encoder="SAGE") for _ in range(2))
    step = RecordedStep(FixedStep(training.model, pairwise_hinge, training.optimizer, training.sizes))
    for number, (num_graphs, num_configs) in enumerate([(2, 3), (1, 3), (2, 2), (1, 2), (2, 3)]):
        data, chosen, targets = training.step(number)
        data, chosen, targets = data[:num_graphs], chosen[:num_graphs, :num_configs], targets[:num_graphs, :num_configs]
        loss = pairwise_hinge(want.model(data, chosen).squeeze(-1), targets)
        want.optimizer.zero_grad()
        loss.backward()
        want.optimizer.step()
        assert step(data, chosen, targets).item() == pytest.approx(loss.item(), rel=1e-4)
    for one, other in zip(training.model.parameters(), want.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_learning_rate_that_changes_is_recorded_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "pool_nodes", pooled)
    training, made = Training("one", "mean"), []

    def new(device: torch.device) -> Replayed:
        made.append(Replayed(training))
        return made[-1]

    step = RecordedStep(training.fixed(), new, is_recorded=True)
    for number in range(STEPS):
        training.optimizer.param_groups[0]["lr"] = 1e-4 if number < 6 else 0.0
        before = [each.detach().clone() for each in training.model.parameters()]
        step(*training.step(number))
        moves = any(not torch.equal(a, b) for a, b in zip(before, training.model.parameters(), strict=True))
        assert moves == (number < 6), "a rate of zero moves nothing"
    assert len(made) == 2 and step.reason == ""


def test_a_graph_may_be_in_a_step_several_times() -> None:
    data = graphs()
    sizes = Sizes.of(data, 3, 1, 1)
    largest = max(range(len(data)), key=lambda each: int(np.diff(data[each].row_ptr).max()))
    segment = int(np.diff(data[largest].row_ptr).argmax())
    batch = assemble(data, [(largest, segment)] * 3, torch.zeros(len(data), 1, dtype=torch.int64))
    assert batch.padded_to(*sizes[:4]).num_nodes == sizes.nodes


def test_a_replay_that_is_left_out_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of the test above: losses of replays that do nothing are not those of the estimator."""
    want, training = Training("one", "mean"), Training("one", "mean")
    graph = Replayed(training)
    monkeypatch.setattr(graph, "replay", lambda: None)
    step = RecordedStep(training.fixed(), lambda device: graph, is_recorded=True)
    losses = [step(*training.step(number)).item() for number in range(STEPS)]
    assert losses[:3] == pytest.approx(want.eager()[:3], rel=1e-4) and losses[5] == losses[6] == losses[7]


def test_a_recording_that_fails_is_a_reason_and_the_steps_go_on() -> None:
    def full(device: torch.device) -> Any:
        raise torch.OutOfMemoryError("out of memory: tried to allocate 2 GiB")

    want, training = Training("dropout", "mean"), Training("dropout", "mean")
    step = RecordedStep(training.fixed(), full, is_recorded=True)
    losses = [step(*training.step(number)).item() for number in range(STEPS)]
    assert losses == pytest.approx(want.eager(), rel=1e-4)
    assert step.reason == "OutOfMemoryError: out of memory: tried to allocate 2 GiB"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "encode all other segments"),
        ({"table": EmbeddingTable(1, 16), "estimate": "regression"}, "not 'regression' and 'uniform'"),
        ({"table": EmbeddingTable(1, 16), "num_fresh": 2, "debias": True}, "leave out debias"),
        ({"omit_rest": True, "pad_to": 8}, "pad_to"),
    ],
)
def test_models_whose_shapes_change_are_refused(options: dict[str, Any], words: str) -> None:
    model = GraphSegmentTraining(Messages(), nn.Linear(16, 1), "mean", **options)
    with pytest.raises(ValueError, match=words):
        FixedStep(model, pairwise_hinge, torch.optim.SGD(model.parameters(), 0.1), Sizes(9, 9, 9, 9, 9, 9))
    plans = GraphSegmentTraining(gst.nn.SAGE(16, 1, num_opcodes=4), nn.Linear(16, 1), omit_rest=True)
    with pytest.raises(ValueError, match="plans of fixed shapes of an encoder that takes a SegmentBatch"):
        FixedStep(plans, pairwise_hinge, torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1), Sizes(9, 9, 9, 9, 9, 9))


def test_targets_of_the_caller_stay_as_they_are() -> None:
    training = Training("one", "mean")
    step, batches = RecordedStep(training.fixed()), [training.step(number) for number in range(3)]
    before = [targets.clone() for _, _, targets in batches]
    for batch in batches:
        step(*batch)
    for was, (_, _, targets) in zip(before, batches, strict=True):
        torch.testing.assert_close(targets, was, rtol=0, atol=0)


def test_a_larger_step_is_refused() -> None:
    training = Training("one", "mean")
    step, (data, configs, targets) = RecordedStep(training.fixed()), training.step(0)
    with pytest.raises(ValueError, match="a step of 2 graphs and 6 configurations does not fit into 2 and 3"):
        step(data, configs.repeat(1, 2), targets.repeat(1, 2))
    with pytest.raises(ValueError, match="a step of 3 graphs and 3 configurations does not fit into 2 and 3"):
        step([*data, data[0]], configs[[0, 1, 0]], targets[[0, 1, 0]])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: nothing records graphs")
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_replays_on_a_gpu_are_steps_of_the_estimator(variant: str, encoder: str) -> None:
    want, training = (Training(variant, "mean", "cuda", encoder) for _ in range(2))
    step = RecordedStep(training.fixed())
    losses = [step(*training.step(number)).item() for number in range(STEPS)]
    assert step.reason == ""
    assert losses == pytest.approx(want.eager(), rel=1e-3)
