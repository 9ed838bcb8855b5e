"""Features by hand on a program of four operations, and opcodes that stay."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from gst.programs import FEATURE_NAMES, NUM_OPCODES, Program, TrainingStep, capture
from gst.programs.features import KNOWN_OPERATIONS, flops, opcode
from tests.programs.small import small_program


def _product(parameters: dict) -> tuple:
    product = parameters["a"] @ parameters["b"]
    return product.relu().sum(), {}


def test_features_by_hand() -> None:
    step = TrainingStep("product", _product, ({"a": torch.ones(2, 3), "b": torch.ones(3, 5)},))
    graph = capture(step).graph
    assert graph.node_features.shape == (5, len(FEATURE_NAMES)) and graph.node_features.dtype == np.float32
    column = {name: graph.node_features[:, position] for position, name in enumerate(FEATURE_NAMES)}
    assert np.expm1(column["log_flops"]).round().tolist() == [0, 0, 2 * 2 * 3 * 5, 10, 10]
    assert np.expm1(column["log_output_bytes"]).round().tolist() == [24, 60, 40, 40, 4]
    assert np.expm1(column["log_input_bytes"]).round().tolist() == [0, 0, 84, 40, 40]
    assert column["rank"].tolist() == [2, 2, 2, 2, 0]
    assert column["is_input"].tolist() == [1, 1, 0, 0, 0]
    assert column["is_elementwise"].tolist() == [0, 0, 0, 1, 0]
    assert column["depth"].tolist() == pytest.approx([0, 0, 1 / 3, 2 / 3, 1])
    assert column["height"].tolist() == pytest.approx([1, 1, 2 / 3, 1 / 3, 0])


def test_flops_of_products_and_convolutions_are_those_pytorch_counts(program: Program, step: TrainingStep) -> None:
    with FlopCounterMode(display=False) as counter:
        step.function(*step.inputs)
    counts = {packet.__name__: count for packet, count in counter.get_flop_counts()["Global"].items()}
    if program.name.startswith("wavenet"):  # its last residual convolution feeds nothing and is not in the program
        del counts["convolution"]
    counted = flops(program.operations)
    for name, count in counts.items():
        mine = [each.kind == "operation" and each.target.__name__.split(".")[0] == name for each in program.operations]
        assert counted[mine].sum() == count, name


def test_opcodes_fit_and_tell_kinds_apart() -> None:
    operations = small_program("rnnlm").operations
    numbers = [opcode(each) for each in operations]
    assert min(numbers) >= 0 and max(numbers) < NUM_OPCODES
    assert {number for number, each in zip(numbers, operations, strict=True) if each.kind == "input"} == {0}
    named = {str(each.target): number for number, each in zip(numbers, operations, strict=True) if each.target}
    assert named["aten.mm.default"] == 2 + KNOWN_OPERATIONS.index("mm") != named["aten.addmm.default"]


def test_numbers_of_known_operations_are_never_changed() -> None:
    """They are stored with datasets: append only."""
    assert KNOWN_OPERATIONS[0] == "_log_softmax" and len(set(KNOWN_OPERATIONS)) == len(KNOWN_OPERATIONS)
    assert [KNOWN_OPERATIONS.index(name) for name in ("addmm", "convolution", "mm", "zeros_like")] == [10, 25, 61, 113]
