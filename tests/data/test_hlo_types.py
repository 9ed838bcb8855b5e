"""Types of HLO text: buffers, bounded sizes, tuples within tuples, tiled layouts, pairs of a start and its done."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from gst.cli import main
from gst.data.hlo.reader import read_hlo
from tests.files import FIXTURES

TYPES = FIXTURES / "hlo" / "types"
MODULES = sorted(TYPES.glob("*.hlo"))


def written(folder: Path, text: str) -> Path:
    path = folder / "module.hlo"
    path.write_text(text)
    return path


def without_buffers(text: str) -> str:
    """Return the module with arrays where it has buffers of them."""
    while (start := text.find("b(f32")) >= 0:
        end = start + re.match(r"b\([^()]*(?:\([^()]*\)[^()]*)*\)", text[start:]).end() - 1  # type: ignore[union-attr]
        text = text[:start] + text[start + 2 : end] + text[end + 1 :]
    return text


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_trace_reads_it(path: Path, tmp_path: Path) -> None:
    assert main(["trace", "--hlo", str(path), "--out", str(tmp_path / "graph.npz")]) == 0


@pytest.mark.parametrize("name", ["pinned", "buffer_in_a_loop"])
def test_a_buffer_is_read_as_its_array(name: str, tmp_path: Path) -> None:
    text = (TYPES / f"{name}.hlo").read_text()
    plain = without_buffers(text)
    assert "b(f32" in text and "b(f32" not in plain
    buffer, array = read_hlo(written(tmp_path, text)), read_hlo(written(tmp_path, plain))
    np.testing.assert_array_equal(buffer.node_features, array.node_features)
    np.testing.assert_array_equal(buffer.edges, array.edges)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ("f32[?,4]", "f32[?,4] has a size without a bound"),
        ("q(f32[8])", "'q' is no type of elements"),
        ("b((f32[8], f32[8]))", "want a name"),
        ("b(b(f32[8]))", "'b' is no type of elements"),
    ],
)  # fmt: skip
def test_other_types_are_refused_by_name(shape: str, words: str, tmp_path: Path) -> None:
    path = written(tmp_path, f"HloModule m\n\nENTRY e {{\n  ROOT p = {shape} parameter(0)\n}}\n")
    with pytest.raises(ValueError, match="line 4") as error:
        read_hlo(path)
    assert words in str(error.value)
