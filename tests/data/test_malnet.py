"""Edge lists in the layout of MalNet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gst.data.malnet import MalNet, degree_profile, read_edge_list

HEADER = (
    "# Directed graph (each unordered pair of nodes is saved once)\n# Function call graph of malicious Android APK\n"
    "# SHA-256: {name}\n# Nodes: {nodes}, Edges: {edges}\n# FromNodeId\tToNodeId\n"
)
GRAPHS = {
    "addisplay/kuguo/AA": [(0, 1), (1, 2), (2, 2)],
    "benign/benign/BB": [(0, 1)],
    "trojan/artemis/CC": [(0, 1), (0, 2), (0, 3), (3, 4)],
    "trojan/artemis/DD": [(7, 3), (3, 900)],
}


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    for name, edges in GRAPHS.items():
        path = tmp_path / "malnet-graphs-tiny" / f"{name}.edgelist"
        path.parent.mkdir(parents=True, exist_ok=True)
        header = HEADER.format(name=path.stem, nodes=len({*sum(edges, ())}), edges=len(edges))
        path.write_text(header + "".join(f"{caller}\t{callee}\n" for caller, callee in edges))
    splits = tmp_path / "split_info_tiny" / "type"
    splits.mkdir(parents=True)
    (splits / "train.txt").write_text("trojan/artemis/DD\naddisplay/kuguo/AA\n\n")
    (splits / "val.txt").write_text("benign/benign/BB\n")
    (splits / "test.txt").write_text("trojan/artemis/CC")
    return tmp_path


def malnet(unpacked: Path, part: str = "all") -> MalNet:
    splits = None if part == "all" else str(unpacked / "split_info_tiny" / "type")
    return MalNet(str(unpacked / "malnet-graphs-tiny"), part, splits)  # type: ignore[arg-type]


def test_graphs_have_their_type_as_target_and_degrees_as_features(unpacked: Path) -> None:
    source = malnet(unpacked)
    assert source.classes == ("addisplay", "benign", "trojan")
    graphs = {graph.name: graph for graph in source}
    assert list(graphs) == ["addisplay.kuguo.AA", "benign.benign.BB", "trojan.artemis.CC", "trojan.artemis.DD"]
    assert [graph.targets.tolist() for graph in graphs.values()] == [[0], [1], [2], [2]]
    star = graphs["trojan.artemis.CC"]
    assert star.edges.tolist() == [[0, 0, 0, 3], [1, 2, 3, 4]]
    np.testing.assert_allclose(star.node_features, np.log1p(degree_profile(star.edges, 5)), rtol=1e-6)
    assert graphs["trojan.artemis.DD"].edges.tolist() == [[1, 0], [0, 2]], "numbered anew in the order of their ids"


def test_published_parts(unpacked: Path) -> None:
    names = {part: [graph.name for graph in malnet(unpacked, part)] for part in ("train", "val", "test")}
    assert names == {
        "train": ["trojan.artemis.DD", "addisplay.kuguo.AA"],
        "val": ["benign.benign.BB"],
        "test": ["trojan.artemis.CC"],
    }
    assert malnet(unpacked, "val").classes == malnet(unpacked).classes, "numbers of classes do not depend on the part"
    assert [graph.targets.tolist() for graph in malnet(unpacked, "val")] == [[1]]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("3", "got '3'"),
        ("3 4 5", "'3 4 5'"),
        ("3 -4", "'3 -4'"),
        ("3 x", "want two node ids"),
        ("1.0 2.0", "want two node ids"),
        ("1 " + "9" * 30, "more than"),
        ("\0\xff\0", "want two node ids"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "broken.edgelist"
    path.write_text(f"# comment\n0 1\n\n{line}\n2 3\n")
    with pytest.raises(ValueError, match=words) as caught:
        read_edge_list(path)
    assert f"{path}, line 4" in str(caught.value)


@pytest.mark.parametrize("text", ["", "# only\n# comments\n"])
def test_a_file_without_edges_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "empty.edgelist").write_text(text)
    with pytest.raises(ValueError, match="holds no edges"):
        read_edge_list(tmp_path / "empty.edgelist")


def test_folders_and_listings_that_do_not_fit(unpacked: Path, unchecked: None) -> None:
    with pytest.raises(ValueError, match=r"type/family/hash\.edgelist"):
        list(MalNet(str(unpacked / "split_info_tiny")))
    with pytest.raises(ValueError, match="choose all, train"):
        MalNet(str(unpacked), "valid")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="give splits"):
        MalNet(str(unpacked), "train")
    with pytest.raises(ValueError, match=r"val\.txt"):
        list(MalNet(str(unpacked / "malnet-graphs-tiny"), "val", str(unpacked)))
    listing = unpacked / "split_info_tiny" / "type" / "val.txt"
    for wrong in ("benign/benign/ZZ", "../../etc/passwd", "BB"):
        listing.write_text(f"benign/benign/BB\n{wrong}\n")
        with pytest.raises(ValueError, match=r"val\.txt, line 2"):
            list(malnet(unpacked, "val"))


def test_the_fingerprint_changes_with_a_file(unpacked: Path) -> None:
    seen = malnet(unpacked).fingerprint()
    assert malnet(unpacked).fingerprint() == seen != malnet(unpacked, "val").fingerprint()
    (unpacked / "malnet-graphs-tiny" / "benign" / "benign" / "BB.edgelist").write_text("0 1\n1 2\n")
    assert malnet(unpacked).fingerprint() != seen
