"""Attacks that chance does not find: each is refused by its name, before it costs anything."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import nn

from experiments.reproductions.go.pretraining import load_policy
from gst.cost import CostModel
from gst.data import MalNet
from gst.data.tpugraphs import read
from gst.graphs.store import open_store, verify
from gst.programs import Program
from gst.util.untrusted import (
    check_classes,
    check_weights,
    check_yaml,
    parse_json,
    plain,
    read_arrays,
    read_object,
    read_tensors,
    shown,
)  # fmt: skip
from tests.files import changed_records
from tests.fuzz.damage import Bomb
from tests.fuzz.limits import problem
from tests.fuzz.readers import READERS, Reader, _config, _seal_program, _seal_store

pytestmark = pytest.mark.usefixtures("unchecked")


def within_bounds(read: Callable[[Path], object], path: Path) -> None:
    """Two seconds, 500 MiB, and nothing executed; whether it is read or refused."""
    assert problem(Reader(lambda folder: folder, read), path, path.parent) is None


def header(shape: tuple[int, ...], kind: str = "<f8") -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def archive(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as written:
        for name, content in members.items():
            written.writestr(name, content)
    return path


# Archives of arrays ----------------------------------------------------------------------------------


def test_arrays_come_back(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(6).reshape(2, 3), "b": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "c": np.zeros((0, 4)),
        "d": np.float32(3), "e": np.array(["x", "yz"]), "f": np.zeros((1000, 1000), np.int8),
    }  # fmt: skip
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **arrays)
        found = read_arrays(tmp_path / "a.npz")
        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            assert found[name].dtype == np.asarray(array).dtype and np.array_equal(found[name], array)


def test_a_zip_bomb_is_refused_by_what_it_declares(tmp_path: Path) -> None:
    size = 120 << 20
    member = header((size // 8,)) + bytes(size)
    path = archive(tmp_path / "bomb.npz", {"node_feat.npy": member})
    del member
    assert path.stat().st_size < size // 200
    within_bounds(read, path)
    with pytest.raises(ValueError, match=r"bomb\.npz.*would unpack to 125829"):
        read(path)


@pytest.mark.parametrize(
    "shape",
    [
        (10**12,),
        (2**62, 4),
        (2**70,),
        (-1,),
        (3, 10**9),
        (10**9, 10**9, 10**9),
        (1,) * 100,
        (0,) * 1_000,
        (1,) * 20_000,
    ],
)
def test_a_shape_that_the_member_does_not_hold_or_numpy_does_not_take(shape: tuple[int, ...], tmp_path: Path) -> None:
    path = archive(tmp_path / "huge.npz", {"node_feat.npy": header(shape)[:70_000] + bytes(64)})
    within_bounds(read_arrays, path)
    with pytest.raises(ValueError, match=r"huge\.npz: not a readable npz file"):
        read_arrays(path)


def test_objects_and_pickles_are_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "objects.npz", allow_pickle=True, a=np.array([Bomb()], object))
    np.savez(tmp_path / "fields.npz", a=np.zeros(2, [("x", "<f4"), ("y", "<i8")]))
    torch.save({"a": Bomb()}, tmp_path / "bomb.pt")
    (tmp_path / "alone.npz").write_bytes((tmp_path / "bomb.pt").read_bytes())
    for reader, name, why in (
        (read_arrays, "objects.npz", "pickled objects"), (read_arrays, "alone.npz", "magic"),
        (read_tensors, "bomb.pt", "not a readable file of tensors"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=why) as refused:
            reader(tmp_path / name)
        assert str(tmp_path / name) in str(refused.value) and str(refused.value).isprintable()
    assert read_arrays(tmp_path / "fields.npz")["a"].dtype.names == ("x", "y")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone.npz", "bomb.pt", "fields.npz", "objects.npz"]


def test_names_of_members_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    names = ["../escaped.npy", str(tmp_path / "absolute.npy"), "sub/a.npy"]
    path = archive(tmp_path / "inner" / "a.npz", dict.fromkeys(names, header((8,)) + bytes(64)))
    assert len(read_arrays(path)) == 3
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["a.npz", "inner"]


# Tensors ---------------------------------------------------------------------------------------------


def test_tensors_come_back_and_compressed_ones_do_not(tmp_path: Path) -> None:
    content = {"a": torch.arange(5), "b": [1, "two", None]}
    torch.save(content, tmp_path / "a.pt")
    assert torch.equal(read_tensors(tmp_path / "a.pt")["a"], content["a"])
    with zipfile.ZipFile(tmp_path / "a.pt") as stored:
        members = {each.filename: stored.read(each) for each in stored.infolist()}
    with pytest.raises(ValueError, match="compressed"):
        read_tensors(archive(tmp_path / "b.pt", members))
    torch.save(content, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    for name, why in (("old.pt", "not a readable file of tensors"), ("absent.pt", "no such file")):
        with pytest.raises(ValueError, match=why):
            read_tensors(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("cost model", lambda c: c["settings"].update(channels=2**20)),
        ("cost model", lambda c: c["settings"].update(num_layers=10**9)),
        ("cost model", lambda c: c["settings"].update(members=10**9)),
        ("cost model", lambda c: c["settings"].update(num_opcodes=2**40)),
        ("cost model", lambda c: c.update(schema=torch.zeros(3))),
        ("policy", lambda c: c["settings"].update(channels=2**20)),
        ("policy", lambda c: c["settings"].update(attention_layers=10**9)),
        ("policy", lambda c: c["settings"].update(encoder_layers=True)),
    ],
)
def test_settings_that_ask_for_more_than_the_file_has(
    name: str, change: Callable[[dict[str, Any]], None], tmp_path: Path
) -> None:
    path = READERS[name].write(tmp_path)
    content = torch.load(path, weights_only=True)
    change(content)
    torch.save(content, path)
    load = {"cost model": CostModel.load, "policy": load_policy}[name]
    within_bounds(load, path)
    with pytest.raises(ValueError, match=path.name):
        load(path)


def test_weights_are_counted_before_they_are_made() -> None:
    weights = nn.Linear(3, 4).state_dict()
    check_weights(lambda: nn.Linear(3, 4), weights, (1, 2))
    with pytest.raises(ValueError, match="16 weights, its settings want 1000000000000"):
        check_weights(lambda: nn.Linear(10**6, 10**6, bias=False), weights, ())
    with pytest.raises(ValueError, match="at most 2 layers"):
        check_weights(lambda: nn.Linear(3, 4), weights, (3,))


@pytest.mark.parametrize(
    "name", ["os.system", "subprocess.Popen", "torch.hub.load", "absent.Net", "mine.Net", "a.b.c.D"]
)
def test_classes_of_other_packages_are_not_imported(name: str) -> None:
    for settings in (name, {"encoder": {"class_path": name}}, {"layers": [1, {"activation": (name,)}]}):
        with pytest.raises(ValueError, match="not of this program"):
            check_classes(settings)
    check_classes({"class_path": name}, trusted=(name.partition(".")[0] + ".",))


def test_classes_of_this_program_may_be_named() -> None:
    known = ["gst.nn.SAGE", "torch.nn.Linear", "torch_geometric.nn.GCNConv"]
    check_classes({"loss": "pairwise_hinge", "device": "cpu:0", "path": "runs/a.b", "rate": "1.5"})
    check_classes({"encoder": [{"class_path": each} for each in known], "channels": 3, "table": None})


# Programs and stores ---------------------------------------------------------------------------------


def program_with(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    path = READERS["program"].write(folder)
    record = json.loads((path / "program.json").read_text())
    change(record)
    (path / "program.json").write_text(json.dumps(record))
    _seal_program(path)
    return path


def _keyword(record: dict[str, Any]) -> None:
    operation = next(each for each in record["operations"] if each["kind"] == "operation")
    operation["kwargs"]["x=__import__('os').mkdir('executed') or 1, y"] = 1


def _spec(kind: str, context: Any) -> Callable[[dict[str, Any]], None]:
    node = {"type": kind, "context": context, "children_spec": []}
    return lambda record: record.update(output_spec=json.dumps([1, node]))


ENUM = '{"\\u005f_enum__": true, "fqn": "antigravity:x", "name": "y"}'
FACTORY = {"default_factory_module": "antigravity", "default_factory_name": "x", "dict_context": []}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_keyword, "has no argument"),
        (_spec("collections.defaultdict", FACTORY), "of what a module defines"),
        (_spec("builtins.list", ENUM), "of what a module defines"),
        (_spec("collections.namedtuple", "os.stat_result"), "NotImplementedError"),
        (lambda r: r["operations"][-1].update(target="aten::no_such_thing.default"), "there is no operator"),
        (lambda r: r["operations"][-1].update(args=[{"node": 10**6}]), "does not come before it"),
        (lambda r: r["operations"][-1].update(args=[{"node": -1}]), "does not come before it"),
        (lambda r: r["operations"][-1].update(dtypes=["load"]), "no kind of argument"),
        (lambda r: r["operations"][-1].update(shapes=[[2**40, 2**40]]), "more bytes than there are"),
        (lambda r: r["operations"][-1].update(kind="input"), "are inputs|is no operation"),
        (lambda r: r["operations"].pop(), "operations"),
        (lambda r: r.update(outputs=[{"node": 10**6}]), "no node of it"),
        (lambda r: r.update(outputs=[{"node": 0, "tuple": []}]), "no kind of argument"),
        (lambda r: r.update(schema=[2]), "schema"),
    ],
)
def test_a_program_that_is_not_one(change: Callable[[dict[str, Any]], None], why: str, tmp_path: Path) -> None:
    path = program_with(tmp_path, change)
    within_bounds(Program.load, path)
    with pytest.raises(ValueError, match=why):
        Program.load(path)
    assert "antigravity" not in sys.modules


def test_a_program_whose_outputs_are_in_a_dictionary_is_read(tmp_path: Path) -> None:
    assert Program.load(program_with(tmp_path, lambda record: None)).unflatten([0, 1, 2, 3, None])["number"] == 3


def test_a_store_leads_to_no_file_outside_and_holds_no_objects(tmp_path: Path) -> None:
    store = READERS["store"].write(tmp_path)
    (tmp_path / "outside.bin").write_bytes(bytes(8))
    genuine = (store / "meta.json").read_text()
    for name in ("../../outside.bin", "/etc/hosts", "sub/edges.bin", "", ".", "..", "edges.bin\n"):
        meta = json.loads(genuine)
        meta["files"][name] = 8
        (store / "meta.json").write_text(json.dumps(meta))
        with pytest.raises(ValueError, match="is no file of a store"):
            open_store(store)
    (store / "meta.json").write_text(genuine)
    with changed_records(store) as records:
        records[0]["arrays"]["opcodes"]["dtype"] = "O"
    with pytest.raises(ValueError, match="numbers only"):
        open_store(store)[0].opcodes  # noqa: B018


@pytest.mark.parametrize("name", ["edges", "node_ids", "config_rows", "config_columns", "opcodes"])
def test_verify_refuses_indices_that_lead_nowhere_under_right_checksums(name: str, tmp_path: Path) -> None:
    store = READERS["store"].write(tmp_path)
    verify(store)
    entry = json.loads((store / "records.bin").read_text().splitlines()[1])["arrays"][name]
    data = bytearray((store / f"{name}.bin").read_bytes())
    last = entry["offset"] + int(np.prod(entry["shape"])) * np.dtype(entry["dtype"]).itemsize
    data[last - 1] = 0xFF  # the highest byte of a little-endian number: it becomes negative
    (store / f"{name}.bin").write_bytes(data)
    _seal_store(store)
    with pytest.raises(ValueError, match=f"{name} (names|holds)"):
        verify(store)


def test_a_listing_of_malnet_leads_to_no_file_outside(tmp_path: Path) -> None:
    listing = READERS["malnet"].write(tmp_path / "inside" if (tmp_path / "inside").mkdir() is None else tmp_path)
    (tmp_path / "secret.edgelist").write_text("1 2\n")
    for name in (f"{tmp_path}/secret", "../../secret", "/a/b"):
        listing.write_text(f"{name}\n")
        with pytest.raises(ValueError, match=r"train\.txt, line 1"):
            list(MalNet(str(listing.parent), "train", str(listing.parent)))


# Configurations --------------------------------------------------------------------------------------


def test_yaml_that_names_itself_again_and_again(tmp_path: Path) -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    lines += [
        f"{key}: &{key} [{', '.join(['*' + before] * 10)}]" for before, key in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    path = tmp_path / "bomb.yaml"
    path.write_text("\n".join(lines) + "\n")
    within_bounds(check_yaml, path)
    with pytest.raises(ValueError, match=r"bomb\.yaml: its aliases make it larger"):
        check_yaml(path)
    for content in ("a: &a [1]\nb: *a\n", "", "a: [1, {b: c}]\n---\nd: e\n", "a: &a {b: &b 1}\nc: [*a, *b]\n"):
        path.write_text(content)
        check_yaml(path)
    for content in ("a: *missing\n", "a: [\n", "\x00"):
        path.write_text(content)
        with pytest.raises(ValueError, match=r"bomb\.yaml"):
            check_yaml(path)


def test_yaml_makes_no_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bomb.yaml").write_text("seed_everything: !!python/object/apply:os.mkdir [executed]\n")
    with pytest.raises(ValueError, match=r"bomb\.yaml"):
        _config(tmp_path / "bomb.yaml")
    assert not (tmp_path / "executed").exists()


# JSON and messages -----------------------------------------------------------------------------------

numbers = st.integers() | st.floats() | st.booleans() | st.none()
values = st.recursive(
    numbers | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
)


@hypothesis.settings(max_examples=25, derandomize=True, deadline=None)
@hypothesis.given(values, st.text())
def test_json_comes_back_and_messages_are_one_printable_line(value: Any, text: str) -> None:
    assert json.dumps(parse_json(json.dumps(value))) == json.dumps(value)
    for line, most in ((shown(value), 80), (plain(text), 200)):
        assert len(line) <= most and line.isprintable()


def test_what_is_no_object_or_too_deep_is_refused(tmp_path: Path) -> None:
    for content, why in (("[1]", "holds a list"), ("{", "not JSON"), ("[" * 200_000, "too deeply")):
        (tmp_path / "file.json").write_text(content)
        with pytest.raises(ValueError, match=why):
            read_object(tmp_path / "file.json")
    with pytest.raises(ValueError, match="no such file"):
        read_object(tmp_path / "absent.json")
