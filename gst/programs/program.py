"""A captured program: a graph for planning and a list of calls for running, with its files on disk."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property
from keyword import iskeyword
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from gst.graphs.graph import DATA, Graph
from gst.programs.operation import (
    Operation,
    Reference,
    form_of,
    form_of_target,
    leaves,
    references,
    special_kind,
    target_of_form,
    value_of,
)
from gst.util.untrusted import parse_json, plain, read_arrays, read_object, read_tensors, shown

SCHEMA = 1
FILES = ("program.json", "graph.npz", "tensors.pt")

# Error allowed relative to the largest magnitude: sums in another order differ less, wrong operations more.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 3e-2, torch.float16: 1e-2}

ROUNDING = 16  # units of the last place
MARGIN = 4  # times what rounding the inputs changes: other code rounds every operation otherwise


@dataclass(frozen=True, eq=False)
class Program:
    """A captured step. Node i of `graph` is `operations[i]`, and every node comes after those it reads.

    Args:
        name: of the step.
        graph: features, opcodes and edges producer -> consumer (each pair once).
        operations: call of each node.
        inputs: example values of the 'input' nodes, which are nodes 0 .. len(inputs) - 1.
        outputs: for each flat output a `Reference` to the node that makes it, or a plain value.
        output_spec: structure in which the step returned its outputs (`program.unflatten`). A program read from a file
            returns a list instead of dataclasses, named tuples and other classes of the user.
        colocation: number of the group of each node, 0 .. groups - 1; a group is best placed as one.
        parameter_home: for each node the input node of the parameter that it is, views or renews; -1 for none.
    """

    name: str
    graph: Graph
    operations: tuple[Operation, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Any, ...]
    output_spec: pytree.TreeSpec
    colocation: Int64[np.ndarray, " nodes"]
    parameter_home: Int64[np.ndarray, " nodes"] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.parameter_home is None:
            object.__setattr__(self, "parameter_home", np.full(len(self.operations), -1, np.int64))

    @property
    def num_nodes(self) -> int:
        return len(self.operations)

    @property
    def num_groups(self) -> int:
        return int(self.colocation.max()) + 1

    @cached_property
    def output_bytes(self) -> Int64[np.ndarray, " nodes"]:
        """Bytes that each node hands to another memory: a view counts the elements it shows."""
        return np.array([operation.output_bytes for operation in self.operations], np.int64)

    @cached_property
    def key(self) -> str:
        """16 hexadecimal digits, equal for equal operations, arguments, shapes, constants and outputs; names and values
        of inputs do not count.

        Raises:
            ValueError: an argument of an operation has no form in a file.
        """
        digest = hashlib.sha256(f"{SCHEMA} {form_of(self.outputs)}".encode())
        for operation in self.operations:
            record = _record(operation)
            del record["name"]
            digest.update(json.dumps(record, sort_keys=True).encode())
            if operation.constant is not None:
                digest.update(_bytes(operation.constant))
        return digest.hexdigest()[:16]

    def save(self, directory: Path) -> None:
        """Write the new directory `directory`, completely or not at all, without pickled code: `program.json` holds
        version, key, operations and outputs; `graph.npz` the graph; `tensors.pt` inputs and constants; `checksums.json`
        SHA-256 of these.

        Raises:
            ValueError: it is there already, or an operation or argument has no form in a file.
        """
        if directory.exists():
            raise ValueError(f"{directory} is there already; remove it, or give another directory")
        directory.parent.mkdir(parents=True, exist_ok=True)
        partial = directory.with_name(f".partial-{directory.name}-{uuid4().hex}")
        partial.mkdir()
        try:
            _write(self, partial)
            partial.rename(directory)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    @staticmethod
    def load(directory: Path) -> Program:
        """Read a directory of `save`; the program has the same key and computes the same.

        Raises:
            ValueError: it is no saved program of this version, is damaged, or needs an operator that is not registered
                here.
        """
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

    def unflatten(self, outputs: Sequence[Any]) -> Any:
        """Return flat outputs in the structure in which the step returned them."""
        return pytree.tree_unflatten(list(outputs), self.output_spec)

    def check_inputs(self, inputs: Sequence[Tensor] | None) -> Sequence[Tensor]:
        """Return `inputs`, or the examples if None.

        Raises:
            ValueError: their number, a shape or a dtype is not that of the examples.
        """
        if inputs is None:
            return self.inputs
        if len(inputs) != len(self.inputs):
            raise ValueError(f"program {self.name!r} takes {len(self.inputs)} flat inputs, got {len(inputs)}")
        for got, want, operation in zip(inputs, self.inputs, self.operations, strict=False):
            if got.shape != want.shape or got.dtype != want.dtype:
                raise ValueError(
                    f"input {operation.name!r} of program {self.name!r} is {got.dtype} {tuple(got.shape)}, "
                    f"captured with {want.dtype} {tuple(want.shape)}; capture again for other shapes"
                )
        return inputs


def as_module(program: Program) -> fx.GraphModule:
    """Return a module that takes the flat inputs of a program and returns its flat outputs, as a tuple; constants are
    buffers.

    Examples:
        >>> from gst.programs import capture_module
        >>> program = capture_module(torch.nn.ReLU(), (torch.zeros(2),))
        >>> as_module(program)(torch.tensor([-1.0, 2.0]))
        (tensor([0., 2.]),)
    """
    root, graph = torch.nn.Module(), fx.Graph()
    values: dict[int, fx.Node] = {}

    def bound(template: Any) -> Any:
        return fx.node.map_aggregate(template, lambda each: values[each.node] if isinstance(each, Reference) else each)

    for node, operation in enumerate(program.operations):
        if operation.kind == "input":
            values[node] = graph.placeholder(operation.name)
        elif operation.kind == "constant":
            root.register_buffer(f"constant_{node}", operation.constant, persistent=False)
            values[node] = graph.get_attr(f"constant_{node}")
        else:
            assert operation.target is not None
            values[node] = graph.call_function(operation.target, bound(operation.args), bound(operation.kwargs))
    graph.output(bound(program.outputs))
    return fx.GraphModule(root, graph)


def differ_beyond_rounding(
    got: Sequence[Any], want: Sequence[Any], run: Callable[[Any], Any], inputs: Any, least: Sequence[float] = ()
) -> str | None:
    """Return the first difference between flat outputs, as `outputs_differ`, that exceeds `rounding_margins`; None
    without one. Functions whose results vary from call to call have no margins.

    Args:
        got: of other code.
        want: results of `run` for `inputs`, flat.
        run: called with inputs as one argument, and only if outputs differ.
        inputs: tensors in any structure.
        least: margins of the outputs that are allowed in any case; none if empty.
    """
    difference = outputs_differ(got, want, least)
    if difference is None or outputs_differ(leaves(run(inputs)), want) is not None:
        return difference
    margins = rounding_margins(run, inputs, want)
    return outputs_differ(got, want, [max(pair) for pair in zip(margins, least, strict=True)] if least else margins)


def rounding_margins(run: Callable[[Any], Any], inputs: Any, want: Sequence[Any]) -> list[float]:
    """Return the error of each output that rounding alone may cause: `MARGIN` times its change when each number of the
    inputs moves by a unit in the last place, up or down at random.

    This is the measure of backward error (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 1.5).

    Args:
        run: called with inputs as one argument.
        inputs: tensors in any structure.
        want: outputs for them, flat.

    Examples:
        >>> x = torch.tensor([1.0, 1.0])
        >>> less_one = lambda inputs: [inputs[0] - 1.0, inputs[0] * 2.0]
        >>> [margin < 1e-4 for margin in rounding_margins(less_one, [x], less_one([x]))]
        [True, True]
    """
    generator = torch.Generator().manual_seed(0)

    def moved(value: Tensor) -> Tensor:
        if special_kind(value) or not value.is_floating_point() or 0 in value.stride():
            return value
        signs = torch.randint(0, 2, value.shape, generator=generator).to(value.device, value.dtype) * 2 - 1
        new = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        return new.copy_(value.detach() * (1 + torch.finfo(value.dtype).eps * signs))

    outputs = leaves(run(pytree.tree_map_only(Tensor, moved, inputs)))
    return [MARGIN * each for each in distances(outputs, want)]


def distances(got: Sequence[Any], want: Sequence[Any]) -> list[float]:
    """Return the largest difference between the numbers of each two outputs; 0 if they are no floating-point
    numbers."""
    result = []
    for a, b in zip(got, want, strict=True):
        has_numbers = isinstance(b, Tensor) and b.is_floating_point() and b.numel() > 0
        off = (_real(a).double() - _real(b).double()).abs() if has_numbers else torch.zeros(1)
        result.append(float(torch.nan_to_num(off, nan=0.0, posinf=0.0).max()))
    return result


def outputs_differ(got: Sequence[Any], want: Sequence[Any], margins: Sequence[float] = ()) -> str | None:
    """Return the first difference between two lists of flat outputs; None if they agree within their `TOLERANCE`.

    An output near zero may be a difference of large numbers. So no output must agree better than `ROUNDING` units of
    the last place of the largest one, nor better than its margin (`rounding_margins`).

    Examples:
        >>> outputs_differ([torch.ones(2)], [torch.ones(2) + 1])
        'output 0 is off by 1, allowed 0.002'
    """
    if len(got) != len(want):
        return f"{len(got)} outputs instead of {len(want)}"
    numbers = [_real(each) for each in want if isinstance(each, Tensor)]
    largest = max([_scale(each) for each in numbers if each.is_floating_point()], default=0.0)
    for position, (a, b) in enumerate(zip(got, want, strict=True)):
        if not isinstance(a, Tensor) or not isinstance(b, Tensor):
            if a is not b and a != b:
                return f"output {position} is {a!r} instead of {b!r}"
            continue
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"output {position} is {a.dtype} {tuple(a.shape)} instead of {b.dtype} {tuple(b.shape)}"
        a, b = _real(a), _real(b)
        if a.dtype in TOLERANCE and a.numel():
            scale = _scale(b)
            rounding = min(ROUNDING * torch.finfo(a.dtype).eps, TOLERANCE[a.dtype] / 100) * largest
            limit = max(TOLERANCE[a.dtype] * scale, rounding, margins[position] if margins else 0.0)
            if not torch.allclose(a.double(), b.double(), rtol=0.0, atol=limit, equal_nan=True):
                error = (a.double() - b.double()).abs().max().item()
                return f"output {position} is off by {error:.3g}, allowed {limit:.3g}"
        elif not torch.equal(a, b):
            return f"output {position} ({a.dtype}) is not equal"
    return None


def _real(value: Tensor) -> Tensor:
    """Return a value on the CPU; complex numbers as pairs of real ones."""
    value = value.detach().cpu()
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def _scale(value: Tensor) -> float:
    """Return the largest finite magnitude, at least 1e-6."""
    finite = torch.nan_to_num(value.detach().cpu().double(), nan=0.0, posinf=0.0, neginf=0.0)
    return max(finite.abs().max().item() if value.numel() else 0.0, 1e-6)


# Files ---------------------------------------------------------------------------------------------------------------


def _bytes(value: torch.Tensor) -> bytes:
    flat = value.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _write(program: Program, directory: Path) -> None:
    record = {
        "schema": SCHEMA,
        "name": program.name,
        "key": program.key,
        "outputs": form_of(program.outputs),
        "output_spec": _form_of_structure(program.output_spec),
        "operations": [_record(operation) for operation in program.operations],
    }
    (directory / "program.json").write_text(json.dumps(record))
    stored = [f.name for f in fields(Graph) if f.name not in ("name", *DATA)]  # a captured program has no further data
    arrays = {name: getattr(program.graph, name) for name in stored}
    arrays |= {"colocation": program.colocation, "parameter_home": program.parameter_home}
    np.savez(directory / "graph.npz", allow_pickle=False, **arrays)
    constants = [each.constant for each in program.operations if each.constant is not None]
    torch.save({"inputs": list(program.inputs), "constants": constants}, directory / "tensors.pt")
    (directory / "checksums.json").write_text(json.dumps({name: _checksum(directory / name) for name in FILES}))


def _form_of_structure(spec: pytree.TreeSpec) -> str:
    """Return the text of a structure; that of a list for classes that only the user's process has."""
    try:
        return pytree.treespec_dumps(spec)
    except (NotImplementedError, TypeError, ValueError):
        return pytree.treespec_dumps(pytree.tree_structure([0] * spec.num_leaves))


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


def _program(record: dict[str, Any], arrays: dict[str, Any], tensors: dict[str, Any]) -> Program:
    constants = iter(tensors["constants"])
    operations = tuple(_operation(each, constants) for each in record["operations"])
    colocation, homes = arrays.pop("colocation"), arrays.pop("parameter_home")
    return Program(
        record["name"], Graph(**arrays, name=record["name"]), operations, tuple(tensors["inputs"]),
        value_of(record["outputs"]), structure(record["output_spec"]), colocation, homes,
    )  # fmt: skip


def structure(text: str) -> pytree.TreeSpec:
    """Return a structure of outputs from the text of `pytree.treespec_dumps`. Two forms for which torch would import a
    module are refused by a LookupError; damaged text raises other errors too."""
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
    names = {argument.name for argument in target._schema.arguments} if isinstance(target, OpOverload) else set()
    if unknown := record["kwargs"].keys() - names:  # they become Python code in `gst.lowering.calls.bind`
        raise ValueError(f"operator {record['target']} has no argument {shown(min(unknown))}")
    return Operation(
        record["name"], record["kind"], target,
        tuple(value_of(record["args"])), {key: value_of(value) for key, value in record["kwargs"].items()},
        tuple(map(tuple, record["shapes"])), tuple(value_of({"dtype": name}) for name in record["dtypes"]),
        next(constants) if record["kind"] == "constant" else None, record["is_view"],
    )  # fmt: skip


def _checked(directory: Path) -> dict[str, Any]:
    """Return the content of `program.json`, if all files are unchanged since they were written."""
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
    """Check all properties that runs and plans of a program need."""
    nodes, kinds = program.num_nodes, [operation.kind for operation in program.operations]
    groups, homes = program.colocation, program.parameter_home
    if program.graph.num_nodes != nodes or any(each.shape != (nodes,) for each in (groups, homes)):
        raise ValueError(f"its graph, its groups or its parameters are not those of {nodes} operations")
    if any(each.dtype != np.int64 for each in (groups, homes)) or not 0 <= groups.min() <= groups.max() < nodes:
        raise ValueError("its groups are not numbered 0, 1, and so on")
    if kinds != ["input"] * len(program.inputs) + [kind for kind in kinds if kind in ("constant", "operation")]:
        raise ValueError(f"its first {len(program.inputs)} nodes, and no others, are inputs")
    for node, operation in enumerate(program.operations):
        if not isinstance(operation.name, str) or not operation.name.isidentifier() or iskeyword(operation.name):
            # names of inputs become Python code in `as_module`
            raise ValueError(f"the name of node {node} is {shown(operation.name)}, want a Python identifier")
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
