"""Laws of captured programs, and what cannot be captured."""

import operator

import numpy as np
import pytest
import torch

from gst.devices import eager, pytorch
from gst.programs import (
    WORKLOADS,
    Program,
    Reference,
    TrainingStep,
    capture,
    outputs_differ,
    resolve,
)

from .small import SMALL


@pytest.fixture(scope="module", params=sorted(SMALL))
def step(request: pytest.FixtureRequest) -> TrainingStep:
    return WORKLOADS[request.param](**SMALL[request.param])


@pytest.fixture(scope="module")
def program(step: TrainingStep) -> Program:
    return capture(step)


def test_nodes_are_in_topological_order_and_edges_are_what_operations_read(program: Program) -> None:
    producers, consumers = program.graph.edges
    assert program.num_nodes == program.graph.num_nodes == len(program.operations)
    assert (producers < consumers).all() and producers.min() >= 0 and consumers.max() < program.num_nodes
    assert set(zip(producers.tolist(), consumers.tolist(), strict=True)) == {
        (producer, node) for node, each in enumerate(program.operations) for producer in each.producers
    }
    kinds = [each.kind for each in program.operations]
    assert kinds[: len(program.inputs)] == ["input"] * len(program.inputs) and kinds.count("input") == len(
        program.inputs
    )


def test_the_program_computes_what_the_step_computes(program: Program, step: TrainingStep) -> None:
    assert outputs_differ(eager(program), pytorch(step)) is None
    loss, parameters = program.unflatten(eager(program))
    assert loss.ndim == 0 and list(parameters) == list(step.inputs[0])


def test_shapes_and_dtypes_are_those_of_the_values(program: Program) -> None:
    for output, value in zip(program.outputs, eager(program), strict=True):
        operation = program.operations[output.node]
        assert operation.shapes == (tuple(value.shape),) and operation.dtypes == (value.dtype,)
        assert (
            operation.output_bytes
            == value.numel() * value.element_size()
            == program.output_bytes[output.node]
        )


def test_views_and_items_are_placed_with_their_producer(program: Program) -> None:
    groups = program.colocation
    assert groups.shape == (program.num_nodes,) and groups.dtype == np.int64
    assert set(groups.tolist()) == set(range(program.num_groups))
    views = [(node, each) for node, each in enumerate(program.operations) if each.is_view]
    assert any(each.target is operator.getitem for _, each in views)
    assert any(each.target is torch.ops.aten.t.default for _, each in views)
    for node, operation in views:
        assert groups[node] == groups[operation.producers[0]]


def test_the_update_of_a_parameter_is_placed_with_it(program: Program, step: TrainingStep) -> None:
    updates = [each.node for each in program.outputs[1:]]
    assert len(updates) == len(step.inputs[0])
    assert [program.colocation[node] for node in updates] == [
        program.colocation[node] for node in range(len(updates))
    ]
    assert len({program.colocation[node] for node in updates}) > len(updates) // 2, (
        "parameters are not one lump"
    )


def test_large_operations_are_free(program: Program) -> None:
    """Products of matrices and convolutions are not tied together: a group has at most one of them."""
    heavy = [
        program.colocation[node]
        for node, each in enumerate(program.operations)
        if each.target in (torch.ops.aten.mm.default, torch.ops.aten.convolution.default)
    ]
    assert len(heavy) > 3 and len(set(heavy)) == len(heavy)


def test_a_captured_tensor_is_a_constant() -> None:
    mask = torch.tensor([1.0, 0.0])
    program = capture(
        TrainingStep("masked", lambda p: (p["w"].sum(), {"w": p["w"] * mask}), ({"w": torch.ones(2)},))
    )
    assert [each.kind for each in program.operations].count("constant") == 1
    assert eager(program)[1].tolist() == [1.0, 0.0]


def test_an_output_may_be_an_input_or_a_plain_value() -> None:
    program = capture(
        TrainingStep("same", lambda p: (p["w"].sum(), {"w": p["w"], "n": 3}), ({"w": torch.ones(2)},))
    )
    assert program.outputs[1:] == (Reference(0), 3)
    assert eager(program)[2] == 3


def _depends_on_values(parameters: dict) -> tuple:
    return (parameters["w"] * 2, {}) if parameters["w"].sum() > 0 else (parameters["w"], {})


def _in_place(parameters: dict) -> tuple:
    return parameters["w"].clone().add_(1).sum(), parameters


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_depends_on_values, "cannot be captured.*do not depend on the values"),
        (_in_place, r"in place \(aten.add_"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_one_line(function: object, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        capture(TrainingStep("bad", function, ({"w": torch.ones(3)},)))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_inputs_must_be_tensors() -> None:
    with pytest.raises(ValueError, match="flat input 1 is a int"):
        capture(TrainingStep("bad", lambda p, n: (p["w"] * n, {}), ({"w": torch.ones(3)}, 3)))


def tiny() -> TrainingStep:
    return TrainingStep("tiny", lambda p: (p["w"].sum(), p), ({"w": torch.ones(2)},))


def no_step() -> int:
    return 3


def test_a_function_is_found_by_name() -> None:
    assert capture(resolve(f"{__name__}:tiny")).name == "tiny"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "inception, rnnlm"),
        ("no_such_module:f", "cannot import 'no_such_module'"),
        (f"{__name__}:absent", "has no function 'absent'"),
        (f"{__name__}:no_step", "returned a int"),
    ],
)
def test_a_wrong_name_is_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        capture(resolve(name))
