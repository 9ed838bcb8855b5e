"""Features of tile sizes: iterations of the loop, share of padding, and size of one pass.

A tile configuration of TpuGraphs (Phothilimthana et al. 2023, section 3 and its README) is 24 numbers: for the kernel
of a convolution, the output and the input six bounds each, with their sum and product; 0 where there is no such
dimension. In the files at hand bounds count from the major-most dimension in memory to the minor-most and are in units
of a TPU register of 8 x 128 numbers: the minor-most dimension in 128s, the one before it in 8s, the single one of a
vector in 1024s. Bounds of the input are 0 in all of them and are not read.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

from experiments.reproductions.kaggle.node_features import LANES, SUBLANES
from gst.data.tpugraphs import NODE_FEATURES, opcode_number
from gst.graphs.graph import Graph

RANK = 6  # dimensions that a file keeps of an array
KERNEL, OUTPUT = slice(0, RANK), slice(8, 8 + RANK)  # columns of the bounds, each followed by their sum and product
SIZES = NODE_FEATURES.index("shape_dimensions_0")
NUM_ELEMENTS = NODE_FEATURES.index("shape_dimensions_product")
MINOR_TO_MAJOR = NODE_FEATURES.index("layout_minor_to_major_0")
OUTPUT_FEATURE = NODE_FEATURES.index("convolution_dim_numbers_kernel_output_feature_dim")

NAMES = (
    "passes", "output_tiles", "contraction_tiles", "padding", "output_volume", "kernel_volume", "lanes", "sublanes",
    "output_volume_squared",
)  # fmt: skip


def tile_features(graph: Graph) -> Float64[np.ndarray, "configs features"]:
    """The features `NAMES` of every configuration of a tile kernel, as natural logarithms.

    With N the extents of an array and t the bounds of a tile, both in registers: tiles = prod ceil(N / t), padding =
    prod ceil(N / t) t / N, volume = prod t. `passes` of the loop are `output_tiles` times `contraction_tiles`, the
    tiles of the convolution's kernel for one output channel; each pass costs a start. `lanes` and `sublanes` are the
    shares of the two minor-most dimensions that one tile holds: below 1, what is copied is not contiguous. The square
    lets a linear model prefer a volume in between: too large a tile leaves no memory to load the next.
    """
    bounds = graph.config_features[:, 0].astype(np.float64)
    array, kernel, channel = _tiled_arrays(graph)
    extents = np.array(array + [1] * (RANK - len(array)))
    kernel_extents = np.array(kernel + [1] * (RANK - len(kernel)))
    output, weights = np.maximum(bounds[:, OUTPUT], 1), np.maximum(bounds[:, KERNEL], 1)
    tiles, kernel_tiles = np.ceil(extents / output), np.ceil(kernel_extents / weights)
    padding = (tiles * output / extents).prod(1) * (kernel_tiles * weights / kernel_extents).prod(1)
    contraction = kernel_tiles.prod(1) / kernel_tiles[:, channel]
    minor, second = len(array) - 1, max(len(array) - 2, 0)
    volume = output.prod(1)
    logs = np.log(
        np.stack(
            [
                tiles.prod(1) * contraction, tiles.prod(1), contraction, padding, volume, weights.prod(1),
                output[:, minor] / extents[minor], output[:, second] / extents[second],
            ], axis=1,
        )
    )  # fmt: skip
    return np.hstack([logs, np.log(volume)[:, None] ** 2])


def _tiled_arrays(graph: Graph) -> tuple[list[int], list[int], int]:
    """Extents in registers of the array that is tiled and of the convolution's kernel, and the latter's dimension of
    output channels. The array is the result of the last convolution; in a kernel without one, the largest array, of
    equal ones that nearest the root."""
    convolutions = np.flatnonzero(graph.opcodes == opcode_number("convolution"))
    if len(convolutions):
        node = int(convolutions[-1])
        operands = graph.edges[0, graph.edges[1] == node]
        weights = graph.node_features[operands[-1]]
        channel = _major_to_minor(weights).index(int(graph.node_features[node, OUTPUT_FEATURE]))
        return _in_registers(graph.node_features[node]), _in_registers(weights), channel
    backwards = graph.node_features[::-1, NUM_ELEMENTS]
    largest = graph.num_nodes - 1 - int(np.argmax(backwards))
    return _in_registers(graph.node_features[largest]), [1], 0


def _major_to_minor(features: np.ndarray) -> list[int]:
    rank = int((features[SIZES : SIZES + RANK] > 0).sum())
    return [int(dimension) for dimension in features[MINOR_TO_MAJOR : MINOR_TO_MAJOR + rank]][::-1]


def _in_registers(features: np.ndarray) -> list[int]:
    """Extents of the array a node computes, from the major-most dimension in memory to the minor-most."""
    sizes = [int(features[SIZES + dimension]) for dimension in _major_to_minor(features)]
    if not sizes:
        return [1]
    if len(sizes) == 1:
        return [-(-sizes[0] // (SUBLANES * LANES))]
    return [*sizes[:-2], -(-sizes[-2] // SUBLANES), -(-sizes[-1] // LANES)]
