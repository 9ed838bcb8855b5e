"""Labels of recipes: scripts, archives, berkeley-abc beside a hand-worked circuit, and going on after a kill."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from experiments.reproductions.circuits import labels as labelling
from experiments.reproductions.circuits.__main__ import main
from experiments.reproductions.circuits.files import CircuitFile, circuit_files
from experiments.reproductions.circuits.labels import Job, label, planned_jobs, read_labels, synthesise

needs_abc = pytest.mark.skipif(
    shutil.which(labelling.PROGRAM) is None, reason="labels come from berkeley-abc: apt-get install berkeley-abc"
)
# o is a b c, and p the same from the other side: balance and rewrite share what strash does not.
WASTE = """INPUT(a)
INPUT(b)
INPUT(c)
OUTPUT(o)
OUTPUT(p)
t = AND(a, b)
o = AND(t, c)
u = AND(b, c)
p = AND(a, u)
"""


@pytest.fixture
def circuit(tmp_path: Path) -> CircuitFile:
    path = tmp_path / "data" / "odd; print_stats 'name.bench"
    path.parent.mkdir()
    path.write_text(WASTE)
    return CircuitFile("waste", path)


def archive_of(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:xz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def test_archives_are_read_without_being_extracted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    members = {"set/deep/c.bench": WASTE.encode(), "run.sh": b"rm", "set/waste_orig.bench": WASTE.encode()}
    files = circuit_files(archive_of(tmp_path / "circuits.tar.xz", members))
    assert [(file.name, file.design) for file in files] == [("set/deep/c", "c"), ("set/waste_orig", "waste")]
    assert not list((tmp_path / "cache").rglob("run.sh"))
    for name in ("../out.bench", "/tmp/out.bench"):
        with pytest.raises(ValueError, match="leads out of the archive"):
            circuit_files(archive_of(tmp_path / "evil.tar.xz", {name: b""}))
    (tmp_path / "cut.tar.xz").write_bytes((tmp_path / "circuits.tar.xz").read_bytes()[:60])
    with pytest.raises(ValueError, match="not a readable archive"):
        circuit_files(tmp_path / "cut.tar.xz")
    with pytest.raises(ValueError, match="holds no circuit"):
        circuit_files(archive_of(tmp_path / "empty.tar.xz", {"a": b""}))


@needs_abc
def test_berkeley_abc_tells_ands_and_levels_after_each_command(circuit: CircuitFile) -> None:
    counts = synthesise(Job(circuit, "bw"))
    assert counts is not None and counts.tolist() == [[4, 2], [2, 2], [2, 2]]
    assert counts[0].tolist() == [circuit.read().num_ands, circuit.read().levels.max()]


@needs_abc
def test_labels_go_on_where_they_stopped(circuit: CircuitFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [Job(circuit, recipe) for recipe in ("b", "w", "bws", "F")]
    first = label(jobs[:2], tmp_path / "out")
    path = tmp_path / "out" / labelling.LABELS
    path.write_text(path.read_text() + '{"circuit": "torn')
    computed: list[str] = []

    def counted(job: Job, timeout: float) -> labelling.Trajectory | None:
        computed.append(job.recipe)
        return synthesise(job, timeout)

    monkeypatch.setattr(labelling, "synthesise", counted)
    labels = label(jobs, tmp_path / "out", processes=2)
    assert sorted(computed) == ["F", "bws"] and len(path.read_text().splitlines()) == 4
    assert all(np.array_equal(labels[key], first[key]) for key in first)
    again = read_labels(path)
    assert again.keys() == labels.keys() and all(np.array_equal(again[key], labels[key]) for key in labels)


def test_damaged_labels_are_refused_by_line(tmp_path: Path) -> None:
    good = json.dumps({"circuit": "c", "name": "n", "recipe": "b", "ands": [2, 1], "levels": [1, 1]})
    path = tmp_path / "labels.jsonl"
    for bad in ("nonsense", "[]", good.replace("[2, 1]", "[2]"), good.replace('"b"', '"x"')):
        path.write_text(f"{good}\n{bad}\n{good}\n")
        with pytest.raises(ValueError, match="line 2: no label"):
            read_labels(path)


@needs_abc
def test_the_command_labels_a_folder(circuit: CircuitFile, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = str(circuit.path.parent), str(tmp_path / "out")
    assert main(["--data", data, "--number", "2", "--out", out]) == 0
    assert "2 labels of 1 circuits" in capsys.readouterr().out
    jobs = planned_jobs(circuit.path.parent, None, 2)
    assert {job.key for job in jobs} == read_labels(Path(out) / labelling.LABELS).keys()
