"""XLA protobufs: the published arrays of the same module, one worked out by hand, and the npz format."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gst.data import read_hlo, write_npz
from gst.data.hlo import NODE_FEATURES, OPCODE_NAMES
from gst.data.hlo.modules import HloModule, ModuleTuningData
from gst.data.tpugraphs import read
from gst.graphs.graph import Graph
from tests.files import FIXTURES, shared_or_fixture

HLO = FIXTURES / "hlo"
PART = HLO / "unet_3d_part.pb", HLO / "unet_3d_part.npz"
WHOLE = (
    shared_or_fixture("pb/module_tuning_data_layout.pb", "hlo/unet_3d_part.pb"),
    shared_or_fixture("layout/xla/default/valid/unet_3d.npz", "hlo/unet_3d_part.npz"),
)
both = pytest.mark.parametrize(("protobuf", "published"), [PART, WHOLE], ids=["part", "whole"])


def arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as archive:
        return {key: archive[key] for key in archive.files}


@cache
def every_run(protobuf: Path) -> Graph:
    """Read once, without merging configurations that were measured several times."""
    return read_hlo(protobuf, merge=False)


def saved(path: Path, message: Any) -> Path:
    path.write_bytes(message.SerializeToString())
    return path


@both
def test_the_published_arrays(protobuf: Path, published: Path) -> None:
    graph, wanted = every_run(protobuf), arrays(published)
    assert graph.node_features.shape == wanted["node_feat"].shape == (graph.num_nodes, 140)
    for column, name in enumerate(NODE_FEATURES):
        np.testing.assert_array_equal(graph.node_features[:, column], wanted["node_feat"][:, column], name)
    np.testing.assert_array_equal(graph.opcodes, wanted["node_opcode"])
    np.testing.assert_array_equal(graph.edges[::-1].T, wanted["edge_index"])
    np.testing.assert_array_equal(graph.config_nodes, wanted["node_config_ids"])
    np.testing.assert_array_equal(graph.config_features, wanted["node_config_feat"])
    np.testing.assert_array_equal(graph.targets, wanted["config_runtime"])


@both
def test_the_published_graph(protobuf: Path, published: Path) -> None:
    """After repeated configurations became one."""
    assert read_hlo(protobuf).digest() == read(published).digest()


@both
def test_the_written_npz_is_the_published_one(protobuf: Path, published: Path, tmp_path: Path) -> None:
    write_npz(every_run(protobuf), tmp_path / "deep" / "written.npz")
    written, wanted = arrays(tmp_path / "deep" / "written.npz"), arrays(published)
    assert written.keys() == wanted.keys() - {"node_splits"}
    for key, array in written.items():
        assert array.dtype == wanted[key].dtype, key
        np.testing.assert_array_equal(array, wanted[key], key)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["written.npz"]


@pytest.mark.parametrize("name", ["lowered", "zoo"])
def test_text_has_the_features_of_its_protobuf(name: str) -> None:
    assert read_hlo(HLO / f"{name}.txt").digest() == read_hlo(HLO / f"{name}.pb").digest()


def test_without_jaxlib_text_is_refused_and_protobuf_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"jaxlib, which is not installed.*give protobuf"):
        read_hlo(HLO / "lowered.txt")
    assert read_hlo(HLO / "lowered.pb").num_nodes == 134


def test_without_measurements_all_that_can_be_configured_is_left_to_the_compiler(tmp_path: Path) -> None:
    """They are the nodes that the published files configure, but for dots, of which unet_3d has none."""
    graph = read_hlo(PART[0])
    bare = ModuleTuningData.FromString(PART[0].read_bytes())
    del bare.config_index_to_node[:], bare.runs[:]
    left = read_hlo(saved(tmp_path / "bare.pb", bare))
    assert left.config_nodes.tolist() == sorted(graph.config_nodes)
    assert {OPCODE_NAMES[number] for number in left.opcodes[left.config_nodes]} == {"convolution", "reshape"}
    lowered = read_hlo(HLO / "lowered.pb")
    kinds = {OPCODE_NAMES[number] for number in lowered.opcodes[lowered.config_nodes]}
    assert kinds == {"convolution", "dot", "reshape"}
    assert lowered.config_features.shape == (1, len(lowered.config_nodes), 18)
    assert (lowered.config_features == -1).all()
    assert np.isnan(lowered.targets) and lowered.spreads == 0 and lowered.counts == 1


def test_the_three_messages_are_told_apart(tmp_path: Path) -> None:
    """`HloProto` has the module in field 1, as `ModuleTuningData`, and its buffers in field 3."""
    module = HloModule.FromString((HLO / "lowered.pb").read_bytes())
    plain = read_hlo(HLO / "lowered.pb")
    content = module.SerializeToString()
    size, length = len(content), b""
    while size:
        length += bytes([size & 127 | (size > 127) << 7])
        size >>= 7
    (tmp_path / "proto.pb").write_bytes(b"\x0a" + length + content + b"\x1a\x08\x0a\x06\x08\x01\x10\x04\x20\x02")
    assert read_hlo(tmp_path / "proto.pb").digest() == plain.digest()
    tuning = ModuleTuningData(module=module)
    assert read_hlo(saved(tmp_path / "tuning.pb", tuning)).digest() == plain.digest()


def test_two_computations_by_hand(tmp_path: Path) -> None:
    """sum(x, y) = x + y; the entry reduces a parameter with it, and adds the result to itself."""
    module = HloModule(name="hand")
    add = module.computations.add(id=7, root_id=2)
    add.instructions.add(id=0, opcode="parameter")
    add.instructions.add(id=1, opcode="parameter", parameter_number=1)
    add.instructions.add(id=2, opcode="add", operand_ids=[1, 0])
    entry = module.computations.add(id=8, root_id=5)
    values = entry.instructions.add(id=9, opcode="parameter")
    values.shape.element_type = 16
    values.shape.dimensions.extend([3, 5])
    values.shape.layout.minor_to_major.extend([0, 1])
    entry.instructions.add(id=4, opcode="made-up")
    entry.instructions.add(id=3, opcode="reduce", operand_ids=[9, 4], called_computation_ids=[7], dimensions=[1, 0])
    entry.instructions.add(id=5, opcode="add", operand_ids=[3, 3])
    graph = read_hlo(saved(tmp_path / "hand.pb", module))
    assert [OPCODE_NAMES[number] for number in graph.opcodes] == [
        "parameter", "parameter", "add", "parameter", "unknown", "reduce", "add",
    ]  # fmt: skip
    assert list(zip(*graph.edges.tolist(), strict=True)) == [(0, 2), (1, 2), (2, 5), (3, 5), (4, 5), (5, 6)]
    column = {name: graph.node_features[:, place].tolist() for place, name in enumerate(NODE_FEATURES)}
    assert column["is_root"] == [0, 0, 1, 0, 0, 0, 1]
    assert column["parameter_number"] == [0, 1, 0, 0, 0, 0, 0]
    assert column["dimensions_0"] == [0, 0, 0, 0, 0, 1, 0]
    values_row = dict(zip(NODE_FEATURES, graph.node_features[3].tolist(), strict=True))
    ones = {name for name in NODE_FEATURES if name.endswith("_product")} - {"shape_dimensions_product"}
    assert {name: value for name, value in values_row.items() if value} == {
        "shape_element_type_is_bf16": 1,
        "shape_dimensions_0": 3,
        "shape_dimensions_1": 5,
        "shape_dimensions_sum": 8,
        "shape_dimensions_product": 15,
        "layout_minor_to_major_1": 1,
        **dict.fromkeys(ones, 1),
    }
