"""Programs in the same columns: AlexNet's recovered, layouts by their meaning, and models that never saw the U-Net."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.reproductions.kaggle.node_features import FEATURES, enrich
from experiments.reproductions.tpugraphs import across
from experiments.reproductions.tpugraphs import common_columns as common
from experiments.reproductions.tpugraphs.alexnet_columns import broken_laws, with_all_columns
from experiments.reproductions.tpugraphs.layout_features import MEANINGS, NAMES, layout_features
from gst.data.tpugraphs import NODE_FEATURES, opcode_number, read
from gst.graphs.graph import Graph
from tests.files import ROOT

FIXTURES = ROOT / "tests" / "fixtures"
ALEXNET, UNET = FIXTURES / "alexnet_small.npz", FIXTURES / "hlo" / "unet_3d_part.npz"


@pytest.fixture(scope="module")
def alexnet() -> Graph:
    return with_all_columns(read(ALEXNET))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fixtures where a folder as of TpuGraphs has them."""
    folder = tmp_path_factory.mktemp("tpugraphs")
    for name, source in ((common.ALEXNET, ALEXNET), (common.UNET, UNET), ("tile/xla/train", FIXTURES / "tile")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(source)
    return folder


def test_the_laws_hold_of_files_that_have_all_columns_and_of_alexnet(alexnet: Graph, tile_kernels: list[Path]) -> None:
    assert alexnet.node_features.shape == (372, 140) and alexnet.config_features.shape[1:] == (26, 18)
    for graph in (alexnet, read(UNET), *map(read, tile_kernels)):
        assert broken_laws(graph) == []
    assert with_all_columns(alexnet) is alexnet
    assert enrich(alexnet, list(FEATURES)).num_nodes == 372  # what derives features by name can read it


def convolution(order: list[int]) -> Graph:
    """Make a convolution: 32 x 12 x 12 x 256 images and a 3 x 3 x 256 x 384 kernel, which comes first.

    The output's layout is `order`, the input has its features minor, the kernel no layout.
    """
    columns = np.zeros((3, 140), np.float32)
    put = lambda node, **values: [columns[node].__setitem__(NODE_FEATURES.index(k), v) for k, v in values.items()]  # noqa: E731
    for node, sizes in enumerate(([3, 3, 256, 384], [32, 12, 12, 256], [32, 12, 12, 384])):
        put(node, **{f"shape_dimensions_{i}": size for i, size in enumerate(sizes)})
        put(node, **{f"layout_minor_to_major_{i}": 3 - i for i in range(4)})
    put(2, is_root=1, window_size_0=3, window_size_1=3, convolution_dim_numbers_kernel_input_feature_dim=2)
    put(2, convolution_dim_numbers_kernel_output_feature_dim=3, convolution_dim_numbers_kernel_spatial_dims_1=1)
    put(2, convolution_dim_numbers_input_feature_dim=3, convolution_dim_numbers_output_feature_dim=3)
    layout = np.full((1, 1, 18), -1, np.int8)
    layout[0, 0, : len(order)] = order
    layout[0, 0, 6:8] = 3, 0
    opcodes = np.array([1, 1, opcode_number("convolution")])
    return Graph(columns, np.array([[0, 1], [2, 2]]), opcodes, np.array([2]), layout, np.ones(1))


def test_meanings_of_a_convolution_worked_by_hand() -> None:
    seen = dict(zip(NAMES, layout_features(convolution([0, 3]))[0, 0], strict=True))
    assert [seen[f"output_{name}"] for name in MEANINGS] == pytest.approx(
        [1, 0.5, np.log2(384) / 10, np.log(4), np.log10(1 + 3 * 32 * 12 * 12 * 384), -1]
    )
    assert [seen[f"input_{name}"] for name in MEANINGS] == pytest.approx([1, 0.8, 0.5, 0, 0, 1])
    assert [seen[f"kernel_{name}"] for name in MEANINGS] == [0] * 6
    features_minor = dict(zip(NAMES, layout_features(convolution([3, 0]))[0, 0], strict=True))
    assert (features_minor["output_padding"], features_minor["output_minor_is_feature"]) == (0, 1)


def test_every_column_means_the_same_in_all_graphs_and_none_is_lost(data: Path) -> None:
    kinds, unet = common.read_all(data)
    assert {kind: len(graphs) for kind, graphs in kinds.items()} == {"layout": 1, "tile": 3}
    every = [unet, *(graph for graphs in kinds.values() for graph in graphs)]
    assert len({(graph.node_features.shape[1], graph.config_features.shape[2]) for graph in every}) == 1
    layouts, count = common.layouts(read(UNET)), 2 * len(NAMES)
    assert np.array_equal(unet.node_features, layouts.node_features)
    assert np.array_equal(unet.config_features[:, :, :count], layouts.config_features)
    assert not unet.config_features[:, :, count:].any()
    assert not any(kernel.config_features[:, :, :count].any() for kernel in kinds["tile"])


def test_nobody_learns_from_what_is_held_out(data: Path) -> None:
    kinds, _ = common.read_all(data)
    lessons, held = across.split(kinds, ["layout", "tile"], seed=3)
    ((graph, known),) = lessons[0]
    assert graph is kinds["layout"][0] and len(lessons[1]) == 3
    assert not set(known) & set(held) and len(known) + len(held) == graph.num_configs
