"""A program in a directory: JSON for its operations, numpy for its graph, tensors as such. No pickled code.

`program.json` holds version, key, operations and outputs; `graph.npz` the arrays of the graph, colocation and parameter
homes; `tensors.pt` inputs and constants; `checksums.json` SHA-256 of the other files.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from gst.files.untrusted import parse_json, plain, read_arrays, read_object, read_tensors, shown
from gst.graphs.graph import Graph
from gst.programs.forms import form_of, form_of_target, target_of_form, value_of
from gst.programs.program import Operation, Program, references

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
        record = _checked(directory)
        arrays, tensors = read_arrays(directory / "graph.npz"), read_tensors(directory / "tensors.pt")
        program = _program(record, arrays, tensors)
        _check_program(program)
        return program
    except FileNotFoundError as error:
        raise ValueError(f"{directory} is no saved program: {Path(error.filename).name} is missing") from error
    except ValueError as error:
        raise ValueError(f"the program in {directory} cannot be read: {plain(error, 400)}") from error
    except Exception as error:  # whatever readers of damaged files raise
        raise ValueError(
            f"the program in {directory} cannot be read: {type(error).__name__}: {plain(error)}; trace it again"
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
        value_of(record["outputs"]), _spec(record["output_spec"]), colocation, homes,
    )  # fmt: skip


def _spec(text: str) -> pytree.TreeSpec:
    """A structure of outputs. Two forms are refused of which torch imports the module that they name."""
    _, root = parse_json(text)
    nodes = [root]
    for node in nodes:
        nodes += node["children_spec"]
        with suppress(ValueError, TypeError):
            if node["type"] == "collections.defaultdict" or '"__enum__"' in json.dumps(parse_json(node["context"])):
                raise LookupError(f"outputs in a {node['type']} of what a module defines")
    return pytree.treespec_loads(text)


def _operation(record: dict[str, Any], constants: Any) -> Operation:
    target = None if record["target"] is None else target_of_form(record["target"])
    known = {argument.name for argument in target._schema.arguments} if isinstance(target, OpOverload) else set()
    if unknown := record["kwargs"].keys() - known:  # they become part of a line of Python, see `execute.calls.bind`
        raise ValueError(f"operator {record['target']} has no argument {shown(min(unknown))}")
    return Operation(
        record["name"], record["kind"], target,
        tuple(value_of(record["args"])), {key: value_of(value) for key, value in record["kwargs"].items()},
        tuple(map(tuple, record["shapes"])), tuple(value_of({"dtype": name}) for name in record["dtypes"]),
        next(constants) if record["kind"] == "constant" else None, record["is_view"],
    )  # fmt: skip


def _checked(directory: Path) -> dict[str, Any]:
    """What `program.json` holds, if all files are as they were written."""
    if not directory.is_dir():
        raise ValueError("there is no such directory")
    checksums = json.loads((directory / "checksums.json").read_bytes())
    for name in FILES:
        if _checksum(directory / name) != checksums.get(name):
            raise ValueError(f"{name} was changed since it was written (checksums differ); trace it again")
    record = read_object(directory / "program.json")
    if record["schema"] != SCHEMA:
        raise ValueError(f"it has schema {shown(record['schema'])}, this version reads {SCHEMA}; trace it again")
    return record


def _check_program(program: Program) -> None:
    """Everything that whoever runs or plans a program relies on."""
    nodes, kinds = program.num_nodes, [operation.kind for operation in program.operations]
    groups, homes = program.colocation, program.parameter_home
    if program.graph.num_nodes != nodes or any(each.shape != (nodes,) for each in (groups, homes)):
        raise ValueError(f"its graph, its groups or its parameters are not those of {nodes} operations")
    if any(each.dtype != np.int64 for each in (groups, homes)) or not 0 <= groups.min() <= groups.max() < nodes:
        raise ValueError("its groups are not numbered 0, 1, and so on")
    if kinds != ["input"] * len(program.inputs) + [kind for kind in kinds if kind in ("constant", "operation")]:
        raise ValueError(f"its first {len(program.inputs)} nodes, and no others, are inputs")
    for node, operation in enumerate(program.operations):
        if any(not 0 <= each < node for each in operation.producers):
            raise ValueError(f"node {node} reads one that does not come before it")
        if not all(type(size) is int and size >= 0 for shape in operation.shapes for size in shape):
            raise ValueError(f"node {node} makes tensors of impossible shapes")
        if (operation.target is not None) != (operation.kind == "operation") or operation.output_bytes >= 2**63:
            raise ValueError(f"node {node} is no operation, or makes more bytes than there are")
    tensors = [*program.inputs, *(each.constant for each in program.operations if each.kind == "constant")]
    if not all(isinstance(each, torch.Tensor) for each in tensors):
        raise ValueError("an input or a constant is no tensor")
    if any(not 0 <= each < nodes for each in references(program.outputs)) or homes.max() >= len(program.inputs):
        raise ValueError("an output or a parameter is no node of it")


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
