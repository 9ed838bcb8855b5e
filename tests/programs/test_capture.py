"""Laws of captured programs, and what cannot be captured."""

import operator

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from gst.lowering.calls import eager
from gst.programs import Program, Reference, Step, TrainingStep, capture, capture_module, outputs_differ


def test_nodes_are_in_topological_order_and_edges_are_what_operations_read(program: Program) -> None:
    producers, consumers = program.graph.edges
    assert program.num_nodes == program.graph.num_nodes == len(program.operations)
    assert (producers < consumers).all() and producers.min() >= 0 and consumers.max() < program.num_nodes
    assert set(zip(producers.tolist(), consumers.tolist(), strict=True)) == {
        (producer, node) for node, each in enumerate(program.operations) for producer in each.producers
    }
    kinds = [each.kind for each in program.operations]
    assert [node for node, kind in enumerate(kinds) if kind == "input"] == list(range(len(program.inputs)))


def test_the_program_computes_what_the_step_computes(program: Program, step: TrainingStep) -> None:
    assert outputs_differ(eager(program), tree_leaves(step.function(*step.inputs))) is None
    loss, state = program.unflatten(eager(program))
    assert loss.ndim == 0 and list(state) == list(step.inputs[0])


def test_shapes_and_dtypes_are_those_of_the_values(program: Program) -> None:
    for output, value in zip(program.outputs, eager(program), strict=True):
        operation = program.operations[output.node]
        assert operation.shapes == (tuple(value.shape),) and operation.dtypes == (value.dtype,)
        assert operation.output_bytes == value.numel() * value.element_size() == program.output_bytes[output.node]


def test_views_and_items_are_placed_with_their_producer(program: Program) -> None:
    groups = program.colocation
    assert groups.shape == (program.num_nodes,) and groups.dtype == np.int64
    assert set(groups.tolist()) == set(range(program.num_groups))
    views = [(node, each) for node, each in enumerate(program.operations) if each.is_view]
    targets = {each.target for _, each in views}
    assert operator.getitem in targets and targets & {torch.ops.aten.t.default, torch.ops.aten.view.default}
    for node, operation in views:
        assert groups[node] == groups[operation.producers[0]]


def test_the_update_of_a_parameter_is_placed_with_it(program: Program, step: TrainingStep) -> None:
    updates = [each.node for each in program.outputs[1:]]
    assert len(updates) == len(step.inputs[0])
    assert [program.colocation[node] for node in updates] == [program.colocation[node] for node in range(len(updates))]
    parameters = [node for node, name in enumerate(step.inputs[0]) if name.endswith("weight")]
    assert len({program.colocation[node] for node in parameters}) > len(parameters) // 2, "parameters are not one lump"
    names = list(step.inputs[0])
    changed = [(node, name) for node, name in enumerate(names) if updates[node] != node]  # others are not used
    slots = [(node, names.index(name.partition("/")[0])) for node, name in changed if "/" in name]
    assert [program.colocation[slot] for slot, _ in slots] == [program.colocation[home] for _, home in slots]


def test_home_of_a_node_is_the_parameter_it_is_views_or_renews(program: Program, step: TrainingStep) -> None:
    homes, state = program.parameter_home, len(step.inputs[0])
    assert homes[:state].tolist() == list(range(state)) and (homes[state : len(program.inputs)] == -1).all()
    assert [homes[output.node] for output in program.outputs[1:]] == list(range(state))
    updates = {output.node for output in program.outputs[1:]}
    for node in set(range(len(program.inputs), program.num_nodes)) - updates:
        operation = program.operations[node]
        assert homes[node] == (homes[operation.producers[0]] if operation.is_view else -1)


def test_a_captured_tensor_is_a_constant() -> None:
    mask = torch.tensor([1.0, 0.0])
    program = capture(TrainingStep("masked", lambda p: (p["w"].sum(), {"w": p["w"] * mask}), ({"w": torch.ones(2)},)))
    assert [each.kind for each in program.operations].count("constant") == 1
    assert eager(program)[1].tolist() == [1.0, 0.0]


def test_an_output_may_be_an_input_or_a_plain_value() -> None:
    program = capture(TrainingStep("same", lambda p: (p["w"].sum(), {"w": p["w"], "n": 3}), ({"w": torch.ones(2)},)))
    assert program.outputs[1:] == (Reference(0), 3)
    assert eager(program)[2] == 3
    program = capture(Step("pair", lambda x: {"twice": [x * 2], "same": (x,)}, (torch.ones(2),)))
    result = program.unflatten(eager(program))
    assert result["twice"][0].tolist() == [2, 2] and result["same"][0].tolist() == [1, 1]


def test_inputs_that_are_the_same_tensor_are_placed_together() -> None:
    tied = torch.ones(200, 200)
    step = TrainingStep("tied", lambda p: (p["a"] @ p["b"] @ p["c"], {}), ({"a": tied, "b": tied, "c": tied * 2},))
    groups = capture(step).colocation
    assert groups[0] == groups[1] != groups[2]
    slices = Step("slices", lambda a, b, c: (a @ b).relu() @ c, tuple(torch.ones(3, 200, 200)))
    assert len(set(capture(slices).colocation[:3].tolist())) > 1


def test_a_module_is_captured_for_inference() -> None:
    layers = torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(), torch.nn.Linear(4, 2)
    model = torch.nn.Sequential(*layers)
    images = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    program = capture_module(model.eval(), (images,), "classifier")
    (output,) = eager(program)
    assert program.name == "classifier" and torch.allclose(output, model(images), atol=1e-6)
    assert program.num_nodes - len(program.inputs) < 8, "no backward pass"
    names = list(dict(model.named_parameters()) | dict(model.named_buffers()))
    assert program.parameter_home[: len(names)].tolist() == list(range(len(names)))
