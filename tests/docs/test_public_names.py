"""Names that `import gst` shows, and the page of public names."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from types import ModuleType

import pytest

import gst
from experiments.figures.public_names import MODULES, PAGE, VALUES, public_names

SHOWN = {
    "Graph", "segment", "GraphSegmentTraining", "EmbeddingTable", "place", "nn", "cost", "data", "programs",
    "placement", "__version__", "SegmentBatch", "SegmentedGraph", "prepare", "open_store", "collate", "from_pyg",
    "load", "placed",
}  # fmt: skip
HEAVY = ["lightning", "wandb", "numba", "scipy", "jsonargparse", "pymetis", "embedding_cache", "partitioners"]
MEASURE = """
import json, sys, time, torch
before, began = set(sys.modules), time.perf_counter()
import gst
print(json.dumps([time.perf_counter() - began, sorted(set(sys.modules) - before)]))
"""


def test_dir_shows_what_a_user_needs_and_every_name_loads() -> None:
    assert set(dir(gst)) == SHOWN == set(gst.__all__)
    for name in gst.__all__:
        assert getattr(gst, name) is not None
    for name in ("nn", "cost", "data", "programs", "placement"):
        assert isinstance(getattr(gst, name), ModuleType)
    assert gst.nn.SAGE.__name__ == "SAGE" and callable(gst.data.loader.collate)


def test_a_name_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'Grpah'; it has .*\bGraph\b"):
        _ = gst.Grpah


def test_importing_gst_imports_nothing_heavy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [module for module in sys.modules if module.split(".")[0] in HEAVY or module.startswith("gst.")]:
        monkeypatch.delitem(sys.modules, name)
    specification = importlib.util.spec_from_file_location("gst_once_more", gst.__file__)
    assert specification is not None and specification.loader is not None
    specification.loader.exec_module(importlib.util.module_from_spec(specification))
    imported = {name for name in sys.modules if name.split(".")[0] in HEAVY or name.startswith("gst.")}
    assert imported <= {"gst.util", "gst.util.imports"}


@pytest.mark.e2e
def test_importing_gst_takes_less_than_50_ms_beyond_torch() -> None:
    runs = [subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, check=True, text=True) for _ in "123"]
    seconds, modules = min(json.loads(run.stdout) for run in runs)
    assert seconds < 0.05
    assert not set(modules) & set(HEAVY)


@pytest.mark.parametrize("module", MODULES)
def test_the_page_lists_every_public_name_with_a_sentence(module: str) -> None:
    page = PAGE.read_text()
    section = page[page.index(f"<!-- table: public names of {module} -->") :].split("<!-- end -->")[0]
    listed = [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")]
    assert listed == sorted(getattr(importlib.import_module(module), "__all__", []))
    assert all(public_names(module).values()), [name for name, what in public_names(module).items() if not what]


def test_described_values_are_public() -> None:
    for path in VALUES:
        module, _, name = path.rpartition(".")
        assert name in importlib.import_module(module).__all__
