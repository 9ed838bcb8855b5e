"""Compile a step by Inductor once, and record the kernel calls of the code that it generates.

The generated module runs under a dispatch mode, which sees calls of ATen, cuBLAS, cuDNN and oneDNN with the mutations
that their schemas declare. Its own kernels (Triton, C++) are replaced by recorders for that run; their signatures say
which arguments they write.

No other module of the package imports private parts of Inductor. `unsupported` checks the version and each name before
the first use. Where it gives a reason, a step runs as Inductor compiles it, on one stream.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from gst.kernels.program import GENERATOR, Kernel, KernelProgram, Region, View, key_of

VERSIONS = ("2.11", "2.12", "2.13", "2.14", "2.15")
"""Versions of PyTorch whose generated code the recording reads; the tests of this package pass with each of them."""

SETTINGS: dict[str, Any] = {
    "allow_buffer_reuse": False,  # one buffer for two values would make calls wait that need not
    "memory_planning": False, "cpp_wrapper": False, "graph_partition": False, "triton.cudagraphs": False,
}  # fmt: skip
NAMES = {
    "torch._inductor.compile_fx": ("compile_fx", "compile_fx_inner"),
    "torch._inductor.codecache": ("PyCodeCache.modules",),  # generated modules, which have a `key` and a `call`
    "torch._inductor.output_code": ("CompiledFxGraph",),  # `current_callable`, `cache_key`, `source_code`
    "torch._inductor.config": ("patch", *SETTINGS),
    "torch._functorch.config": ("enable_autograd_cache",),
    "torch._guards": ("TracingContext", "tracing"),
    "torch._subclasses.fake_tensor": ("FakeTensorMode",),
    "torch.fx.experimental.symbolic_shapes": ("ShapeEnv",),
}
"""Names by module; the same in all `VERSIONS`."""

CODE = ("current_callable", "cache_key", "source_code")  # attributes of a compiled graph


class NotUnderstoodError(ValueError):
    """A compiled step does something that calls on several streams could not repeat; the message names it."""


@cache
def unsupported(version: str = torch.__version__) -> str:
    """Return the reason why kernels of this PyTorch cannot be recorded; empty if they can.

    Examples:
        >>> unsupported()
        ''
        >>> unsupported("9.1.0")
        'the code that torch 9.1.0 generates is unknown here; known are 2.11 to 2.15'
    """
    if ".".join(version.split(".")[:2]) not in VERSIONS:
        return f"the code that torch {version} generates is unknown here; known are {VERSIONS[0]} to {VERSIONS[-1]}"
    for module, names in NAMES.items():
        for name in names:
            try:
                value: Any = import_module(module)
                for part in name.split("."):
                    value = getattr(value, part)
            except (ImportError, AttributeError):
                return f"torch {version} has no {module}.{name}"
    return ""


def compiled(
    module: fx.GraphModule, inputs: Sequence[Tensor], settings: Mapping[str, Any]
) -> tuple[Callable[..., Any], list[Any]]:
    """Compile a module for its inputs; return the function, and each `CompiledFxGraph` that it calls.

    Args:
        settings: of Inductor, beyond `SETTINGS`.
    """
    from torch._guards import TracingContext, tracing
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    graphs: list[Any] = []

    def inner(*args: Any, **kwargs: Any) -> Any:
        graphs.append(compile_fx_inner(*args, **kwargs))
        return graphs[-1]

    # Inductor stores its code by content where there is a shape environment; sizes are numbers all the same.
    fake = FakeTensorMode(shape_env=ShapeEnv())
    examples = [fake.from_tensor(each, static_shapes=True) for each in inputs]
    with (
        torch.no_grad(), config.patch({**SETTINGS, **settings}), tracing(TracingContext(fake)),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):  # fmt: skip
        function: Any = compile_fx(module, examples, inner_compile=inner)
    return function, graphs


def code_of(graph: Any) -> Any:
    """Return the function of the generated module, without the wrappers of Inductor that copy unaligned inputs."""
    from torch._inductor.codecache import PyCodeCache

    for module in reversed(PyCodeCache.modules):
        is_its = all(hasattr(graph, name) for name in CODE) and getattr(module, "key", None) == graph.cache_key
        if is_its and hasattr(module, "call"):
            return module.call
    raise NotUnderstoodError(f"the code of the step is a {type(graph).__name__} without a module")


GENERATORS = {"cpp_pybinding": "C++", "triton": "Triton"}
READ_ALONE = re.compile(r"(in_ptr|arg_)\w+")  # names of arguments of Triton kernels that Inductor generates


def kernel_program(
    module: fx.GraphModule, inputs: Sequence[Tensor], name: str = "step", settings: Mapping[str, Any] | None = None
) -> KernelProgram:
    """Compile a module for its example inputs, and record its kernel calls. Inputs that it writes are as before.

    Args:
        module: of ATen operations, such as `gst.programs.as_module` makes; it may write to its inputs by `copy_`.
        inputs: all on one device.
        name: of the program.
        settings: further settings of Inductor.

    Raises:
        NotUnderstoodError: a call cannot be moved to another stream safely, or this version of PyTorch is unknown.

    Examples:
        >>> from gst.programs import as_module, capture_module
        >>> step = capture_module(torch.nn.ReLU(), (torch.ones(1, 2),))
        >>> [kernel.name for kernel in kernel_program(as_module(step), step.inputs).kernels]
        ['cpp_fused_relu_0']
    """
    if reason := unsupported():
        raise NotUnderstoodError(reason)
    own = [each.detach().clone(memory_format=torch.preserve_format) for each in inputs]
    function, graphs = compiled(module, own, settings or {})
    with torch.no_grad():
        if any(each.device.type != "cpu" for each in own):  # Triton kernels tune themselves in their first run
            function(*[each.clone(memory_format=torch.preserve_format) for each in own])
        recordings = [_Recording(each, own) for each in graphs]
        try:
            outputs = pytree.tree_leaves(function(*own))
        finally:
            for each in recordings:
                each.restore()
    called = [each for each in recordings if each.is_called]
    if len(called) != 1:
        raise NotUnderstoodError(f"Inductor compiled the step into {len(called)} pieces of code; want one")
    return called[0].program(name, outputs)


class _Recording:
    """Stands for the code of a `CompiledFxGraph`: runs it once and records its calls. Arguments that are no inputs of
    the step are constants."""

    def __init__(self, compiled: Any, inputs: Sequence[Tensor]) -> None:
        self._compiled, self._before = compiled, compiled.current_callable
        self._call = code_of(compiled)
        compiled.current_callable = self
        self._inputs = inputs
        self._kernels: list[Kernel] = []
        self._storages: dict[int, int] = {}
        self._bytes: list[int] = []
        self._given: dict[int, torch.UntypedStorage] = {}
        self._kept: list[Any] = []  # so that no storage takes the address of another
        self.is_called = False

    def restore(self) -> None:
        """Put the code back."""
        self._compiled.current_callable = self._before

    def __call__(self, args: list[Any]) -> Any:
        if self.is_called:
            raise NotUnderstoodError("the compiled step calls its code twice")
        self.is_called = True
        for value in (*args, *self._inputs):
            if isinstance(value, Tensor):
                self._given[self._number(value)] = value.untyped_storage()
        with _replaced(self._call.__globals__, self), _Operators(self):
            return self._call(args)

    def program(self, name: str, outputs: Sequence[Any]) -> KernelProgram:
        devices = {storage.device for storage in self._given.values()} | {
            each.device for each in outputs if isinstance(each, Tensor)
        }
        if len(devices) != 1:
            raise NotUnderstoodError(f"its tensors are on {', '.join(sorted(map(str, devices))) or 'no device'}")
        for each in outputs:
            if isinstance(each, Tensor) and _address(each) not in self._storages:
                raise NotUnderstoodError(f"an output of shape {tuple(each.shape)} lies in memory that no call wrote")
        inputs = tuple(map(self._view, self._inputs))
        return KernelProgram(
            name, tuple(self._kernels), np.array(self._bytes, np.int64), self._given, inputs,
            tuple(self._template(list(outputs))), devices.pop(), key_of(self._compiled.source_code, inputs),
        )  # fmt: skip

    def keep(self, value: Any) -> Any:
        self._kept.append(value)
        return value

    def add(
        self, name: str, kind: Any, call: Callable[..., Any], args: Any, kwargs: Any, reads: Sequence[Tensor],
        writes: Sequence[Tensor], makes: Sequence[Tensor] = (), draws: bool = False,
    ) -> None:  # fmt: skip
        """Record a call; tensors that it reads and no call made are constants."""
        for each in reads:
            if _address(each) not in self._storages:
                self._given[self._number(each)] = each.untyped_storage()
        for each in makes:
            if _address(each) in self._storages:
                raise NotUnderstoodError(f"{name} returns memory of its arguments, which its schema does not say")
        made = tuple(map(self._number, makes))
        state = (Region(GENERATOR, 0, 1),) if draws else ()
        written = (*self._regions([*writes, *makes]), *state)
        template, keywords = tuple(self._template(list(args))), self._template(dict(kwargs))
        read = (*self._regions(reads), *state)
        self._kernels.append(Kernel(name, kind, call, template, keywords, read, written, made))

    def _regions(self, tensors: Sequence[Tensor]) -> tuple[Region, ...]:
        regions = dict.fromkeys(self._view(each).region for each in tensors)
        return tuple(each for each in regions if each.start < each.stop)

    def _view(self, tensor: Tensor) -> View:
        return View.of(tensor, self._number(tensor))

    def _number(self, tensor: Tensor) -> int:
        storage = self.keep(tensor).untyped_storage()
        address = _address(tensor)
        if address not in self._storages:
            self._storages[address] = len(self._bytes)
            self._bytes.append(storage.nbytes())
        return self._storages[address]

    def _template(self, value: Any) -> Any:
        return pytree.tree_map_only(Tensor, self._view, value)


def _address(tensor: Tensor) -> int:
    """Return a number of the storage; empty storages have no address and need no wait."""
    return tensor.untyped_storage().data_ptr() or -id(tensor.untyped_storage()._cdata)


class _Operators(TorchDispatchMode):
    """Records calls of operators."""

    def __init__(self, recording: _Recording) -> None:
        super().__init__()
        self._recording = recording

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        require_movable(function)
        result = self._recording.keep(function(*args, **kwargs))
        self._recording.keep((args, kwargs))
        if function.is_view or _only_allocates(function):
            return result
        reads, writes = [], []
        for number, argument in enumerate(function._schema.arguments):
            value = args[number] if number < len(args) else kwargs.get(argument.name)
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            is_out = is_written and argument.kwarg_only and argument.name.startswith("out")
            tensors = [each for each in pytree.tree_leaves(value) if isinstance(each, Tensor)]
            writes += tensors if is_written else []
            reads += [] if is_out else tensors
        addresses = set(map(_address, writes))
        made = [each for each in pytree.tree_leaves(result) if isinstance(each, Tensor)]
        made = [each for each in made if _address(each) not in addresses]
        if made or writes:
            draws = torch.Tag.nondeterministic_seeded in function.tags
            name = f"{function.namespace}.{function.__name__}"
            self._recording.add(name, "operator", function, args, kwargs, reads, writes, made, draws)
        return result


def _only_allocates(function: OpOverload) -> bool:
    return function.namespace == "aten" and function.__name__.startswith(("empty", "new_empty"))


def require_movable(function: Any) -> None:
    """Raise NotUnderstoodError if a call of an operator cannot run on another stream."""
    name = f"{function.namespace}.{function.__name__}" if isinstance(function, OpOverload) else str(function)
    if not isinstance(function, OpOverload):
        raise NotUnderstoodError(f"{name} is no operator whose mutations are known")
    if "c10d" in function.namespace:
        raise NotUnderstoodError(f"{name} exchanges data with other processes")
    if torch.Tag.dynamic_output_shape in function.tags:
        raise NotUnderstoodError(f"{name} returns sizes that depend on values")
    if torch.Tag.data_dependent_output in function.tags:
        raise NotUnderstoodError(f"{name} waits for a value of the device")


# Generated code ------------------------------------------------------------------------------------------------------


def _generated(source: str) -> dict[str, tuple[str, list[str]]]:
    """Return for each kernel of a generated module its generator, and the C types of its arguments."""
    kernels = {}
    for line in ast.parse(source).body:
        if not isinstance(line, ast.Assign) or not isinstance(line.value, ast.Call):
            continue
        function, (target, *_) = line.value.func, line.targets
        if not isinstance(function, ast.Attribute) or not isinstance(target, ast.Name):
            continue
        if isinstance(function.value, ast.Name) and function.value.id == "async_compile":
            types: list[str] = next(
                (ast.literal_eval(each) for each in line.value.args if isinstance(each, ast.List)), []
            )
            kernels[target.id] = function.attr, types
    return kernels


@contextmanager
def _replaced(names: dict[str, Any], recording: _Recording) -> Iterator[None]:
    """Replace the kernels of a generated module by recorders."""
    saved: dict[str, Any] = {}
    kernels = _generated(Path(names["__file__"]).read_text()) if "__file__" in names else {}
    for name, (generator, types) in kernels.items():
        kernel = saved[name] = names[name]
        if generator == "cpp_pybinding":
            names[name] = _CppKernel(kernel, name, types, recording)
        elif generator == "triton" and hasattr(kernel, "run") and hasattr(kernel, "fn"):
            names[name] = _TritonKernel(kernel, name, recording)
        else:
            del saved[name]
            names.update(saved)
            raise NotUnderstoodError(f"kernel {name} is made by {generator}; known are {', '.join(GENERATORS)}")
    for name in [each for each in names if each.startswith("empty_strided")]:
        saved[name] = names[name]
        names[name] = lambda *args, make=names[name], **kwargs: recording.keep(make(*args, **kwargs))
    try:
        yield
    finally:
        names.update(saved)


class _CppKernel:
    """Runs and records a C++ kernel, which reads where its pointers are `const`. Others it may also read."""

    def __init__(self, kernel: Any, name: str, types: Sequence[str], recording: _Recording) -> None:
        self._kernel, self._name, self._types, self._recording = kernel, name, types, recording

    def __call__(self, *args: Any) -> None:
        self._kernel(*args)
        reads: list[Tensor] = []
        writes: list[Tensor] = []
        for value, kind in zip(args, self._types, strict=True):
            if isinstance(value, Tensor):
                (reads if kind.startswith("const ") else writes).append(value)
        self._recording.add(self._name, "generated", self._kernel, args, {}, reads, writes)


class _TritonKernel:
    """Runs and records a Triton kernel. It may write to all arguments but `in_ptr` and `arg_`, and to those that it
    says it mutates."""

    def __init__(self, kernel: Any, name: str, recording: _Recording) -> None:
        self._kernel, self._name, self._recording = kernel, name, recording

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def run(self, *args: Any, stream: Any, **kwargs: Any) -> None:
        kernel = self._kernel
        kernel.run(*args, stream=stream, **kwargs)
        mutated = set(getattr(kernel, "mutated_arg_names", None) or ())
        reads: list[Tensor] = []
        writes: list[Tensor] = []
        for name, value in zip(kernel.fn.arg_names, args, strict=False):
            if isinstance(value, Tensor):
                is_written = name in mutated or not READ_ALONE.fullmatch(name)
                writes += [value] * is_written
                reads += [value] * (not name.startswith("out_ptr") or name in mutated)
        self._recording.add(self._name, "generated", _on_current_stream(kernel.run), args, kwargs, reads, writes)


def _on_current_stream(run: Callable[..., Any]) -> Callable[..., None]:
    def launch(*args: Any, **kwargs: Any) -> None:
        run(*args, stream=torch.cuda.current_stream().cuda_stream, **kwargs)

    return launch
