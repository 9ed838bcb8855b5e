"""Whatever the plan, outputs are those of the program; a failure is reported and the executor survives it."""

import copy
import dataclasses
import gc
import os
import threading
import weakref
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from gst.execution.executor import GraphExecutor
from gst.execution.lanes import LaneExecutor
from gst.lowering.calls import eager
from gst.lowering.lower import stream_program
from gst.lowering.plan import RUN, ExecutionError, Plan
from gst.machine.devices import Device, discover
from gst.programs import Program, Reference, Step, TrainingStep, capture, outputs_differ
from tests.made_devices import pair

NAMES = ("cpu:0", "cpu:1")


def random_plan(program: Program, rng: np.random.Generator, names: Sequence[str] = NAMES) -> Plan:
    """Nodes anywhere, even a view far from its base, in any priority."""
    placement = rng.integers(0, len(names), program.num_nodes)
    return Plan(tuple(names), placement, rng.integers(-5, 5, program.num_nodes))


def alone(program: Program, name: str = "cpu:0", priority: np.ndarray | None = None) -> Plan:
    return Plan((name,), np.zeros(program.num_nodes, np.int64), priority)


def order_of(program: Program, plan: Plan, devices: Sequence[Device]) -> dict[str, tuple[int, ...]]:
    """Operations of each lane that has some, in the order in which it runs them."""
    streams = stream_program(program, plan, devices)
    members, runs = streams.members.lists(), streams.kind == RUN
    orders = {
        name: tuple(node for group in streams.argument[begin:end][runs[begin:end]].tolist() for node in members[group])
        for name, begin, end in zip(streams.lanes, streams.bounds[:-1], streams.bounds[1:], strict=True)
    }
    return {name: order for name, order in orders.items() if order}


def test_an_expanded_value_is_copied_with_its_strides() -> None:
    """As the heads of grouped-query attention are; written out, the product could not be viewed."""

    def heads(x: torch.Tensor) -> torch.Tensor:
        repeated = x.transpose(1, 2)[:, :, None].expand(2, 1, 2, 8, 8)
        return (repeated.view(2, 2, 8, 8) * 2.0).view(4, 8, 8)

    program = capture(Step("heads", heads, (torch.randn(2, 8, 1, 8),)))
    expanded = next(n for n, each in enumerate(program.operations) if str(each.target) == "aten.expand.default")
    plan = Plan(NAMES, (np.arange(program.num_nodes) <= expanded).astype(np.int64))
    devices = pair(separate_memory=True)
    streams = stream_program(program, plan, devices)
    assert outputs_differ(LaneExecutor(program, streams, devices).run(), eager(program)) is None


def test_priority_orders_what_is_ready() -> None:
    step = TrainingStep("many", lambda p: (p["w"].sum(), {k: p["w"] * k for k in range(1, 9)}), ({"w": torch.ones(2)},))
    program = capture(step)
    priority = np.random.default_rng(0).permutation(program.num_nodes)
    want = tuple(sorted(range(1, program.num_nodes), key=lambda node: -priority[node]))
    split = Plan(NAMES, np.array([0] + [1] * (program.num_nodes - 1)), priority)
    devices = pair(separate_memory=True)
    assert order_of(program, alone(program, priority=priority), devices) == {"cpu:0": want}
    assert order_of(program, split, devices) == {"cpu:1": want}
    assert order_of(program, alone(program), devices) == {"cpu:0": tuple(range(1, program.num_nodes))}


def broken(program: Program, node: int, error: BaseException) -> Program:
    """The program with a node that raises when `flag` is set."""

    def fail(*_: object, **__: object) -> None:
        raise error

    operations = list(program.operations)
    operations[node] = dataclasses.replace(operations[node], target=fail)
    return dataclasses.replace(program, operations=tuple(operations))


@pytest.mark.parametrize("separate_memory", [False, True])
def test_a_failing_operation_is_reported_and_the_executor_survives(program: Program, separate_memory: bool) -> None:
    node = max(n for n, each in enumerate(program.operations) if each.kind == "operation" and not each.is_view) // 2
    while program.operations[node].kind != "operation":
        node += 1
    bad = broken(program, node, RuntimeError("out of luck"))
    plan = random_plan(program, np.random.default_rng(0))
    with GraphExecutor(bad, pair(separate_memory)) as running:
        for attempt in (plan, alone(bad), plan):
            with pytest.raises(ExecutionError, match=rf"^step \d+ of cpu:\d \(run {node}\): .*out of luck"):
                running.run(attempt)
        assert running.submit("cpu:1", lambda: "alive") == "alive"


def test_threads_of_the_worker_are_its_own(program: Program) -> None:
    before, alive = torch.get_num_threads(), set(threading.enumerate())
    with GraphExecutor(program, pair(separate_memory=False)) as running:
        running.run(random_plan(program, np.random.default_rng(0)))
        assert torch.get_num_threads() == before
        assert [running.submit(name, torch.get_num_threads) for name in NAMES] == [1, 1]
        later: list[int] = []
        thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert later == [before]
    assert set(threading.enumerate()) <= alive


def test_the_worker_keeps_to_the_cores_of_its_device(program: Program) -> None:
    device = discover()[-1] if discover()[-1].kind == "cpu" else discover()[0]
    with GraphExecutor(program, [device]) as running:
        assert running.submit(device.name, lambda: tuple(sorted(os.sched_getaffinity(0)))) == device.cores


@pytest.mark.parametrize("separate_memory", [False, True])
def test_values_are_freed_at_their_last_use(separate_memory: bool) -> None:
    """A chain of ten: at the end no more than the last two values may be alive, on either side."""
    alive: list[weakref.ref] = []
    most = 0

    def watched(value: torch.Tensor) -> torch.Tensor:
        nonlocal most
        result = value + 1
        alive.append(weakref.ref(result))
        most = max(most, sum(ref() is not None for ref in alive))
        return result

    def chain(parameters: dict) -> tuple:
        x = parameters["w"]
        for _ in range(10):
            x = x + 1
        return x.sum(), {}

    program = capture(TrainingStep("chain", chain, ({"w": torch.ones(4)},)))
    operations = tuple(
        dataclasses.replace(each, target=lambda value, _: watched(value)) if "add" in str(each.target) else each
        for each in program.operations
    )
    program = dataclasses.replace(program, operations=operations)
    gc.collect()
    with GraphExecutor(program, pair(separate_memory)) as running:
        for plan in (alone(program), Plan(NAMES, np.arange(program.num_nodes) % 2)):
            running.compile(plan)
            alive.clear()
            most = 0
            assert running.run(plan)[0].item() == 44
            assert most <= 4, f"{most} values alive at once"
        assert sum(ref() is not None for ref in alive) == 0


def test_constants_inputs_and_plain_values_may_be_outputs() -> None:
    mask = torch.tensor([1.0, 0.0])
    step = TrainingStep(
        "same", lambda p: ((p["w"] * mask).sum(), {"w": p["w"], "m": mask, "n": 3}), ({"w": torch.ones(2)},)
    )
    program = capture(step)
    assert isinstance(program.outputs[1], Reference)
    with GraphExecutor(program, pair(separate_memory=True)) as running:
        outputs = running.run(Plan(NAMES, np.arange(program.num_nodes) % 2))
    assert outputs_differ(outputs, eager(program)) is None and outputs[-1] == 3


def test_an_error_of_a_run_is_the_same_in_another_process() -> None:
    for error in (ExecutionError("out of luck", "cpu:1", 7), ExecutionError("timed out after 3 s")):
        again = copy.copy(error)  # made as `pickle` makes it
        assert (again.reason, again.device, again.node) == (error.reason, error.device, error.node)
        assert str(again) == str(error)
