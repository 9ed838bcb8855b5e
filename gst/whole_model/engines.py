"""Inference engines as variants of a whole model on the CPU, where they are installed: ONNX Runtime and OpenVINO.

The model is exported once for all of them. An engine holds the weights as constants, as frozen code does.
Engines do not refuse what PyTorch refuses: they return zeros or other rows for an index that is out of range, and
OpenVINO computes in 32 bits and drops NaN. So each call is checked, and a model that no check covers is left out.
"""

from __future__ import annotations

import logging
import math
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from importlib.util import find_spec
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.utils import _pytree as pytree

from gst.programs.operation import tensors_of
from gst.util.untrusted import first_line
from gst.whole_model.comparing import Guard, repeats

ONNX_RUNTIME, OPENVINO = "onnxruntime", "openvino"
PACKAGES = {name: (name, "onnx", "onnxscript") for name in (ONNX_RUNTIME, OPENVINO)}
"""Engines by the name of their variant, each with the packages that it imports."""
COMPUTED = -1  # a value computed from inputs, and not an input itself with its elements in another order
INDICES = {"index", "indices", "target", "offsets"}  # names of arguments in the schemas of ATen
BY_POSITION = {"aten::embedding", "aten::index", "aten::index_put"}  # the first index is of the first dimension
REORDERING = {"aten::clone", "aten::flip", "aten::repeat", "aten::roll", "aten::_to_copy"}  # beside views
POSITIONS = {"aten::argmax", "aten::argmin", "aten::argsort", "aten::bucketize", "aten::searchsorted", "aten::nonzero"}
WITH_POSITIONS = {"aten::topk", "aten::sort", "aten::max", "aten::min"}  # which are their second result
Engine = Callable[[Sequence[Any]], Sequence[Any]]  # of arrays of NumPy


def missing(kind: str) -> str:
    """Return the reason why an engine cannot be made here; empty if its packages are installed, or for other variants.

    Examples:
        >>> missing("compiled")
        ''
    """
    absent = next((name for name in PACKAGES.get(kind, ()) if find_spec(name) is None), "")
    return f"{absent} is not installed; pip install 'graph-segment-training[engines]'" if absent else ""


def export(model: nn.Module, inputs: Sequence[Any]) -> torch.export.ExportedProgram:
    """Export a model for inference. Attributes that this replaces by equal ones are put back: a guard compares them."""
    before = [(each, dict(vars(each))) for each in model.modules()]
    try:
        with torch.no_grad():
            return torch.export.export(model, tuple(inputs))
    finally:
        for module, attributes in before:
            vars(module).update(attributes)


class Exported:
    """A model in evaluation mode, exported for calls like the example when the first engine is made."""

    def __init__(self, model: nn.Module, inputs: Sequence[Any]) -> None:
        self._model, self._inputs, self._failure = model, tuple(inputs), ""

    @cached_property
    def program(self) -> torch.export.ExportedProgram:
        """The model as a function of flat tensors; ValueError if it draws random numbers, or writes to its tensors."""
        if not repeats(self._model, self._inputs):
            raise ValueError("it draws random numbers, or writes to its inputs or weights")
        return export(_Flat(self._model, self._inputs), tensors_of(self._inputs))

    @cached_property
    def onnx(self) -> str:
        """Path of the model as a file of ONNX, which lasts as long as this object; one attempt is made."""
        if self._failure:
            raise ValueError(self._failure)
        self._directory = tempfile.TemporaryDirectory()
        path = str(Path(self._directory.name) / "model.onnx")
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)  # of operators that the model does not use
        try:
            with torch.no_grad(), warnings.catch_warnings(action="ignore"):
                torch.onnx.export(self.program, (), path, dynamo=True, verbose=False)
        except Exception as error:  # any exception of the exporter
            self._failure = f"it is not exported to ONNX: {first_line(error.__cause__ or error)}"
            raise ValueError(self._failure) from error
        finally:
            logging.disable(before)
        return path

    def run(self, kind: str, threads: int) -> Callable[..., Any]:
        """Return a function that runs the model by an engine, called as the model is, without gradients. Checks of this
        module raise ValueError, exporters and engines any exception."""
        if reason := missing(kind):
            raise ValueError(reason)
        with torch.no_grad():
            leaves, outputs = pytree.tree_flatten(self._model(*self._inputs))
        if other := [each for each in leaves if not isinstance(each, Tensor)]:
            raise ValueError(f"an output is a {type(other[0]).__name__}; engines return tensors")
        rows, wide = _uses(self.program)
        if wide and kind == OPENVINO:
            raise ValueError(f"{wide} has numbers of 64 bits, which OpenVINO rounds to 32")
        bounds = [(n, *_bounds(each, rows.get(n))) for n, each in enumerate(tensors_of(self._inputs)) if each.numel()]
        engine = (_onnx_runtime if kind == ONNX_RUNTIME else _openvino)(self, threads)
        read, model = Guard(None, self._inputs, weights=False).leaves, self._model

        def run(*inputs: Any) -> Any:
            arrays = [each.detach().contiguous().numpy() for each in read(inputs) if isinstance(each, Tensor)]
            if not all(_is_within(arrays[number], *ends) for number, *ends in bounds):
                with torch.no_grad():
                    return model(*inputs)
            results = engine(arrays)
            return outputs.unflatten([torch.from_numpy(each) for each in results])

        run(*self._inputs)
        return run


class _Flat(nn.Module):
    """A model as a function of the tensors among its inputs; it returns its outputs in one tuple."""

    def __init__(self, model: nn.Module, inputs: tuple[Any, ...]) -> None:
        super().__init__()
        leaves, self._spec = pytree.tree_flatten(inputs)
        self._constants = [(isinstance(each, Tensor), None if isinstance(each, Tensor) else each) for each in leaves]
        self.model = model

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        values = iter(tensors)
        leaves = [next(values) if is_tensor else constant for is_tensor, constant in self._constants]
        return tuple(pytree.tree_leaves(self.model(*pytree.tree_unflatten(leaves, self._spec))))


def _onnx_runtime(exported: Exported, threads: int) -> Engine:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 4
    session = onnxruntime.InferenceSession(exported.onnx, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    return lambda arrays: session.run(None, dict(zip(names, arrays, strict=True)))


@cache
def _core() -> Any:
    """The one core of OpenVINO, kept as long as the process: of two that end, the second leaves a freed stack as the
    one for handlers of signals, and the next signal is a segmentation fault."""
    import openvino

    return openvino.Core()


def _openvino(exported: Exported, threads: int) -> Engine:
    # The file is read by the runtime: `openvino.convert_model` would report its use to Intel.
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = _core().compile_model(exported.onnx, "CPU", settings).create_infer_request()
    lock = threading.Lock()

    def run(arrays: Sequence[Any]) -> Sequence[Any]:
        with lock:  # a request takes one caller at a time
            return list(request.infer(arrays, share_inputs=True).values())

    return run


# Checks of inputs -----------------------------------------------------------------------------------------------------


def _uses(program: torch.export.ExportedProgram) -> tuple[dict[int, int], str]:
    """Return the number of rows that each input of indices selects from, and the name of a value that needs 64 bits.

    Raises:
        ValueError: an index is computed from inputs, so that no check of the inputs tells if it is out of range.
    """
    numbers = {name: number for number, name in enumerate(program.graph_signature.user_inputs)}
    sources: dict[Node, int] = {}  # number of an input, or `COMPUTED`, of each value that depends on inputs
    limits: dict[int, int] = {}
    wide = ""
    for node in program.graph.nodes:
        for index, rows in _indices(node) if node.op == "call_function" else ():
            number = sources.get(index)
            if number == COMPUTED or (number is not None and rows is None):
                raise ValueError(f"{node.name} reads indices computed from inputs; an engine does not check them")
            if number is not None and rows is not None:
                limits[number] = min(rows, limits.get(number, rows))
        source = numbers.get(node.name, _source(node, sources))
        if source is not None:
            sources[node] = source
        if torch.float64 in _dtypes(node) or (torch.int64 in _dtypes(node) and source == COMPUTED):
            wide = wide or node.name
    return limits, wide


def _indices(node: Node) -> Iterator[tuple[Node, int | None]]:
    """Yield each index of an operator with the number of rows that it selects from, None if unknown."""
    name, own, whole = _name(node), node.args, [each for each in node.all_input_nodes if not _is_float(each)]
    if node.target is getitem:
        return
    schema = getattr(node.target, "_schema", None)
    if schema is None or name == "aten::one_hot" or (schema.is_mutable and own[0] in whole):  # a graph, or writes
        yield from ((each, None) for each in (whole if schema is None else node.all_input_nodes))
        return
    shape = getattr(own[0].meta["val"], "shape", ()) if own and isinstance(own[0], Node) else ()
    for argument, value in zip(schema.arguments, own, strict=False):
        for position, index in enumerate(value if isinstance(value, (list, tuple)) else [value]):
            if argument.name in INDICES and isinstance(index, Node):
                along = position if name in BY_POSITION else own[1]
                yield index, shape[along] if isinstance(along, int) else None


def _source(node: Node, sources: Mapping[Node, int]) -> int | None:
    """Return the input whose elements a value holds, `COMPUTED`, or None if it is in range for any inputs."""
    own, is_item = [sources[each] for each in node.all_input_nodes if each in sources], node.target is getitem
    is_position = is_item and node.args[1] == 1 and _name(node.args[0]) in WITH_POSITIONS
    if not own or is_position or _name(node) in POSITIONS or _dtypes(node) == {torch.bool}:
        return None
    is_same = is_item or _name(node) in REORDERING or getattr(node.target, "is_view", False)
    return own[0] if is_same and not _is_float(node) else COMPUTED


def _name(node: Any) -> str:
    return str(getattr(getattr(node.target, "_schema", None), "name", ""))


def _dtypes(node: Node) -> set[torch.dtype]:
    return {each.dtype for each in pytree.tree_leaves(node.meta.get("val")) if isinstance(each, Tensor)}


def _is_float(node: Node) -> bool:
    return any(each.is_floating_point for each in _dtypes(node))


def _bounds(example: Tensor, rows: int | None) -> tuple[float, float]:
    if rows is not None:
        return 0, rows - 1
    return (-math.inf, math.inf) if example.is_floating_point() else (-(2**31), 2**31 - 1)


def _is_within(values: np.ndarray, least: float, largest: float) -> bool:
    """True if all elements are within the bounds; False if one is NaN. On one thread: PyTorch's own would wait for its
    next operation on the cores that the engine needs."""
    return bool(least <= values.min() and values.max() <= largest)
