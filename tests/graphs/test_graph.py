from __future__ import annotations

from dataclasses import replace
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from reference import random_graph
from torch_geometric.data import Data

from gst.graphs.graph import Graph
from gst.graphs.segments import segment

NAN = np.float32("nan")


def test_shape_words_are_checked_while_tests_run() -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        Graph(np.zeros((2, 1), np.float32), np.zeros((2, 0), np.int32))


def test_what_is_not_given_is_filled_in() -> None:
    graph = Graph(np.zeros((3, 1), np.float32), np.zeros((2, 0), np.int64))
    assert (graph.num_nodes, graph.num_edges, graph.num_configs) == (3, 0, 1)
    assert graph.config_features.shape == (1, 0, 0) and np.isnan(graph.targets).all()
    assert graph.counts.tolist() == [1] and graph.spreads.tolist() == [0]
    assert graph.name == graph.digest()


def test_labels_of_other_kinds_of_numbers_become_what_is_stored(unchecked: None) -> None:
    rows = {"node_features": np.zeros((3, 1), np.float32), "edges": np.zeros((2, 0), np.int64)}
    graph = Graph(**rows, targets=np.array([4]), counts=np.array([2], np.int32), spreads=np.array([1], np.float32))
    assert (graph.targets.dtype, graph.counts.dtype, graph.spreads.dtype) == (np.float64, np.int64, np.float64)
    assert graph.targets.tolist() == [4.0] and graph.counts.tolist() == [2] and graph.spreads.tolist() == [1.0]
    with pytest.raises(ValueError, match=r"node_features is float16, want float32 \(.astype\(np.float32\)\)"):
        Graph(**rows | {"node_features": np.zeros((3, 1), np.float16)})
    with pytest.raises(ValueError, match="config_features is float64, want int8 or float32"):
        Graph(**rows, config_nodes=np.array([0]), config_features=np.zeros((1, 1, 1)))
    with pytest.raises(ValueError, match=r"opcodes is float64, want whole numbers; .astype\(np.int64\) makes them"):
        Graph(**rows, opcodes=np.zeros(3))
    with pytest.raises(ValueError, match="edges is uint64, want whole numbers"):
        Graph(**rows | {"edges": np.zeros((2, 1), np.uint64)})
    with pytest.raises(ValueError, match="targets is <U1, want numbers"):
        Graph(**rows, targets=np.array(["a"]))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"node_features": np.zeros((0, 3), np.float32)}, "no nodes"),
        ({"node_features": np.zeros(24, np.float32)}, "node_features has shape"),
        ({"node_features": np.full((24, 3), NAN)}, "NaN or infinity"),
        ({"edges": np.zeros((48, 2), np.int64)}, "edges has shape"),
        ({"edges": np.array([[0], [24]])}, "0..23"),
        ({"edges": np.array([[-1], [0]])}, "0..23"),
        ({"opcodes": np.zeros(23, np.int64)}, "opcodes has shape"),
        ({"opcodes": np.full(24, -1)}, "negative"),
        ({"config_nodes": np.array([0, 1, 2, 3, 24])}, "0..23"),
        ({"config_nodes": np.array([0, 1, 2, 3, 3])}, "twice"),
        ({"config_features": np.zeros((3, 4, 2), np.int8)}, "config_features has shape"),
        ({"config_features": np.full((3, 5, 2), NAN)}, "config_features holds NaN"),
        ({"config_features": np.zeros((0, 5, 2), np.int8)}, "no configurations"),
        ({"targets": np.zeros(2)}, "targets has shape"),
        ({"counts": np.zeros(4, np.int64)}, "counts has shape"),
        ({"spreads": np.zeros(4)}, "spreads has shape"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_by_name(change: dict[str, Any], problem: str, unchecked: None) -> None:
    with pytest.raises(ValueError, match=problem) as refusal:
        replace(random_graph(0), name="vgg", **change)
    assert "'vgg'" in str(refusal.value) and "\n" not in str(refusal.value)


def test_what_is_no_array_is_named(unchecked: None) -> None:
    with pytest.raises(ValueError, match=r"edges is a Tensor; .*\.numpy\(\)"):
        Graph(np.zeros((3, 1), np.float32), torch.zeros(2, 0, dtype=torch.int64))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="node_features is a list"):
        Graph([[0.0]], np.zeros((2, 0), np.int64))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"a list cannot be cut; want one gst.Graph, or PyG's Data"):
        segment([Data(torch.zeros(3, 1), torch.zeros(2, 0, dtype=torch.int64))])


@pytest.mark.parametrize(
    "array", ["node_features", "edges", "opcodes", "config_nodes", "config_features", "targets", "counts", "spreads"]
)
def test_the_digest_tells_a_change_of_any_array(array: str) -> None:
    graph = random_graph(0)
    changed = getattr(graph, array).copy()
    others = set(range(24)) - set(changed.ravel().tolist())
    changed.flat[0] = others.pop() if others else (changed.flat[0] + 1) % 24
    assert replace(graph, **{array: changed}).digest() != graph.digest()
    assert replace(graph, name="other").digest() == graph.digest()
