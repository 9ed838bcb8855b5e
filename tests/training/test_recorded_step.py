"""Steps of padded batches are the steps of the estimator, and replays of one recording are such steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

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
from gst.method.fixed_batch import NoFixedShapes, Sizes
from gst.method.fixed_step import FixedStep
from gst.method.recorded import Recorded
from tests.choices import with_rest
from tests.execution.recorded import Spoilt, pooled
from tests.method.host_waits import Messages, TakesSegments, graphs

VARIANTS: dict[str, Callable[[], dict[str, Any]]] = {
    "one": lambda: {"estimate": "fresh"},
    "dropout": lambda: {"table": EmbeddingTable(1, 16), "estimate": "dropout", "keep_probability": 0.5},
    "stale": lambda: {"table": EmbeddingTable(1, 16), "estimate": "dropout", "num_fresh": 2},
    "difference": lambda: {"table": EmbeddingTable(1, 16), "num_fresh": 2},
}
POOLINGS = ("sum", "mean", "max")
# Each variant with one pooling; the others in `make e2e`.
WITH_POOLINGS = [
    pytest.param(variant, pooling, marks=() if number % 3 == place else pytest.mark.e2e)
    for number, variant in enumerate(VARIANTS)
    for place, pooling in enumerate(POOLINGS)
]
ENCODERS: dict[str, Callable[[], nn.Module]] = {
    "of another": Messages,
    **{name: partial(encoder, 16, 2, 4) for name, encoder in gst.nn.ENCODERS.items()},
    "SAGE unshared": lambda: gst.nn.SAGE(16, 2, 4, share=False),
    "SAGE max": lambda: gst.nn.SAGE(16, 2, 4, aggregation="max"),
}
STEPS = 6  # three that warm up, and three replays


def loss_of(scores: Tensor, targets: Tensor) -> Tensor:
    """Of order and of value, so that each step changes it."""
    return pairwise_hinge(scores, targets, 0.1) + (scores - targets).square().mean()


class RecordedStep(Recorded[FixedStep]):
    """Draws, reads and takes a step in one call."""

    def __call__(self, data: Any, configs: Tensor, targets: Tensor) -> Tensor:
        return self.run(self.step.load(self.step.draw(data, configs)), targets)


class Training:
    """A model, its optimizer, and data that change from step to step."""

    def __init__(self, variant: str, pooling: Any, device: str = "cpu", encoder: Any = "of another") -> None:
        torch.manual_seed(0)
        self.data, self.device = graphs(), device
        model = GraphSegmentTraining(ENCODERS.get(encoder, encoder)(), nn.Linear(16, 1), pooling, **VARIANTS[variant]())
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

    def by(self, step: RecordedStep) -> list[float]:
        return [step(*self.step(number)).item() for number in range(STEPS)]

    def fixed(self) -> FixedStep:
        return FixedStep(self.model, loss_of, self.optimizer, self.sizes)


class Replayed(Spoilt):
    """Recording on an accelerator computes nothing: what it has done here to the state of a training is undone."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self.training, self.saved = training, list[tuple[Tensor, Tensor]]()

    def capture_begin(self) -> None:
        momenta = [each["momentum_buffer"] for each in self.training.optimizer.state.values()]
        table = self.training.model.table
        rows = [] if table is None else table.dense()
        state = [*self.training.model.parameters(), *self.training.model.buffers(), *momenta, *rows]
        self.saved, self.drawn = [(each, each.detach().clone()) for each in state], torch.get_rng_state()
        super().capture_begin()

    def capture_end(self) -> None:
        super().capture_end()
        torch.set_rng_state(self.drawn)
        for each, before in self.saved:
            each.data.copy_(before)


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


def assert_same_parameters(training: Training, want: Training) -> None:
    for one, other in zip(training.model.parameters(), want.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("variant", "pooling", "encoder"),
    [
        *(pytest.param(*each.values, "of another", marks=each.marks) for each in WITH_POOLINGS),
        *with_rest(
            [("dropout", "mean", name) for name in list(ENCODERS)[1:]],
            [("dropout", "mean", name) for name in ("SAGE", "GIN")],
        ),
    ],
)
def test_replays_of_one_recording_are_steps_of_the_estimator(
    monkeypatch: pytest.MonkeyPatch, variant: str, pooling: str, encoder: str
) -> None:
    """What the recording made, plans of an encoder included, is spoilt before each replay."""
    monkeypatch.setattr(encoding, "pool_nodes", pooled)
    want, training = (Training(variant, pooling, encoder=encoder) for _ in range(2))
    graph = Replayed(training)
    step = RecordedStep(training.fixed(), lambda device: graph, is_recorded=True)
    losses = training.by(step)
    assert step.reason == "" and graph.replays == STEPS - 3
    assert losses == pytest.approx(want.eager(), rel=1e-4)
    assert_same_parameters(training, want)


class Means(nn.Module):
    """Mean of the nodes of each segment, then a linear layer: an empty segment would be 0 / 0."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.after = nn.Linear(5, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, batch_size: int) -> Tensor:
        empty = x.new_zeros(batch_size, 16)
        counts = empty[:, :1].index_add(0, batch, torch.ones_like(x[:, :1]))
        return self.after(empty.index_add(0, batch, self.own(x).relu()) / counts)


@pytest.mark.parametrize(
    ("variant", "pooling", "encoder"), [("dropout", "mean", "SAGE"), *(("one", pooling, Means) for pooling in POOLINGS)]
)
def test_smaller_steps_are_padded_and_no_segment_of_padding_is_empty(variant: str, pooling: str, encoder: Any) -> None:
    want, training = (Training(variant, pooling, encoder=encoder) for _ in range(2))
    step = RecordedStep(FixedStep(training.model, pairwise_hinge, training.optimizer, training.sizes))
    for number, (num_graphs, num_configs) in enumerate([(2, 3), (1, 3), (2, 2), (1, 2), (2, 3)]):
        data, chosen, targets = training.step(number)
        data, chosen, targets = data[:num_graphs], chosen[:num_graphs, :num_configs], targets[:num_graphs, :num_configs]
        loss = pairwise_hinge(want.model(data, chosen).squeeze(-1), targets)
        want.optimizer.zero_grad()
        loss.backward()
        want.optimizer.step()
        before = targets.clone()
        assert step(data, chosen, targets).item() == pytest.approx(loss.item(), rel=1e-4)
        assert torch.equal(targets, before), "targets of the caller stay as they are"
    assert_same_parameters(training, want)


def test_a_learning_rate_that_changes_is_recorded_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "pool_nodes", pooled)
    training = Training("one", "mean")
    made, new = new_graphs(training)
    step = RecordedStep(training.fixed(), new, is_recorded=True)
    for number in range(STEPS):
        training.optimizer.param_groups[0]["lr"] = 1e-4 if number < 4 else 0.0
        before = [each.detach().clone() for each in training.model.parameters()]
        step(*training.step(number))
        moves = any(not torch.equal(a, b) for a, b in zip(before, training.model.parameters(), strict=True))
        assert moves == (number < 4), "a rate of zero moves nothing"
    assert len(made) == 2 and step.reason == ""


def test_autocast_that_changes_is_recorded_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "pool_nodes", pooled)
    want, training = (Training("one", "mean", encoder="SAGE") for _ in range(2))
    made, new = new_graphs(training)
    recorded, eager = RecordedStep(training.fixed(), new, True), RecordedStep(want.fixed())
    for number in range(2 * STEPS):
        with torch.autocast("cpu", torch.bfloat16, enabled=number >= STEPS):
            losses = [step(*training.step(number)).item() for step in (recorded, eager)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert len(made) == 2 and recorded.reason == ""


def test_a_recording_that_fails_is_a_reason_and_the_steps_go_on() -> None:
    def full(device: torch.device) -> Any:
        raise torch.OutOfMemoryError("out of memory: tried to allocate 2 GiB")

    want, training = Training("dropout", "mean"), Training("dropout", "mean")
    step = RecordedStep(training.fixed(), full, is_recorded=True)
    losses = training.by(step)
    assert losses == pytest.approx(want.eager(), rel=1e-4)
    assert step.reason == "OutOfMemoryError: out of memory: tried to allocate 2 GiB"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "encode all other segments"),
        ({"table": EmbeddingTable(1, 16), "estimate": "composite"}, "fixed_shapes .* 'composite' does not"),
        ({"table": EmbeddingTable(1, 16, capacity=9)}, "give the table the tier 'device' and no capacity"),
        ({"table": EmbeddingTable(1, 16, tier="pinned")}, "give the table the tier 'device' and no capacity"),
    ],
)
def test_models_whose_shapes_change_are_refused(options: dict[str, Any], words: str) -> None:
    model = GraphSegmentTraining(Messages(), nn.Linear(16, 1), "mean", **options)
    with pytest.raises(NoFixedShapes, match=words):
        FixedStep(model, pairwise_hinge, torch.optim.SGD(model.parameters(), 0.1), Sizes(9, 9, 9, 9, 9, 9))
    plans = GraphSegmentTraining(gst.nn.SAGE(16, 1, num_opcodes=4), nn.Linear(16, 1), estimate="fresh")
    with pytest.raises(NoFixedShapes, match=r"needs the plans of the encoder; give it to Sizes\.of"):
        FixedStep(plans, pairwise_hinge, None, Sizes(9, 9, 9, 9, 9, 9))
    messages = Messages()
    for encoder, why in (
        (TakesSegments(nn.Identity()), "plans of fixed shapes of an encoder that takes a SegmentBatch"),
        (lambda x, edge_index: messages(x, edge_index), r"of a torch\.nn\.Module alone, and the encoder is none"),
    ):
        other = GraphSegmentTraining(encoder, nn.Linear(16, 1), estimate="fresh")
        with pytest.raises(NoFixedShapes, match=why):
            FixedStep(other, pairwise_hinge, None, Sizes(9, 9, 9, 9, 9, 9))


class Normed(Messages):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.norm(super().forward(x, edge_index))


@pytest.mark.filterwarnings("ignore:the encoder holds BatchNorm")
def test_padding_that_would_be_counted_in_statistics_is_refused() -> None:
    encoder = GraphSegmentTraining(Normed(), nn.Linear(16, 1), estimate="fresh")
    with pytest.raises(NoFixedShapes, match="would count its padding: the encoder holds BatchNorm"):
        FixedStep(encoder, pairwise_hinge, None, Sizes(9, 9, 9, 9, 9, 9))
    head = GraphSegmentTraining(Messages(), nn.Sequential(nn.LazyBatchNorm1d(), nn.Linear(16, 1)), estimate="fresh")
    with pytest.raises(NoFixedShapes, match="BatchNorm of the head"):
        FixedStep(head, pairwise_hinge, None, Sizes(9, 9, 9, 9, 9, 9))


def new_graphs(training: Training) -> tuple[list[Replayed], Callable[[torch.device], Replayed]]:
    """Graphs of recordings, and what makes them."""
    made: list[Replayed] = []

    def new(device: torch.device) -> Replayed:
        made.append(Replayed(training))
        return made[-1]

    return made, new


class Dropping(Messages):
    """With a layer that is the identity in evaluation mode, and doubles while it is trained: dropout without draws."""

    class Double(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * x if self.training else x

    def __init__(self) -> None:
        super().__init__()
        self.dropout = self.Double()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.dropout(super().forward(x, edge_index))


def halved(weight: Tensor) -> Tensor:
    return weight.detach() / 2


CHANGES: dict[str, Callable[[Any], object]] = {
    "freeze": lambda model: model.encoder.own.requires_grad_(False),
    "freeze all": lambda model: model.encoder.requires_grad_(False),
    "evaluate": lambda model: model.encoder.dropout.eval(),
    "replace weights": lambda model: model.encoder.others.register_parameter(
        "weight", nn.Parameter(halved(model.encoder.others.weight))
    ),
    "move weights": lambda model: model.encoder.others.weight.__setattr__("data", halved(model.encoder.others.weight)),
    "clear table": lambda model: model.table.clear(),
    "grow table": lambda model: model.table.resize(3 * model.table.num_keys),
    "keep more rows": lambda model: model.__setattr__("keep_probability", 1.0),
}


@pytest.mark.parametrize("change", with_rest(CHANGES, ["freeze", "clear table"]))
def test_a_model_that_changes_is_recorded_anew(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    monkeypatch.setattr(encoding, "pool_nodes", pooled)
    want, training = (Training("dropout", "mean", encoder=Dropping) for _ in range(2))
    made, new = new_graphs(training)
    step = RecordedStep(FixedStep(training.model, loss_of, None, training.sizes), new, is_recorded=True)
    ours, theirs = list[float](), list[float]()
    for number in range(10):
        if number == 5:
            CHANGES[change](want.model)
            CHANGES[change](training.model)
        data, configs, targets = want.step(number)
        want.optimizer.zero_grad()
        loss = loss_of(want.model(data, configs).squeeze(-1), targets)
        loss.backward()
        want.optimizer.step()
        theirs.append(loss.item())
        ours.append(step(*training.step(number)).item())
        training.optimizer.step()
        training.optimizer.zero_grad()
    assert ours == pytest.approx(theirs, rel=1e-4) and len(made) == 2
    assert [each.replays for each in made] == [2, 2] and step.reason == ""


class Remembering(Messages):
    """It draws random numbers, and counts its steps in a buffer."""

    factor = 1.0  # a number of the host

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.seen += 1.0
        return nn.functional.dropout(super().forward(x, edge_index), 0.5) * self.factor


@pytest.mark.parametrize(("changes", "replays"), [(STEPS, 3), (3, 1), (4, 2)])
def test_a_replay_that_reads_an_old_number_of_the_host_is_seen_and_left(
    monkeypatch: pytest.MonkeyPatch, changes: int, replays: int
) -> None:
    """At the first replay, or at the second. Dropout and counts are no reason: both computations of a compared step
    have the same random numbers."""
    monkeypatch.setattr(encoding, "pool_nodes", pooled)
    losses, counts = list[list[float]](), list[float]()
    for is_recorded in (True, False):
        training = Training("stale", "mean", encoder=Remembering)
        made, new = new_graphs(training)
        step = RecordedStep(FixedStep(training.model, loss_of, None, training.sizes), new, is_recorded=is_recorded)
        losses.append([])
        before = float(training.model.encoder.seen)
        for number in range(STEPS):
            training.model.encoder.factor = 1.0 + 9.0 * (number >= changes)
            torch.manual_seed(number)
            losses[-1].append(step(*training.step(number)).item())
            training.optimizer.step()
            training.optimizer.zero_grad()
        counts.append(float(training.model.encoder.seen) - before)
        if is_recorded:
            assert [each.replays for each in made] == [replays]
            wrong = "a replay computes something else than the step that was recorded"
            assert step.reason == (wrong if changes < STEPS else "")
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert counts == [STEPS, STEPS]


def test_a_full_memory_while_a_step_is_compared_is_raised_and_the_recording_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(encoding, "pool_nodes", pooled)
    training = Training("dropout", "mean", encoder=Remembering)
    step = RecordedStep(FixedStep(training.model, loss_of, None, training.sizes), new_graphs(training)[1], True)
    for number in range(3):
        step(*training.step(number))
    before, compute = float(training.model.encoder.seen), step.step.compute
    table = [each.clone() for each in training.model.table.dense()]

    def full() -> None:
        compute()
        raise torch.OutOfMemoryError("out of memory: tried to allocate 2 GiB")

    monkeypatch.setattr(step.step, "compute", full)
    with pytest.raises(torch.OutOfMemoryError):
        step(*training.step(3))
    assert float(training.model.encoder.seen) == before and "2 GiB" in step.reason
    rows, steps = training.model.table.dense()
    is_known = table[1] >= 0  # memory of other rows was never written
    assert torch.equal(steps, table[1]) and torch.equal(rows[is_known], table[0][is_known])
    monkeypatch.setattr(step.step, "compute", compute)
    step(*training.step(3))
    assert float(training.model.encoder.seen) == before + 1


@pytest.mark.parametrize("is_recorded", [False, True])
def test_rows_that_are_not_finite_are_told_and_not_written(monkeypatch: pytest.MonkeyPatch, is_recorded: bool) -> None:
    monkeypatch.setattr(encoding, "pool_nodes", pooled)
    training = Training("dropout", "mean")
    step = RecordedStep(training.fixed(), new_graphs(training)[1], is_recorded)
    for number in range(4):
        step(*training.step(number))
    keys, table = torch.arange(training.model.table.num_keys), training.model.table
    before = table.pull(keys)[0]
    training.model.encoder.own.bias.data[0] = torch.inf
    with pytest.warns(UserWarning, match=r"step 5: embeddings of segment \d of graph 'path-30', .* are not finite"):
        step(*training.step(4))
    assert torch.equal(table.pull(keys)[0], before) and before.any()


def test_no_row_is_written_where_the_gradient_is_not_finite() -> None:
    training = Training("dropout", "mean")
    step = RecordedStep(FixedStep(
        training.model, lambda scores, targets: (scores - targets).square().mean() + (0 * scores).sqrt().mean(), None,
        training.sizes))  # fmt: skip
    assert step(*training.step(0)).isfinite() and training.model.encoder.own.weight.grad.isnan().any()
    assert training.model.table.rows_in_use == 0


def test_hooks_and_a_frozen_encoder_are_refused_whenever_they_come() -> None:
    training = Training("one", "mean")
    step = RecordedStep(training.fixed())
    step(*training.step(0))
    handle = training.model.encoder.others.register_forward_pre_hook(lambda module, inputs: None)
    with pytest.raises(NoFixedShapes, match=r"module 'encoder\.others' has one"):
        step(*training.step(1))
    with pytest.raises(NoFixedShapes, match=r"module 'encoder\.others' has one"):
        training.fixed()
    handle.remove()
    handle = training.model.head.weight.register_hook(lambda gradient: None)
    with pytest.raises(NoFixedShapes, match=r"parameter 'head\.weight' has one"):
        step(*training.step(1))
    handle.remove()
    step(*training.step(1))
    training = Training("dropout", "mean")
    step = RecordedStep(training.fixed())
    step(*training.step(0))
    training.model.freeze_encoder()
    with pytest.raises(NoFixedShapes, match="has no frozen encoder"):
        step(*training.step(2))


class Planning(gst.nn.SAGE):
    """Makes a plan that it did not announce."""

    def forward(self, batch: Any) -> Any:
        batch.plans["mine"] = batch.num_nodes
        return super().forward(batch)


def test_plans_that_nobody_makes_anew_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training("one", "mean", encoder=partial(Planning, 16, 2, 4))
    with pytest.raises(NoFixedShapes, match=r"no plans but those of its sizes; the encoder made \{'mine'\}"):
        RecordedStep(training.fixed())(*training.step(0))


def test_an_opcode_without_embedding_is_refused_where_the_step_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay does not run the check of the encoder."""
    training = Training("one", "mean", encoder="SAGE")
    step, (data, configs, _) = training.fixed(), training.step(0)
    training.model.encoder.inputs.num_opcodes = 2
    with pytest.raises(ValueError, match=r"opcode 3 found, but the encoder embeds 0\.\.1"):
        step.load(step.draw(data, configs))


def test_a_larger_step_is_refused() -> None:
    training = Training("one", "mean")
    step, (data, configs, targets) = RecordedStep(training.fixed()), training.step(0)
    with pytest.raises(ValueError, match="a step of 2 graphs and 6 configurations does not fit into 2 and 3"):
        step(data, configs.repeat(1, 2), targets.repeat(1, 2))
    with pytest.raises(ValueError, match="a step of 3 graphs and 3 configurations does not fit into 2 and 3"):
        step([*data, data[0]], configs[[0, 1, 0]], targets[[0, 1, 0]])
    few = FixedStep(training.model, loss_of, None, training.sizes._replace(all_segments=9))
    with pytest.raises(ValueError, match=r"a step of 11 segments, fresh or not, does not fit into 8; make Sizes"):
        few.draw(data, configs)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: nothing records graphs")
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_replays_on_a_gpu_are_steps_of_the_estimator(variant: str, encoder: str) -> None:
    want, training = (Training(variant, "mean", "cuda", encoder) for _ in range(2))
    step = RecordedStep(training.fixed())
    losses = training.by(step)
    assert step.reason == ""
    assert losses == pytest.approx(want.eager(), rel=1e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: nothing records graphs")
def test_replays_on_a_gpu_are_compared_with_the_same_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training("dropout", "mean", "cuda", Remembering)
    step = RecordedStep(FixedStep(training.model, loss_of, None, training.sizes))
    before = float(training.model.encoder.seen)
    for number in range(STEPS):
        step(*training.step(number))
        training.optimizer.step()
    assert step.reason == "" and float(training.model.encoder.seen) == before + STEPS
