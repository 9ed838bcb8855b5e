"""Derived node features against what the HLO module itself says, worked out by hand, and on damaged input."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError

from experiments.reproductions.kaggle.derived import Derived
from experiments.reproductions.kaggle.node_features import COST_COLUMNS, FEATURES, MODULO_COLUMNS, TILE_COLUMNS, enrich
from experiments.reproductions.kaggle.pruning import reduce
from experiments.reproductions.tpugraphs.columns import LAYOUT, OF_CONVOLUTIONS, OF_WINDOWS, SHAPE, entries
from gst.data import TpuGraphs, TpuGraphsCollection, read_hlo
from gst.data.hlo import NODE_FEATURES, OPCODE_NAMES
from gst.data.hlo.modules import HloModule, ModuleTuningData
from gst.data.tpugraphs import read
from gst.graphs.graph import Graph
from tests.files import FIXTURES, shared_or_fixture

HLO = FIXTURES / "hlo"
UNET = shared_or_fixture("pb/module_tuning_data_layout.pb", "hlo/unet_3d_part.pb")
MODULES = [UNET, *sorted(HLO.glob("*.pb"))]
modules = pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)


def module_of(path: Path) -> Any:
    with suppress(DecodeError):
        tuned = ModuleTuningData.FromString(path.read_bytes()).module
        if any(computation.instructions for computation in tuned.computations):
            return tuned
    return HloModule.FromString(path.read_bytes())


def instructions(path: Path) -> list[Any]:
    return [instruction for computation in module_of(path).computations for instruction in computation.instructions]


def columns_of(graph: Graph, *names: str) -> dict[str, np.ndarray]:
    """By name, of an enriched graph."""
    added = [("costs", COST_COLUMNS), ("modulo", MODULO_COLUMNS), ("tiles", TILE_COLUMNS)]
    wanted = [*NODE_FEATURES, *(column for name, columns in added if name in names for column in columns)]
    table = enrich(graph, names).node_features
    assert table.shape == (graph.num_nodes, len(wanted)) and table.dtype == np.float32
    return dict(zip(wanted, table.T, strict=True))


def node(opcode: str, sizes: tuple[int, ...] = (), element: str = "f32", **columns: float) -> dict[str, float]:
    """Columns of an array in the usual layout, all others 0 or, for products, 1."""
    values = dict.fromkeys(NODE_FEATURES, 0.0) | {name: 1.0 for name in NODE_FEATURES if name.endswith("_product")}
    values |= {f"{SHAPE}_{i}": float(size) for i, size in enumerate(sizes)}
    values |= {f"{LAYOUT}_{i}": float(place) for i, place in enumerate(reversed(range(len(sizes))))}
    values |= {f"{SHAPE}_product": float(np.prod(sizes)), f"shape_element_type_is_{element}": 1.0}
    assert columns.keys() <= values.keys()
    return values | columns | {"opcode": OPCODE_NAMES.index(opcode)}


def made(nodes: list[dict[str, float]], edges: list[tuple[int, int]], config_nodes: tuple[int, ...] = ()) -> Graph:
    return Graph(
        np.array([[each[name] for name in NODE_FEATURES] for each in nodes], np.float32),
        np.array(edges, np.int64).reshape(-1, 2).T,
        np.array([each["opcode"] for each in nodes], np.int64),
        np.array(config_nodes, np.int64),
        np.full((2, len(config_nodes), 18), -1, np.int8),
        name="made",
    )


# Where lists end -----------------------------------------------------------------------------------

TRUE_LISTS: dict[str, Callable[[Any], Any]] = {
    SHAPE: lambda i: i.shape.dimensions,
    LAYOUT: lambda i: i.shape.layout.minor_to_major,
    "dimensions": lambda i: i.dimensions,
    **dict.fromkeys(OF_WINDOWS, lambda i: i.window.dimensions),
    OF_CONVOLUTIONS[0]: lambda i: i.convolution_dimension_numbers.input_spatial_dimensions,
    OF_CONVOLUTIONS[1]: lambda i: i.convolution_dimension_numbers.kernel_spatial_dimensions,
    **{f"slice_dims_{part}": lambda i: i.slice_dimensions for part in ("start", "stride", "limit")},
    "dynamic_slice_sizes": lambda i: i.dynamic_slice_sizes,
    **{f"padding_config_edge_padding_{end}": lambda i: i.padding_config.dimensions for end in ("low", "high")},
}


@modules
def test_padding_is_minus_one_and_nothing_else_changes(path: Path) -> None:
    graph = read_hlo(path)
    before, after = columns_of(graph), columns_of(graph, "padding")
    for name, true_list in TRUE_LISTS.items():
        length = np.array([len(true_list(instruction)) for instruction in instructions(path)])
        for place, column in enumerate(entries(name)):
            np.testing.assert_array_equal(after[column], np.where(place < length, before[column], -1), column)
    for column in NODE_FEATURES:
        assert ((after[column] == before[column]) | (after[column] == -1)).all()
    kept = ["is_root", "is_stable", "shape_tuple_shapes_size", "feature_group_count", *NODE_FEATURES[1:21]]
    for column in kept:
        np.testing.assert_array_equal(after[column], before[column])
    is_parameter = [each.opcode == "parameter" for each in instructions(path)]
    convolves = [each.HasField("convolution_dimension_numbers") for each in instructions(path)]
    given = {"parameter_number": is_parameter, "convolution_dim_numbers_input_batch_dim": convolves}
    for column, present in given.items():
        np.testing.assert_array_equal(after[column], np.where(present, before[column], -1), column)


# Flops and bytes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right", "own", "width"),
    [
        ((2, 6), (6, 4), (2, 4), 6),
        ((7,), (7,), (), 7),
        ((3,), (4,), (3, 4), 1),
        ((5, 2, 6), (5, 6, 4), (5, 2, 4), 6),
        ((8, 3, 2, 6), (8, 3, 4, 6), (8, 3, 2, 4), 6),
        ((2, 6, 5), (6, 5, 4), (2, 4), 30),
        ((2, 0), (0, 4), (2, 4), 0),
    ],
)
def test_contracted_sizes_by_hand(left: Any, right: Any, own: Any, width: int) -> None:
    graph = made([node("constant", left), node("constant", right), node("dot", own)], [(0, 2), (1, 2)])
    assert columns_of(graph, "costs")["flops"].tolist() == [0, 0, 2 * np.prod(own, dtype=int) * width]


def test_costs_of_a_small_program_by_hand() -> None:
    window = {"window_size_product": 6.0, "window_stride_product": 3.0}
    nodes = [
        node("parameter", (4, 10), "bf16"),
        node("add", (4, 10), "bf16"),  # 40 elements of 2 bytes, twice the same operand
        node("parameter"),
        node("add", is_root=1.0),  # of the reduction
        node("reduce", (4,), "bf16"),
        node("reduce-window", (4, 5), "f32", **window),
        node("select-and-scatter", (4, 10), "f32", **window),
        node("slice", (1, 10), "bf16"),
        node("tuple", element="tuple", shape_tuple_shapes_size=2.0),
        node("compare", (4, 10), "pred"),
    ]
    edges = [(0, 1), (2, 3), (1, 4), (2, 4), (3, 4), (1, 5), (5, 6), (1, 6), (1, 7), (4, 8), (7, 8), (1, 9), (0, 9)]
    columns = columns_of(made(nodes, edges), "costs")
    assert columns["flops"].tolist() == [0, 40, 0, 1, 36, 20 * 5, 40 * 6 / 3, 0, 0, 40]
    assert columns["bytes_written"].tolist() == [0, 80, 0, 4, 8, 80, 160, 20, 0, 40]
    assert columns["bytes_read"].tolist() == [0, 80, 0, 4, 80 + 4, 80, 80 + 80, 20, 0, 160]


# One switch for all --------------------------------------------------------------------------------


def test_the_order_of_names_does_not_matter_and_the_rest_of_the_graph_stays() -> None:
    graph = read_hlo(HLO / "unet_3d_part.pb")
    every = enrich(graph, list(FEATURES))
    assert every.digest() == enrich(graph, list(FEATURES)[::-1]).digest()
    width = 140 + len(COST_COLUMNS) + len(MODULO_COLUMNS) + len(TILE_COLUMNS)
    assert every.node_features.shape == (graph.num_nodes, width)
    for same in ("edges", "opcodes", "config_nodes", "config_features", "targets", "counts", "spreads", "name"):
        np.testing.assert_array_equal(getattr(every, same), getattr(graph, same))
    assert enrich(graph, ()) is graph
    for name in FEATURES:
        assert enrich(graph, [name]).digest() != graph.digest()


def test_a_source_derives_from_files_and_collections_alike(tmp_path: Path, tile_kernels: list[Path]) -> None:
    folder = tmp_path / "tile/xla/train"
    folder.mkdir(parents=True)
    path = shutil.copy(tile_kernels[0], folder)
    wanted = reduce(enrich(read(path), ["costs", "padding"]), "hops:1").digest()
    settings: dict[str, Any] = {"features": ["padding", "costs"], "reduction": "hops:1"}
    for source in (TpuGraphs([str(path)]), TpuGraphsCollection(str(tmp_path), "tile/xla")):
        assert [graph.digest() for graph in Derived(source, **settings)] == [wanted]
        assert [graph.digest() for graph in Derived(source)] == [read(path).digest()]
        variants = ({}, settings, {"features": ["costs"]}, {"features": ["padding"]}, {"reduction": "hops:1"},
                    {"reduction": "hops:2"})  # fmt: skip
        fingerprints = [Derived(source, **each).fingerprint() for each in variants]
        assert len(set(fingerprints)) == len(variants)
        swapped = Derived(source, **settings | {"features": ["costs", "padding"]})
        assert swapped.fingerprint() == fingerprints[1]


# Bad input -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FEATURES)
def test_graphs_that_lack_columns_are_refused(name: str, alexnet: Path) -> None:
    graph = read(alexnet)
    with pytest.raises(ValueError, match=rf"'{graph.name}' has 70 node features, but {name} read the 140 columns"):
        enrich(graph, [name])
    twice = enrich(read_hlo(HLO / "unet_3d_part.pb"), ["costs"])
    with pytest.raises(ValueError, match=r"has 143 node features"):
        enrich(twice, [name])
