"""Legal groups by a slow twin, and groups compiled for real: same outputs, one compilation, no error."""

import hashlib
import json
import operator
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gst.execution import groups
from gst.execution.executor import NativeExecutor
from gst.execution.groups import Fused, fused, load
from gst.lowering import fusion
from gst.lowering.calls import eager
from gst.lowering.fusion import Group, fusion_groups, legalise, pointwise_chains, rewritten
from gst.lowering.plan import ExecutionError, Plan
from gst.machine.devices import Device, cpu_model
from gst.programs import Program, Reference, TrainingStep, capture, outputs_differ
from gst.programs.features import is_elementwise
from gst.util.compiled import compiler

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
KINDS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "neg": lambda x, _: -x,
    "cumsum": lambda x, _: x.cumsum(0),
    "swap": lambda x, _: torch.cat(torch.ops.aten.split.Tensor(x, 2)[::-1]),
    "view": lambda x, _: x.view(2, 2).t().reshape(4),
}
STEPS = st.lists(
    st.tuples(st.sampled_from(sorted(KINDS)), st.integers(0, 99), st.integers(0, 99)), min_size=3, max_size=14
)


def random_program(steps: list[tuple[str, int, int]]) -> Program:
    def step(p: dict) -> tuple[torch.Tensor, dict]:
        values = [p["w"], p["v"]]
        for kind, first, second in steps:
            values.append(KINDS[kind](values[first % len(values)], values[second % len(values)]))
        return values[-1].sum(), {"a": values[-1], "b": values[-2], "c": values[-3]}

    return capture(TrainingStep("random", step, ({"w": torch.arange(4.0), "v": torch.tensor([1.0, -2, 3, 5])},)))


def is_legal(program: Program, fusion: np.ndarray, placement: np.ndarray) -> bool:
    """Slow twin of `legalise`: by definition, and by walking everywhere from everywhere."""
    members: dict[int, list[int]] = {}
    for node, number in enumerate(fusion):
        if number >= 0:
            members.setdefault(number, []).append(node)
    for nodes in members.values():
        if len(nodes) < 2 or len({placement[node] for node in nodes}) > 1:
            return False
        if any(program.operations[node].kind != "operation" for node in nodes):
            return False
    part = lambda node: ("group", fusion[node]) if fusion[node] >= 0 else ("node", node)  # noqa: E731
    leads: dict[Any, set[Any]] = {}
    for node, operation in enumerate(program.operations):
        for producer in operation.producers:
            crosses = part(node) != part(producer)
            in_a_group = fusion[node] >= 0 or fusion[producer] >= 0
            if (
                crosses
                and in_a_group
                and (operation.target is operator.getitem or len(program.operations[producer].shapes) > 1)
            ):
                return False
            if crosses:
                leads.setdefault(part(producer), set()).add(part(node))
    for start in leads:
        seen: set[Any] = set()
        waiting = [start]
        while waiting:
            for each in leads.get(waiting.pop(), ()):
                if each == start:
                    return False
                if each not in seen:
                    seen.add(each)
                    waiting.append(each)
    return True


def partition(fusion: np.ndarray) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(fusion == number).tolist()) for number in set(fusion[fusion >= 0].tolist())}


def drawn(data: st.DataObject, program: Program, greatest: int) -> np.ndarray:
    return np.array([data.draw(st.integers(-1, greatest)) for _ in range(program.num_nodes)], np.int64)


@settings(max_examples=15)
@given(STEPS, st.data())
def test_what_is_asked_becomes_legal_and_what_is_legal_stays(steps: list, data: st.DataObject) -> None:
    program = random_program(steps)
    asked = drawn(data, program, data.draw(st.integers(0, 3)))
    placement = drawn(data, program, data.draw(st.integers(0, 1)) - 1) + 1
    legal = legalise(program, asked, placement)
    assert is_legal(program, legal, placement)
    assert sorted(set(legal.tolist()) - {-1}) == list(range(legal.max() + 1))
    assert all(any(small <= large for large in partition(asked)) for small in partition(legal))
    assert (legalise(program, legal, placement) == legal).all()
    if is_legal(program, asked, placement):
        assert partition(legal) == partition(asked)


@settings(max_examples=12)
@given(STEPS, st.data())
def test_chains_are_legal_long_enough_and_cannot_be_joined(steps: list, data: st.DataObject) -> None:
    program = random_program(steps)
    placement = drawn(data, program, 0) + 1
    chains = pointwise_chains(program, placement)
    assert is_legal(program, chains, placement)
    for group in partition(chains):
        assert len(group) >= 3
        assert all(is_elementwise(program.operations[node]) or program.operations[node].is_view for node in group)
    for producer, node in program.graph.edges.T.tolist():
        if min(chains[producer], chains[node]) >= 0 and chains[producer] != chains[node]:
            joined = np.where(chains == chains[node], chains[producer], chains)
            assert not is_legal(program, joined, placement)


def test_chains_worked_out_by_hand() -> None:
    """x = w negated three times; y = v likewise. The sum of x and what follows from y joins x, so that from then on a
    path leads from y through x to all that follows from x: what joins that with y stays alone."""

    def step(p: dict) -> tuple[torch.Tensor, dict]:
        x, y = p["w"].neg().neg().neg(), p["v"].neg().neg().neg()
        after_x = x.cumsum(0)
        joins = x + y.cumsum(0)
        alone = after_x + y
        return alone.sum(), {"w": joins}

    program = capture(TrainingStep("by hand", step, ({"w": torch.ones(4), "v": torch.ones(4)},)))
    chains = pointwise_chains(program, np.zeros(program.num_nodes, np.int64))
    names = {frozenset(program.operations[node].name for node in group) for group in partition(chains)}
    assert names == {frozenset({"neg", "neg_1", "neg_2", "add"}), frozenset({"neg_3", "neg_4", "neg_5"})}


def by_operations(program: Program, group: Group) -> Callable[..., Any]:
    """What a compiled group computes."""

    def call(*inputs: torch.Tensor) -> Any:
        values: dict[int, Any] = dict(zip(group.inputs, inputs, strict=True))
        resolve = lambda x: (values[x.node] if isinstance(x, Reference) else  # noqa: E731
                             type(x)(map(resolve, x)) if isinstance(x, list | tuple) else x)  # fmt: skip
        for node in group.nodes:
            operation = program.operations[node]
            values[node] = operation.target(*resolve(operation.args), **operation.kwargs)  # type: ignore[misc]
        outputs = [values[node] for node in group.outputs]
        return outputs[0] if len(outputs) == 1 else outputs

    return call


@settings(max_examples=12)
@given(STEPS, st.data())
def test_a_rewritten_program_computes_the_same(steps: list, data: st.DataObject) -> None:
    program = random_program(steps)
    plan = Plan(("cpu:0",), np.zeros(program.num_nodes, np.int64), fusion=drawn(data, program, 1))
    groups = [group for group in fusion_groups(program, plan) if group.outputs]
    made = rewritten(program, {group: by_operations(program, group) for group in groups})  # type: ignore[misc]
    assert outputs_differ(eager(made.program), eager(program)) is None
    assert made.program.num_nodes == program.num_nodes - sum(
        len(group.nodes) - 1 - (len(group.outputs) if len(group.outputs) > 1 else 0) for group in groups
    )
    for group in groups:
        assert len(set(made.node_of[list(group.nodes)].tolist())) == 1


def test_numbers_for_another_program_are_refused() -> None:
    program = random_program([("add", 0, 1)] * 3)
    with pytest.raises(ValueError, match="make the plan again"):
        legalise(program, np.zeros(3, np.int64), np.zeros(3, np.int64))


# ------------------------------------------------------------------------------------------------------- for real

DEVICES = [Device("cpu:0", "cpu", (), 1, "host", "test")]


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty place for what is compiled; the interpreter was loaded before from the usual one."""
    load()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "gst" / "fusion"


def cells(last: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = torch.mul) -> Program:
    """Two cells of one structure, of five element-wise operations and two outputs each, around a product."""

    def step(p: dict, index: torch.Tensor) -> tuple[torch.Tensor, dict]:
        h, c = p["w"][index], p["w"]
        for _ in range(2):
            c = c * torch.sigmoid(h) + torch.tanh(h)
            h = last(c, torch.sigmoid(c)) @ p["w"]
        return h.sum(), {"w": c}

    weights = torch.linspace(-1, 1, 32 * 32).reshape(32, 32)
    return capture(TrainingStep("cells", step, ({"w": weights}, torch.arange(32).flip(0))))


def with_chains(program: Program) -> Plan:
    placement = np.zeros(program.num_nodes, np.int64)
    return Plan(("cpu:0",), placement, fusion=pointwise_chains(program, placement))


@pytest.fixture(scope="module")
def compiled() -> Iterator[tuple[Program, Fused, Path]]:
    """The cells with both groups compiled, once for a checkout until the code changes, and where they lie."""
    load()
    sources = (groups.__file__, fusion.__file__)
    content = [*(Path(each).read_text() for each in sources), torch.__version__, cpu_model()]
    digest = hashlib.sha256("".join(content).encode()).hexdigest()[:16]
    kept = Path(__file__).parents[2] / ".pytest_cache" / f"fusion-{digest}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(kept))
        program = cells()
        yield program, fused(program, with_chains(program), DEVICES, keep_if_faster=False), kept / "gst" / "fusion"


@pytest.fixture
def kept(compiled: tuple[Program, Fused, Path], cache: Path) -> tuple[Program, str]:
    """A cache with the compiled cell, recorded as faster, and its key."""
    program, made, home = compiled
    shutil.copytree(home, cache)
    key = made.records[0][1].key
    record_as(cache, key, compiled_us=1.0, eager_us=2.0)
    return program, key


def record_as(cache: Path, key: str, **changes: Any) -> None:
    path = cache / key / groups.RECORD
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.slow
@needs_compiler
def test_groups_of_one_structure_are_compiled_once_and_compute_the_same(compiled: tuple[Program, Fused, Path]) -> None:
    program, made, home = compiled
    (first, record), (second, again) = made.records
    assert record == again and record.reason == "" and record.compile_s > 0 and first.nodes != second.nodes
    assert [path.name for path in home.iterdir()] == [record.key]
    assert made.num_groups == 2 and made.program.num_nodes < program.num_nodes
    assert outputs_differ(eager(made.program), eager(program)) is None
    with NativeExecutor(made.program, DEVICES) as native:
        assert outputs_differ(native.run(made.plan), eager(program)) is None


@pytest.mark.slow
@needs_compiler
def test_what_was_recorded_decides_and_nothing_is_compiled_again(
    kept: tuple[Program, str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, key = kept
    monkeypatch.setattr("gst.execution.groups.make", None)
    assert fused(program, with_chains(program), DEVICES).num_groups == 2
    record_as(cache, key, compiled_us=3.0)
    assert fused(program, with_chains(program), DEVICES).num_groups == 0
    assert fused(program, with_chains(program), DEVICES, keep_if_faster=False).num_groups == 2


@pytest.mark.slow
@needs_compiler
def test_the_executor_runs_fused_plans(kept: tuple[Program, str]) -> None:
    program, _ = kept
    plan, want = with_chains(program), eager(program)
    assert plan.fusion is not None
    transposed = [program.inputs[0].t().contiguous().t(), program.inputs[1]]  # another layout than it is compiled for
    other = [program.inputs[0] * 2, program.inputs[1]]
    with NativeExecutor(program, DEVICES) as native:
        for given, expected in ((None, want), (transposed, want), (other, eager(program, other))):
            assert outputs_differ(native.run(plan, given), expected) is None
            begin = native.last_timeline.begin_us
            for group in partition(plan.fusion):
                assert len({begin[node] for node in group}) == 1
        with pytest.raises(ExecutionError) as caught:
            native.run(plan, [program.inputs[0], torch.full((32,), 99)])
        assert "index" in program.operations[caught.value.node].name


@pytest.mark.slow
@needs_compiler
def test_a_group_that_computes_something_else_is_left_alone(
    kept: tuple[Program, str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, key = kept
    monkeypatch.setattr(groups, "_compile", lambda _, path, threads: shutil.copy(cache / key / groups.LIBRARY, path))
    program = cells(torch.sub)
    made = fused(program, with_chains(program), DEVICES, keep_if_faster=False)
    assert made.num_groups == 0 and "is off by" in made.records[0][1].reason


@needs_compiler
def test_a_group_that_cannot_be_compiled_is_left_alone_with_a_reason(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def refuse(*_: Any, **__: Any) -> None:
        calls.append(1)
        raise RuntimeError("no such\ncompiler")

    monkeypatch.setattr("torch._inductor.aot_compile", refuse)
    program = cells()
    plan = with_chains(program)
    for _ in range(2):
        made = fused(program, plan, DEVICES)
        assert made.num_groups == 0 and {record.reason for _, record in made.records} == {"RuntimeError: no such"}
    assert len(calls) == 1
    with NativeExecutor(program, DEVICES) as native:
        assert outputs_differ(native.run(plan), eager(program)) is None
    next(cache.glob(f"*/{groups.RECORD}")).write_text("{")  # a damaged record is made again
    assert fused(program, plan, DEVICES).num_groups == 0 and len(calls) == 2


def test_a_group_keeps_its_device_and_the_greatest_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    program = cells()
    priority = np.arange(program.num_nodes, dtype=np.int64)
    chains = with_chains(program)
    plan = Plan(chains.devices, chains.placement, priority, chains.fusion)
    record = groups.Record("key", 5, 1, 1.0, 1.0, 2.0)
    monkeypatch.setattr("gst.execution.groups.recorded", lambda key: record)
    made = fused(program, plan, DEVICES)
    assert made.plan.fusion is None and made.plan.priority is not None
    for group, _ in made.records:
        node = made.node_of[group.nodes[0]]
        assert made.plan.priority[[node, node + 1, node + 2]].tolist() == [max(group.nodes)] * 3  # and its items
    with pytest.raises(ValueError, match="uses device 'cpu:0'"):
        fused(program, plan, [])
