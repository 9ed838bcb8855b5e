"""HLO text: the protobuf that XLA writes of the same module, and what it prints in more than one way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gst.data import read_hlo
from gst.data.hlo import NODE_FEATURES, OPCODE_NAMES
from gst.data.hlo.messages import HloModule
from gst.data.hlo.text import parse_module
from gst.graphs.graph import Graph
from tests.files import FIXTURES
from tests.relabelling import relabelled_graph

HLO = FIXTURES / "hlo"
BODY = """HloModule small

ENTRY main {{
  a = f32[4,6]{{1,0}} parameter(0)
  b = f32[6,4]{{1,0}} parameter(1)
  {}
}}
"""


def of_line(tmp_path: Path, line: str) -> tuple[Graph, dict[str, float]]:
    """The graph of two parameters and one more instruction, and the features of that one which are not 0 or 1."""
    (tmp_path / "small.txt").write_text(BODY.format(line))
    graph = read_hlo(tmp_path / "small.txt")
    row = dict(zip(NODE_FEATURES, graph.node_features[-1].tolist(), strict=True))
    return graph, {name: value for name, value in row.items() if value not in (0, 1)}


@pytest.mark.parametrize("name", ["lowered", "zoo"])
def test_same_as_the_protobuf(name: str) -> None:
    text, protobuf = read_hlo(HLO / f"{name}.txt"), read_hlo(HLO / f"{name}.pb")
    for column, feature in enumerate(NODE_FEATURES):
        np.testing.assert_array_equal(text.node_features[:, column], protobuf.node_features[:, column], feature)
    assert text.digest() == protobuf.digest()


def test_same_as_the_protobuf_of_a_scheduled_module_but_for_the_order() -> None:
    """Instructions have the same names in both."""
    text, protobuf = read_hlo(HLO / "compiled.txt"), read_hlo(HLO / "compiled.pb")
    places = {
        (computation.name, instruction.name): node
        for node, (computation, instruction) in enumerate(
            (computation, instruction)
            for computation in parse_module((HLO / "compiled.txt").read_text()).computations
            for instruction in computation.instructions
        )
    }
    module = HloModule.FromString((HLO / "compiled.pb").read_bytes())
    order = np.array([places[c.name, i.name] for c in module.computations for i in c.instructions])
    assert (order != np.arange(len(order))).any()
    same = relabelled_graph(text, order)
    np.testing.assert_array_equal(same.node_features, protobuf.node_features)
    np.testing.assert_array_equal(same.opcodes, protobuf.opcodes)
    assert set(map(tuple, same.edges.T)) == set(map(tuple, protobuf.edges.T))
    assert set(same.config_nodes) == set(protobuf.config_nodes)


def test_what_shorthand_wraps_is_written_out() -> None:
    """XLA makes up other names for it, so nodes are told by their features."""

    def edges(graph: Graph) -> list[tuple[bytes, ...]]:
        nodes = np.column_stack([graph.opcodes, graph.node_features])
        return sorted(tuple(nodes[end].tobytes() for end in edge) for edge in graph.edges.T)

    text, protobuf = read_hlo(HLO / "async.txt"), read_hlo(HLO / "async.pb")
    assert text.num_nodes == protobuf.num_nodes == 22
    assert edges(text) == edges(protobuf)
    kinds = [OPCODE_NAMES[number] for number in text.opcodes]
    assert kinds.count("async-start") == 3 and kinds.count("async-update") == 1 and "slice" in kinds


def test_a_convolution_by_hand(tmp_path: Path) -> None:
    graph, row = of_line(
        tmp_path,
        "ROOT c = bf16[2,7,8,9]{0,2,1,3:T(8,128)} convolution(f32[4,6]{1,0} %a, /*index=1*/f32[6,4]{1,0} %b), "
        "window={size=3x5 stride=2x1 pad=0_4x-1_2 rhs_dilate=1x3}, dim_labels=01bf_o1i0->bf10, feature_group_count=6, "
        'metadata={op_name="a, \\"b\\" }"}, backend_config={"x":{"y":["}"]}}, new_attribute=[2,3]<=[6]T(1,0)',
    )
    assert OPCODE_NAMES[graph.opcodes[-1]] == "convolution"
    assert graph.edges.tolist() == [[0, 1], [2, 2]]
    assert row == {
        "shape_dimensions_0": 2, "shape_dimensions_1": 7, "shape_dimensions_2": 8, "shape_dimensions_3": 9,
        "shape_dimensions_sum": 26, "shape_dimensions_product": 1008,
        "window_size_0": 3, "window_size_1": 5, "window_size_sum": 8, "window_size_product": 15,
        "window_stride_0": 2, "window_stride_sum": 3, "window_stride_product": 2,
        "window_padding_low_1": -1, "window_padding_low_sum": -1,
        "window_padding_high_0": 4, "window_padding_high_1": 2, "window_padding_high_sum": 6,
        "window_padding_high_product": 8,
        "window_window_dilation_1": 3, "window_window_dilation_sum": 4, "window_window_dilation_product": 3,
        "window_base_dilation_sum": 2, "window_window_reversal_false_count": 2,
        "convolution_dim_numbers_input_batch_dim": 2, "convolution_dim_numbers_input_feature_dim": 3,
        "convolution_dim_numbers_kernel_input_feature_dim": 2,
        "convolution_dim_numbers_kernel_spatial_dims_0": 3,
        "feature_group_count": 6, "layout_minor_to_major_1": 2, "layout_minor_to_major_3": 3,
    }  # fmt: skip


def test_a_shape_without_a_layout_has_the_usual_one(tmp_path: Path) -> None:
    _, row = of_line(tmp_path, "ROOT n = f32[2,3,4] negate(a)")
    _, printed = of_line(tmp_path, "ROOT n = f32[2,3,4]{2,1,0} negate(a)")
    assert row == printed and row["layout_minor_to_major_0"] == 2


def test_an_unknown_kind_and_an_unknown_type_of_elements(tmp_path: Path) -> None:
    graph, _ = of_line(tmp_path, "ROOT n = f6e3m2fn[2]{0} made-up(a), attribute={x=1}")
    assert graph.opcodes[-1] == 0
    assert not graph.node_features[-1, 2:21].any()


def test_without_a_mark_the_last_instruction_is_the_root(tmp_path: Path) -> None:
    graph, _ = of_line(tmp_path, "n = f32[4,6]{1,0} negate(a)")
    assert graph.node_features[:, 0].tolist() == [0, 0, 1]


def test_a_literal_of_many_lines(tmp_path: Path) -> None:
    graph, _ = of_line(tmp_path, "ROOT n = f32[2,2]{1,0} constant({\n { 1, 2 },\n { inf, -nan }\n})")
    assert graph.num_nodes == 3 and not graph.edges.size
