"""A program in a directory: JSON for its operations, numpy for its graph, tensors as such. No pickled code.

`program.json` holds version, key, operations and outputs; `graph.npz` the arrays of the graph, colocation and parameter
homes; `tensors.pt` inputs and constants; `checksums.json` SHA-256 of the other files.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from torch.utils import _pytree as pytree

from gst.graph import Graph
from gst.programs.forms import form_of, form_of_target, target_of_form, value_of
from gst.programs.program import Operation, Program

SCHEMA = 1
FILES = ("program.json", "graph.npz", "tensors.pt")


def save(program: Program, directory: Path) -> None:
    """See `Program.save`."""
    if directory.exists():
        raise ValueError(f"{directory} is there already; remove it, or give another directory")
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = directory.with_name(f".partial-{directory.name}-{uuid4().hex}")
    partial.mkdir()
    try:
        _write(program, partial)
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def load(directory: Path) -> Program:
    """See `Program.load`."""
    try:
        _check(directory)
        record = json.loads((directory / "program.json").read_text())
        with np.load(directory / "graph.npz", allow_pickle=False) as archive:
            arrays = dict(archive)
        tensors = torch.load(directory / "tensors.pt", map_location="cpu", weights_only=True)
        return _program(record, arrays, tensors)
    except FileNotFoundError as error:
        raise ValueError(f"{directory} is no saved program: {Path(error.filename).name} is missing") from error
    except ValueError as error:
        raise ValueError(f"the program in {directory} cannot be read: {error}") from error
    except Exception as error:  # whatever readers of damaged files raise
        first_line = (str(error).strip().splitlines() or ["no message"])[0]
        raise ValueError(
            f"the program in {directory} cannot be read: {type(error).__name__}: {first_line}; trace it again"
        ) from error


def content_key(program: Program) -> str:
    """See `Program.key`."""
    digest = hashlib.sha256(f"{SCHEMA} {form_of(program.outputs)}".encode())
    for operation in program.operations:
        record = _record(operation)
        del record["name"]
        digest.update(json.dumps(record, sort_keys=True).encode())
        if operation.constant is not None:
            digest.update(_bytes(operation.constant))
    return digest.hexdigest()[:16]


def _bytes(value: torch.Tensor) -> bytes:
    flat = value.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _write(program: Program, directory: Path) -> None:
    record = {
        "schema": SCHEMA, "name": program.name, "key": program.key, "outputs": form_of(program.outputs),
        "output_spec": pytree.treespec_dumps(program.output_spec),
        "operations": [_record(operation) for operation in program.operations],
    }  # fmt: skip
    (directory / "program.json").write_text(json.dumps(record))
    arrays = {f.name: getattr(program.graph, f.name) for f in fields(Graph) if f.name != "name"}
    arrays |= {"colocation": program.colocation, "parameter_home": program.parameter_home}
    np.savez(directory / "graph.npz", allow_pickle=False, **arrays)
    constants = [each.constant for each in program.operations if each.constant is not None]
    torch.save({"inputs": list(program.inputs), "constants": constants}, directory / "tensors.pt")
    (directory / "checksums.json").write_text(json.dumps({name: _checksum(directory / name) for name in FILES}))


def _record(operation: Operation) -> dict[str, Any]:
    return {
        "name": operation.name,
        "kind": operation.kind,
        "target": None if operation.target is None else form_of_target(operation.target),
        "args": form_of(list(operation.args)),
        "kwargs": {key: form_of(value) for key, value in operation.kwargs.items()},
        "shapes": operation.shapes,
        "dtypes": [str(dtype).removeprefix("torch.") for dtype in operation.dtypes],
        "is_view": operation.is_view,
    }


def _program(record: dict[str, Any], arrays: dict[str, np.ndarray], tensors: dict[str, Any]) -> Program:
    constants = iter(tensors["constants"])
    operations = tuple(_operation(each, constants) for each in record["operations"])
    colocation, homes = arrays.pop("colocation"), arrays.pop("parameter_home")
    return Program(
        record["name"], Graph(**arrays, name=record["name"]), operations, tuple(tensors["inputs"]),
        value_of(record["outputs"]), pytree.treespec_loads(record["output_spec"]), colocation, homes,
    )  # fmt: skip


def _operation(record: dict[str, Any], constants: Any) -> Operation:
    return Operation(
        record["name"], record["kind"], None if record["target"] is None else target_of_form(record["target"]),
        tuple(value_of(record["args"])), {key: value_of(value) for key, value in record["kwargs"].items()},
        tuple(map(tuple, record["shapes"])), tuple(getattr(torch, name) for name in record["dtypes"]),
        next(constants) if record["kind"] == "constant" else None, record["is_view"],
    )  # fmt: skip


def _check(directory: Path) -> None:
    if not directory.is_dir():
        raise ValueError("there is no such directory")
    checksums = json.loads((directory / "checksums.json").read_text())
    for name in FILES:
        if _checksum(directory / name) != checksums.get(name):
            raise ValueError(f"{name} was changed since it was written (checksums differ); trace it again")
    record = json.loads((directory / "program.json").read_text())
    if record["schema"] != SCHEMA:
        raise ValueError(f"it has schema {record['schema']}, this version reads {SCHEMA}; trace it again")


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
