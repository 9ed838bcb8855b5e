"""Variants of a whole model or step, without a plan: as written, compiled, frozen, or run by an engine.

Frozen means that weights are constants of the compiled code, for inference alone: batch normalisations are folded into
convolutions, and weights are packed once. Code that AOTInductor compiles ahead of time runs without Dynamo's guards.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gst.lowering.calls import laid_out
from gst.machine.devices import usable_cores
from gst.programs import Program, Step, as_module
from gst.programs.operation import opened
from gst.util.untrusted import first_line
from gst.whole_model.comparing import Guard
from gst.whole_model.engines import PACKAGES, Exported, export, missing

PYTORCH, COMPILED = "pytorch", "compiled"  # the model as written, and as torch.compile makes it
ORDINARY = "ordinary loop"  # of a training step: forward, backward, `optimizer.step()`; it is compared, never chosen
FROZEN, AHEAD = "frozen", "ahead of time"
ONE_GRAPH = "one graph"  # as written, recorded once on an accelerator
MODE = "reduce-overhead"  # of `torch.compile`, on an accelerator
MOST_COMPILED = 128  # pieces of compiled code of one model
Function = Callable[..., Any]


class Bound(nn.Module):
    """Function of flat inputs with some of them bound as parameters and buffers; it is called with the others.

    Args:
        function: a module of all inputs.
        is_weight: True for each input that is bound.
        inputs: all inputs; bound `nn.Parameter`s become parameters, other bound tensors buffers.
    """

    def __init__(self, function: nn.Module, is_weight: Sequence[bool], inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.function, self.is_weight = function, tuple(is_weight)
        for number, (value, is_bound) in enumerate(zip(inputs, is_weight, strict=True)):
            if is_bound and isinstance(value, nn.Parameter):
                self.register_parameter(f"weight_{number}", value)
            elif is_bound:
                self.register_buffer(f"weight_{number}", value)

    def forward(self, *inputs: Tensor) -> Any:
        rest = iter(inputs)
        return self.function(
            *(getattr(self, f"weight_{number}") if bound else next(rest) for number, bound in enumerate(self.is_weight))
        )


class Variant(NamedTuple):
    """Settings of one run of a whole model: compiler and threads.

    Args:
        kind: 'pytorch' (as written), 'compiled', 'frozen', 'ahead of time', 'onnxruntime' or 'openvino'; on an
            accelerator also 'one graph'.
        threads: of PyTorch while it runs; None = as many as PyTorch has.
        mode: of `torch.compile`, on an accelerator; the default if empty.
    """

    kind: str
    threads: int | None = None
    mode: str = ""

    @property
    def compiles(self) -> bool:
        return self.kind not in (PYTORCH, ONE_GRAPH)

    @property
    def holds_weights(self) -> bool:
        return self.kind in (FROZEN, AHEAD, *PACKAGES)

    @property
    def name(self) -> str:
        """Name in results.

        Examples:
            >>> Variant("frozen", 1).name, Variant("compiled", mode="reduce-overhead").name
            ('frozen, 1 thread', 'compiled, reduce-overhead')
        """
        threads = "" if self.threads is None else f"{self.threads} thread{'s' * (self.threads != 1)}"
        return ", ".join(filter(None, (self.kind, self.mode, threads)))

    @staticmethod
    def named(name: str) -> Variant:
        """Return the variant with this name in results.

        Raises:
            ValueError: there is no such variant.
        """
        parts = name.split(", ")
        counts = [int(each.split()[0]) for each in parts if re.fullmatch(r"[1-9][0-9]{0,4} threads?", each)]
        variant = Variant(parts[0], next(iter(counts), None), MODE if MODE in parts else "")
        if variant.name != name or variant.kind not in (PYTORCH, COMPILED, FROZEN, AHEAD, ONE_GRAPH, *PACKAGES):
            raise ValueError(f"there is no variant {name[:80]!r} of a model")
        return variant


def variants(model: nn.Module, cores: int) -> list[Variant]:
    """Return the variants of a model on the CPU, with `cores` cores or one, the simplest first.

    Examples:
        >>> model = nn.Linear(2, 2).requires_grad_(False).eval()
        >>> [each.name for each in variants(model, cores=torch.get_num_threads())][:6]
        ['pytorch', 'compiled', 'frozen', 'ahead of time', 'onnxruntime', 'openvino']
    """
    own = [Variant(PYTORCH), Variant(COMPILED)]
    if not may_freeze(model):
        return own + on_other_threads(own, cores)
    own += [Variant(FROZEN), Variant(AHEAD), *map(Variant, PACKAGES)]
    elsewhere = [each for each in own if each.kind != AHEAD and not missing(each.kind)]
    return own + on_other_threads(elsewhere, cores)


def on_other_threads(kinds: Sequence[Variant], cores: int) -> list[Variant]:
    """Return the variants with `cores` threads and with one, apart from PyTorch's own number of threads."""
    counts = [count for count in dict.fromkeys((cores, 1)) if count != torch.get_num_threads()]
    return [variant._replace(threads=count) for count in counts for variant in kinds]


def may_freeze(model: nn.Module) -> bool:
    """True if weights may become constants: the model is in evaluation mode and no weight requires a gradient."""
    tensors = [*model.parameters(), *model.buffers()]
    is_training = any(module.training for module in model.modules())
    return bool(tensors) and not is_training and not any(each.requires_grad or each.is_inference() for each in tensors)


def as_written(model: nn.Module | Step, inputs: Sequence[Any]) -> Any:
    """Run a model or a step as it is written and return its outputs without gradients."""
    if isinstance(model, Step):  # a training step takes gradients itself
        return pytree.tree_map_only(Tensor, Tensor.detach, opened(model.function(*inputs)))
    with torch.no_grad():
        return model(*inputs)


def ordinary_loop(model: nn.Module | Step, device: torch.device) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """Return by `ORDINARY` the ordinary loop of a training step on a device, or the reason why there is none; of a
    model, neither.

    Examples:
        >>> ordinary_loop(Step("double", lambda x: x + x, (torch.ones(2),)), torch.device("cpu"))
        ({}, {'ordinary loop': 'left out: the step is a function, whose loop is not known'})
    """
    if not isinstance(model, Step) or (model.ordinary is None and model.function.__module__ == Step.__module__):
        return {}, {}
    if model.ordinary is None:
        return {}, {ORDINARY: "left out: the step is a function, whose loop is not known"}
    try:
        loop = model.ordinary(device)
        batch = pytree.tree_map_only(Tensor, lambda value: value.detach().to(device), model.inputs[1:])
        loop(*batch)
    except Exception as error:  # any exception of the user's model
        return {}, {ORDINARY: first_line(error)}
    return {ORDINARY: lambda: loop(*batch)}, {}


def whole_run(
    model: nn.Module | Step, variant: Variant, inputs: Sequence[Any], program: Program | None = None,
    exported: Exported | None = None,
) -> Function:  # fmt: skip
    """Return a function that runs a variant, called as the model or step is; a first call with `inputs` compiles it.

    Args:
        program: of a step, as captured, which is compiled in place of its function.
        exported: the model for engines, which share it; exported anew if None.

    Raises:
        Exception: any exception of a compiler.

    Examples:
        >>> run = whole_run(nn.ReLU(), Variant("pytorch", threads=1), ())
        >>> run(torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])
    """
    if variant.kind == PYTORCH:
        return on_threads(lambda *values: as_written(model, values), variant.threads)
    from torch._inductor import config

    threads = variant.threads or torch.get_num_threads()
    if isinstance(model, Step):
        assert program is not None, "a step is compiled as captured"
        module = torch.compile(as_module(program), options={"cpp.threads": threads}, dynamic=False)
        run = on_threads(without_gradients(compiled_step(program, inputs, module)), threads)
        with compiled_by_threads():
            run(*inputs)
        return run
    if variant.kind in PACKAGES:
        return (exported or Exported(model, inputs)).run(variant.kind, threads)
    if variant.kind == AHEAD:
        library = with_strides_of(inputs, _ahead_of_time(model, inputs, threads))
        return on_threads(without_gradients(library), threads)
    is_frozen = variant.kind == FROZEN
    options: dict[str, Any] = {"cpp.threads": threads}
    options |= {"freezing": True} if is_frozen else {}
    # Dynamo compares options when it looks for compiled code of the same model, and reads the global setting for
    # whether weights are constants.
    function: Function = torch.compile(_with_own_code(model), options=options, dynamic=False)
    run = on_threads(without_gradients(with_strides_of(inputs, function)), threads)
    with config.patch(freezing=is_frozen), all_compiled_kept(), compiled_by_threads():
        run(*inputs)
    return run


@contextmanager
def compiled_by_threads() -> Iterator[None]:
    """Let Inductor run as many C++ compilers as this process has cores, without a pool of processes. Jobs that still
    wait at the end, as after Ctrl-C, are dropped."""
    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile

    count = len(usable_cores())
    threads = ThreadPoolExecutor(count)
    pool = patch.object(AsyncCompile, "pool", staticmethod(lambda: threads))
    no_processes = patch.object(AsyncCompile, "use_process_pool", classmethod(lambda cls: False))
    try:
        with config.patch(compile_threads=count), pool, no_processes:
            yield
    finally:
        threads.shutdown(cancel_futures=True)


@contextmanager
def all_compiled_kept() -> Iterator[None]:
    """Make Dynamo keep the code of all variants and shapes, where its default is eight. Its own `config.patch` is
    slower."""
    config = torch._dynamo.config
    before, config.recompile_limit = config.recompile_limit, MOST_COMPILED
    try:
        yield
    finally:
        config.recompile_limit = before


def _with_own_code(model: nn.Module) -> Function:
    """Return a function that calls a model, with a code object of its own, for which Dynamo keeps what it compiled."""

    def call(*inputs: Any) -> Any:
        return model(*inputs)

    return FunctionType(call.__code__.replace(), call.__globals__, closure=call.__closure__)


def compiled_step(program: Program, inputs: Sequence[Any], module: Function) -> Function:
    """Return a function of a step's nested inputs that runs `module`, its captured program compiled, which takes flat
    inputs and returns flat outputs."""
    read, strides = Guard(None, inputs, weights=False).leaves, [value.stride() for value in program.inputs]

    def run(*values: Any) -> Any:
        tensors = list(read(values))
        for number, (value, stride) in enumerate(zip(tensors, strides, strict=True)):
            if value.requires_grad or value.stride() != stride:  # rarely, as each costs microseconds
                tensors[number] = laid_out(value.detach(), program.inputs[number])
        return program.unflatten(list(module(*tensors)))

    return run


def _ahead_of_time(model: nn.Module, inputs: Sequence[Any], threads: int) -> Function:
    """Compile a model by AOTInductor and load the library, from a directory that is removed afterwards."""
    from torch import _inductor as inductor

    options = {"cpp.threads": threads, "compile_threads": 1, "freezing": True}
    with torch.no_grad(), tempfile.TemporaryDirectory() as directory:
        package = inductor.aoti_compile_and_package(
            export(model, inputs), package_path=str(Path(directory) / "model.pt2"), inductor_configs=options
        )
        library: Function = inductor.aoti_load_package(package)
        library(*inputs)
    return library


def without_gradients(function: Function) -> Function:
    """Return the function under `torch.no_grad`."""

    def run(*inputs: Any) -> Any:
        with torch.no_grad():
            return function(*inputs)

    return run


def on_threads(function: Function, threads: int | None) -> Function:
    """Return the function with this number of threads, restored after each call; None = as many as there are."""
    if threads is None:
        return function

    def run(*inputs: Any) -> Any:
        before = torch.get_num_threads()
        if before != threads:
            torch.set_num_threads(threads)
        try:
            return function(*inputs)
        finally:
            if before != threads:
                torch.set_num_threads(before)

    return run


def with_strides_of(example: Sequence[Any], function: Function) -> Function:
    """Return the function for inputs of any strides, copied to those of the example: code compiled ahead of time would
    read wrong values."""
    leaves, spec = pytree.tree_flatten(tuple(example))
    is_flat = all(isinstance(each, Tensor) for each in example)

    def run(*inputs: Any) -> Any:
        if is_flat:
            return function(*map(laid_out, inputs, leaves))
        pairs = zip(spec.flatten_up_to(inputs), leaves, strict=True)
        return function(
            *spec.unflatten(laid_out(value, like) if isinstance(like, Tensor) else value for value, like in pairs)
        )

    return run
