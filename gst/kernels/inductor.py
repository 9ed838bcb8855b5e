"""Private parts of PyTorch that `gst.kernels` needs: no other module of the package imports from Inductor.

`unsupported` checks the version and each name before the first use. Where it gives a reason, a step runs as Inductor
compiles it, on one stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, fx

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
