"""After l layers two configurations share the row of a node exactly if no node within l hops tells them apart."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gst.method.batch import SegmentBatch
from gst.method.estimator import GraphSegmentTraining
from gst.nn import SAGE, plans
from gst.nn.plans import DeviceSharing
from gst.nn.sharing import Direction, Level, PlanOptions, Sharing
from gst.nn.sparse import product
from tests.choices import with_rest
from tests.method.host_waits import graphs

DIRECTIONS: list[tuple[Direction, ...]] = [("forward",), ("backward",), ("forward", "backward")]
VALUES = [-1.0, -0.0, 0.0, 1.0, 1.0000001, 3.0]  # the first layer has to see that 1.0000001 is not 1.0, and -0.0 is 0.0


@st.composite
def batches(draw: st.DrawFn) -> SegmentBatch:
    """Segments of any shape under a few configurations, many of which agree at many nodes."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    segment_of_node = np.repeat(np.arange(len(sizes)), sizes)
    pairs = [(u, v) for u in range(sum(sizes)) for v in range(sum(sizes)) if segment_of_node[u] == segment_of_node[v]]
    edges = draw(st.lists(st.sampled_from(pairs), max_size=2 * sum(sizes)))
    config_nodes = draw(st.lists(st.integers(0, sum(sizes) - 1), unique=True, max_size=4))
    num_configs, channels = draw(st.integers(1, 5)), draw(st.integers(1, 2))
    shape = (len(config_nodes), num_configs, channels)
    few = st.sampled_from(draw(st.lists(st.sampled_from(VALUES), min_size=1, max_size=3)))
    values = draw(st.lists(few, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
    return SegmentBatch(
        torch.zeros(sum(sizes), 1),
        torch.zeros(sum(sizes), dtype=torch.long),
        torch.tensor(edges, dtype=torch.long).view(-1, 2).T,
        torch.from_numpy(segment_of_node),
        torch.ones(sum(sizes), dtype=torch.bool),
        torch.tensor(sizes),
        torch.tensor(config_nodes, dtype=torch.long),
        torch.tensor(values, dtype=torch.float32).view(shape),
    )


def heard(batch: SegmentBatch, node: int, hops: int, directions: tuple[Direction, ...]) -> set[int]:
    """The nodes from which a message comes to `node` in at most so many steps."""
    found = {node}
    for _ in range(hops):
        near = set(found)
        for u, v in batch.edge_index.T.tolist():
            if "forward" in directions and v in found:
                near.add(u)
            if "backward" in directions and u in found:
                near.add(v)
        found = near
    return found


def agree(batch: SegmentBatch, nodes: set[int], first: int, second: int) -> bool:
    given = zip(batch.config_nodes.tolist(), batch.config_features.tolist(), strict=True)
    return all(by_config[first] == by_config[second] for node, by_config in given if node in nodes)


def assert_shared_exactly_where(level: Level, batch: SegmentBatch, seen_by_node: list[set[int]]) -> None:
    for node, seen in enumerate(seen_by_node):
        for first, second in itertools.product(range(batch.num_configs), repeat=2):
            assert (level.alike[node, first] == level.alike[node, second]) == agree(batch, seen, first, second)
        kinds = set(level.alike[node].tolist())
        assert kinds == set(range(level.first[node + 1] - level.first[node]))
        for kind in kinds:
            assert level.alike[node, level.config_of_row[level.first[node] + kind]] == kind


def assert_equal(plan: DeviceSharing, exact: Sharing) -> None:
    """Fingerprints agree exactly where states do."""
    for ours, level in zip(plan.levels, exact.levels, strict=True):
        exactly = torch.from_numpy(level.first[:-1, None] + level.alike)
        mine, theirs = (each[:, :, None] == each[:, None] for each in (ours.row_of.cpu(), exactly))
        assert torch.equal(mine, theirs)


def by_rows(sharing: Sharing) -> list[np.ndarray]:
    """(nodes, configs, configs) after each number of layers: which configurations share."""
    return [level.alike[:, :, None] == level.alike[:, None] for level in sharing.levels]


@pytest.mark.parametrize("directions", DIRECTIONS, ids=str)
@given(batches())
def test_configurations_share_exactly_where_they_agree_within_the_hops(
    directions: tuple[Direction, ...], batch: SegmentBatch
) -> None:
    sharing = Sharing.of(batch, 3, directions)
    for hops, level in enumerate(sharing.levels):
        seen = [heard(batch, node, hops, directions) for node in range(batch.num_nodes)]
        assert_shared_exactly_where(level, batch, seen)


@given(batches())
def test_without_sharing_every_configuration_has_its_row(batch: SegmentBatch) -> None:
    for level in Sharing.of(batch, 1, ("forward",), share=False).levels:
        assert level.alike.tolist() == [list(range(batch.num_configs))] * batch.num_nodes


@given(batches(), st.randoms(use_true_random=False), st.sampled_from(DIRECTIONS))
def test_names_of_nodes_and_configurations_do_not_matter(
    batch: SegmentBatch, random, directions: tuple[Direction, ...]
) -> None:
    nodes, configs, edges, slots = (
        torch.tensor(random.sample(range(n), n), dtype=torch.long)
        for n in (batch.num_nodes, batch.num_configs, batch.edge_index.shape[1], len(batch.config_nodes))
    )  # new node i is old node nodes[i]
    name = torch.argsort(nodes)
    renamed = replace(
        batch,
        edge_index=name[batch.edge_index][:, edges],
        segment_of_node=batch.segment_of_node[nodes],
        config_nodes=name[batch.config_nodes][slots],
        config_features=batch.config_features[slots][:, configs],
    )
    ours = by_rows(Sharing.of(renamed, 2, directions))
    theirs = by_rows(Sharing.of(batch, 2, directions))
    for a, b in zip(ours, theirs, strict=True):
        assert np.array_equal(a, b[np.ix_(nodes, configs, configs)])


@pytest.mark.parametrize("directions", DIRECTIONS, ids=str)
@given(batches())
def test_fingerprints_tell_apart_what_differs_and_nothing_else(
    directions: tuple[Direction, ...], batch: SegmentBatch
) -> None:
    """Also where two nodes of different values exchange them: which of them has which counts."""
    options = PlanOptions(3, directions)
    ours, exact = DeviceSharing(batch, options), Sharing.of(batch, *options)
    assert_equal(ours, exact)
    for mine, level in zip(ours.levels, exact.levels, strict=True):
        assert mine.first.tolist() == level.first.tolist() and len(mine.node_of_row) == level.num_rows
        rows = torch.arange(int(mine.used))
        assert torch.equal(mine.row_of[mine.node_of_row[: len(rows)], mine.config_of_row[: len(rows)]], rows)


def exchanged() -> SegmentBatch:
    """Two nodes of other values under each of two configurations, which a third hears."""
    three, one = torch.zeros(3, 1), torch.zeros(3, dtype=torch.long)
    values = torch.tensor([[[1.0], [2.0]], [[2.0], [1.0]]])
    edges = torch.tensor([[0, 1], [2, 2]])
    return SegmentBatch(three, one, edges, one, torch.ones(3).bool(), torch.tensor([3]), torch.tensor([0, 1]), values)


def test_values_that_two_nodes_exchange_are_told_apart() -> None:
    options = PlanOptions(1, ("forward",))
    assert DeviceSharing(exchanged(), options).levels[1].row_of[2].unique().numel() == 2


def test_rows_are_found_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "_where", "auto")
    for where, kind in (("device", DeviceSharing), ("host", Sharing), ("auto", Sharing)):
        plans.set_sharing(where)
        assert isinstance(SAGE(4, 1).sharing(exchanged()), kind)


@pytest.mark.slow
@pytest.mark.parametrize("where", with_rest(["host", "device"], ["host"]))
def test_the_compiler_leaves_plans_alone(where: plans.Where, monkeypatch: pytest.MonkeyPatch, unchecked: None) -> None:
    """It would compile them anew for each number of rows, and give up at last."""
    monkeypatch.setattr(plans, "_where", where)
    data, configs = graphs(), torch.tensor([[0, 1, 2], [1, 2, 3]])
    model = GraphSegmentTraining(SAGE(16, 2, 4), torch.nn.Linear(16, 1), estimate="fresh")
    want = model.exact(data, configs)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(model, backend="eager", dynamic=True)
    torch.testing.assert_close(compiled.exact(data, configs), want)
    for _ in range(3):
        compiled(data, configs).sum().backward()
    assert sum(torch._dynamo.utils.counters["graph_break"].values()) < 30
    assert not any("recompile_limit" in reason for reason in torch._dynamo.utils.counters["graph_break"])


def test_a_place_that_does_not_exist_is_refused(unchecked: None) -> None:
    with pytest.raises(ValueError, match=r"sharing 'gpu'\? equal states are found by one of auto, host, device"):
        plans.set_sharing("gpu")  # type: ignore[arg-type]


def test_mixing_tells_integers_apart_but_for_those_of_the_other_sign() -> None:
    numbers = torch.arange(100_000)
    assert len(plans.mixed(numbers).unique()) == len(numbers) and plans.mixed(-1 - numbers).equal(plans.mixed(numbers))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: fingerprints are compared on the CPU")
@pytest.mark.parametrize("directions", DIRECTIONS, ids=str)
@given(batches())
def test_a_gpu_finds_the_rows_of_the_host(directions: tuple[Direction, ...], batch: SegmentBatch) -> None:
    options = PlanOptions(3, directions)
    there = batch.to(torch.device("cuda"), torch.float32)
    ours, exact = DeviceSharing(there, options), Sharing.of(batch, *options)
    assert_equal(ours, exact)
    x = torch.randn(exact.matrix(0, directions).shape[1], 3, dtype=torch.float64)
    on_cpu = DeviceSharing(batch, options)
    found = product(ours.matrix(0, directions, "mean"), x.cuda()).cpu()
    torch.testing.assert_close(found, product(on_cpu.matrix(0, directions, "mean"), x))
