"""A model run whole, without a plan: as written, by `torch.compile`, or frozen; on some cores; in some memory layout.

Frozen means that weights are constants of the compiled code (`torch._inductor.config.freezing`): batch normalisations
are folded into convolutions, and weights are packed once instead of in every call, for oneDNN where its products are
faster here than MKL's. That is for inference alone. Ahead of time (AOTInductor) the same code runs without Dynamo's
guards, which small models gain from.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gst.execution.compiling import compiled_by_threads
from gst.execution.measure import measure
from gst.execution.plain import COMPILED, PYTORCH
from gst.lowering.calls import is_expanded, laid_out, unexpanded
from gst.programs import Step, differ_beyond_rounding, outputs_differ

FROZEN, AHEAD = "frozen", "ahead of time"
ONE_GRAPH = "one graph"  # as written, recorded once on an accelerator
MODES = ("reduce-overhead", "max-autotune")  # of `torch.compile`, beside the default
MOST_KEPT = 128  # pieces of compiled code of one model
PRODUCTS, FASTER = 15, 0.9  # runs of a product by each library; of the time of MKL's that oneDNN's may take
Function = Callable[..., Any]


class Bound(nn.Module):
    """A function of flat inputs of which some are bound as parameters and buffers; it is called with the others.

    Args:
        function: of all inputs, a module.
        is_weight: of each input, whether it is bound.
        inputs: all of them; of those that are bound, `nn.Parameter`s become parameters and other tensors buffers.
    """

    def __init__(self, function: nn.Module, is_weight: Sequence[bool], inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.function, self.is_weight = function, tuple(is_weight)
        for number, (value, bound) in enumerate(zip(inputs, is_weight, strict=True)):
            if bound and isinstance(value, nn.Parameter):
                self.register_parameter(f"weight_{number}", value)
            elif bound:
                self.register_buffer(f"weight_{number}", value)

    def forward(self, *inputs: Tensor) -> Any:
        rest = iter(inputs)
        return self.function(
            *(getattr(self, f"weight_{number}") if bound else next(rest) for number, bound in enumerate(self.is_weight))
        )


@runtime_checkable
class OnAccelerator(Protocol):
    """What runs a model on an accelerator, called with inputs that lie anywhere. As plans are, it is timed in calls
    with the example inputs in the accelerator's memory."""

    def __call__(self, *inputs: Any) -> Any: ...

    def examples(self) -> Inputs:
        """The example inputs there."""


class Inputs:
    """Inputs of a call, which lie on a device as long as somebody holds this."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = tuple(values)


class Way(NamedTuple):
    """How a whole model runs.

    Args:
        kind: 'pytorch' (as written), 'compiled', 'frozen' or 'ahead of time'; on an accelerator 'one graph', too.
        threads: that PyTorch has while it runs; None = as many as it has.
        channels_last: images are given with their channels innermost.
        autotune: `max_autotune`, the compiler measures several kernels for each matrix product.
        mode: of `torch.compile`, on an accelerator; the default if empty.
    """

    kind: str
    threads: int | None = None
    channels_last: bool = False
    autotune: bool = False
    mode: str = ""

    @property
    def compiles(self) -> bool:
        """Whether anything is compiled."""
        return self.kind not in (PYTORCH, ONE_GRAPH)

    @property
    def measures_kernels(self) -> bool:
        """Whether the compiler measures kernels, for minutes."""
        return self.autotune or self.mode == "max-autotune"

    @property
    def holds_weights(self) -> bool:
        """Whether weights are constants of it."""
        return self.kind in (FROZEN, AHEAD)

    @property
    def name(self) -> str:
        """What results call it.

        Examples:
            >>> Way("frozen", 1, channels_last=True).name, Way("compiled", mode="reduce-overhead").name
            ('frozen, channels last, 1 thread', 'compiled, reduce-overhead')
        """
        parts = [
            self.kind,
            *[self.mode] * bool(self.mode),
            *["max autotune"] * self.autotune,
            *["channels last"] * self.channels_last,
        ]
        if self.threads is not None:
            parts.append(f"{self.threads} thread{'s' * (self.threads != 1)}")
        return ", ".join(parts)

    @staticmethod
    def named(name: str) -> Way:
        """The way that results call so.

        Raises:
            ValueError: there is no such way.

        Examples:
            >>> Way.named("frozen, channels last, 1 thread") == Way("frozen", 1, channels_last=True)
            True
        """
        parts = name.split(", ")
        counts = [int(each.split()[0]) for each in parts if re.fullmatch(r"[1-9][0-9]{0,4} threads?", each)]
        threads = counts[0] if counts else None
        mode = next((each for each in MODES if each in parts), "")
        flags = {"channels_last": "channels last" in parts, "autotune": "max autotune" in parts}
        way = Way(parts[0], threads, mode=mode, **flags)
        if way.name != name or way.kind not in (PYTORCH, COMPILED, FROZEN, AHEAD, ONE_GRAPH):
            raise ValueError(f"there is no way {name[:80]!r} to run a model")
        return way


def ways(model: nn.Module, inputs: Sequence[Any], cores: int) -> list[Way]:
    """The ways in which a model may be run, the simplest first of those that compare.

    Args:
        model: in the mode in which it is to run.
        inputs: what it is called with.
        cores: of the devices that it may use.

    Examples:
        >>> model = nn.Linear(2, 2).requires_grad_(False).eval()
        >>> [way.name for way in ways(model, (torch.ones(1, 2),), cores=torch.get_num_threads())][:3]
        ['pytorch', 'compiled', 'frozen']
    """
    default = torch.get_num_threads()
    counts = [count for count in dict.fromkeys((cores, 1)) if count != default]
    kinds = [Way(PYTORCH), Way(COMPILED)]
    if may_freeze(model):
        kinds.append(Way(FROZEN))
        if any(isinstance(each, Tensor) and each.dim() == 4 for each in pytree.tree_leaves(list(inputs))):
            kinds.append(Way(FROZEN, channels_last=True))
        kinds += [Way(FROZEN, autotune=True), Way(AHEAD)]
    again = [way for way in kinds if not way.autotune and way.kind != AHEAD]
    return kinds + [way._replace(threads=count) for count in counts for way in again]


def may_freeze(model: nn.Module) -> bool:
    """Whether the weights of a model may become constants: it is in evaluation mode and none requires a gradient."""
    tensors = [*model.parameters(), *model.buffers()]
    return not (
        any(module.training for module in model.modules())
        or any(each.requires_grad or each.is_inference() for each in tensors)
        or not tensors
    )


def as_written(model: nn.Module | Step, inputs: Sequence[Any]) -> Any:
    """What a model or a step returns for inputs, without gradients."""
    if isinstance(model, Step):  # a training step takes gradients itself
        return pytree.tree_map_only(Tensor, Tensor.detach, model.function(*inputs))
    with torch.no_grad():
        return model(*inputs)


def whole_run(model: nn.Module, way: Way, inputs: Sequence[Any]) -> Function:
    """What runs a model that way, called as the model is, without gradients; compiled by a first call with `inputs`.

    Raises:
        Exception: whatever a compiler raises.

    Examples:
        >>> run = whole_run(nn.ReLU(), Way("pytorch", threads=1), ())
        >>> run(torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])
    """
    if way.kind == PYTORCH:
        return on_threads(without_gradients(model), way.threads)
    from torch import _dynamo as dynamo
    from torch._inductor import config

    threads = way.threads or torch.get_num_threads()
    if way.kind == AHEAD:
        library = with_strides_of(inputs, _ahead_of_time(model, inputs, threads))
        return on_threads(without_gradients(library), threads)
    options: dict[str, Any] = {"cpp.threads": threads}
    if way.kind == FROZEN:
        options["freezing"] = True
    if way.autotune:
        options["max_autotune"] = True
    # Dynamo compares options when it looks for compiled code of the same model, and asks the global setting whether
    # weights are constants.
    function: Function = torch.compile(model, options=options, dynamic=False)
    function = _with_channels_last(function) if way.channels_last else with_strides_of(inputs, function)
    run = on_threads(without_gradients(function), threads)
    packed = packed_by_onednn() if way.kind == FROZEN and onednn_is_faster() else nullcontext()
    # Every way of every shape is kept, where Dynamo would give up after eight.
    settings, limit = config.patch(freezing=way.kind == FROZEN), dynamo.config.patch(recompile_limit=MOST_KEPT)
    with settings, limit, packed, compiled_by_threads():
        run(*inputs)
    return run


@lru_cache(maxsize=1)
def onednn_is_faster() -> bool:
    """Whether oneDNN multiplies matrices faster on this processor than MKL does, for which Inductor packs weights of 32
    bits; MKL uses less of processors of other makers. Measured once, on a product of a language model."""
    x, weight = torch.ones(128, 768), torch.ones(1536, 768)
    try:
        from torch._inductor.fx_passes.mkldnn_fusion import _mkldnn_fusion_init  # noqa: F401  (for `packed_by_onednn`)

        packed = torch.ops.mkldnn._reorder_linear_weight(weight, len(x))
        by_onednn = partial(torch.ops.mkldnn._linear_pointwise, x, packed, None, "none", [], "")
        by_mkl = partial(nn.functional.linear, x, weight)
        with torch.no_grad():
            measured = measure({"onednn": by_onednn, "mkl": by_mkl}, PRODUCTS)
        return measured["onednn"].median_ms < FASTER * measured["mkl"].median_ms
    except (AttributeError, ImportError, RuntimeError):  # this build of PyTorch has one of them alone
        return False


@contextmanager
def packed_by_onednn() -> Iterator[None]:
    """Within it Inductor packs the weights of products for oneDNN, as it does ahead of time and on Arm."""
    from torch._inductor.fx_passes import mkldnn_fusion

    mkldnn_fusion._mkldnn_fusion_init()  # asks what is patched whether this is Arm, once
    with patch.object(torch.ops.mkldnn, "_is_mkldnn_acl_supported", lambda: True):
        yield


def _ahead_of_time(model: nn.Module, inputs: Sequence[Any], threads: int) -> Function:
    """A library that AOTInductor makes of a model; what it needs lies in a directory that ends with the process."""
    from torch import _inductor as inductor

    options = {"cpp.threads": threads, "compile_threads": 1, "freezing": True}
    with torch.no_grad(), tempfile.TemporaryDirectory() as directory:
        exported = torch.export.export(model, tuple(inputs))
        package = inductor.aoti_compile_and_package(
            exported, package_path=str(Path(directory) / "model.pt2"), inductor_configs=options
        )
        library: Function = inductor.aoti_load_package(package)
        library(*inputs)
    return library


def without_gradients(function: Function) -> Function:
    """The same under `torch.no_grad`."""

    def run(*inputs: Any) -> Any:
        with torch.no_grad():
            return function(*inputs)

    return run


def on_threads(function: Function, threads: int | None) -> Function:
    """The same with a number of threads, which others have back afterwards; None = as many as there are."""
    if threads is None:
        return function

    def run(*inputs: Any) -> Any:
        before = torch.get_num_threads()
        if before == threads:
            return function(*inputs)
        torch.set_num_threads(threads)
        try:
            return function(*inputs)
        finally:
            torch.set_num_threads(before)

    return run


def with_strides_of(example: Sequence[Any], function: Function) -> Function:
    """The same for inputs of other strides, which are copied. What is compiled ahead of time takes the strides of the
    example for granted and would read something else; other code would be compiled anew."""
    leaves, spec = pytree.tree_flatten(tuple(example))
    is_flat = all(isinstance(each, Tensor) for each in example)

    def run(*inputs: Any) -> Any:
        if is_flat:
            return function(*map(laid_out, inputs, leaves))
        given = zip(spec.flatten_up_to(inputs), leaves, strict=True)
        return function(
            *spec.unflatten(laid_out(got, like) if isinstance(like, Tensor) else got for got, like in given)
        )

    return run


def _with_channels_last(function: Function) -> Function:
    def run(*inputs: Any) -> Any:
        return function(*pytree.tree_map_only(Tensor, _channels_last, inputs))

    return run


def _channels_last(value: Tensor) -> Tensor:
    return value.contiguous(memory_format=torch.channels_last) if value.dim() == 4 else value


def fresh_inputs(inputs: Sequence[Any], seed: int) -> tuple[Any, ...]:
    """Other inputs of the same shapes, dtypes and strides: numbers of the same mean and deviation (infinite ones, as of
    masks, stay); integers and truth values in another order, so that they stay in their range.

    Examples:
        >>> fresh_inputs([torch.arange(4)], seed=0)[0].sort().values
        tensor([0, 1, 2, 3])
    """
    generator = torch.Generator().manual_seed(seed)

    def fresh(value: Tensor) -> Tensor:
        if is_expanded(value):
            once = unexpanded(value.detach())
            return fresh(once).expand(value.shape).requires_grad_(value.requires_grad)
        new = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        if value.is_floating_point():
            numbers = value.detach().double()
            finite = numbers[numbers.isfinite()]
            spread = float(finite.std()) if finite.numel() > 1 else 0.0
            normal = torch.randn(value.shape, generator=generator, dtype=torch.float64)
            if finite.numel():
                fresh_numbers = float(finite.mean()) + (spread or 1.0) * normal
                new.copy_(torch.where(numbers.isfinite(), fresh_numbers.to(numbers.device), numbers))
            else:
                new.copy_(value.detach())
            return new.requires_grad_(value.requires_grad)
        order = torch.randperm(value.numel(), generator=generator)
        return new.copy_(value.flatten()[order].reshape(value.shape))

    return tuple(pytree.tree_map_only(Tensor, fresh, list(inputs)))


def difference(run: Function, model: Function, inputs: Sequence[Any], seed: int) -> str | None:
    """What differs first between two functions on fresh random inputs; None if their outputs agree.

    Examples:
        >>> difference(torch.sin, torch.cos, [torch.ones(3)], seed=0) is None
        False
    """
    given = fresh_inputs(inputs, seed)
    with torch.no_grad():
        want = pytree.tree_leaves(model(*given))
        return differ_beyond_rounding(pytree.tree_leaves(run(*given)), want, lambda moved: model(*moved), given)


def repeats(model: nn.Module, inputs: Sequence[Any]) -> bool:
    """Whether a model returns the same twice and leaves its weights and its inputs as they are.

    Examples:
        >>> repeats(nn.Dropout(), (torch.ones(99),)), repeats(nn.Dropout().eval(), (torch.ones(99),))
        (False, True)

    Raises:
        ValueError: it does not run on these inputs.
    """
    tensors = [*model.parameters(), *model.buffers()]
    tensors += [each for each in pytree.tree_leaves(list(inputs)) if isinstance(each, Tensor)]
    versions = [each for each in tensors if not each.is_inference()]  # others have none
    before = [each._version for each in versions]
    with torch.no_grad():
        try:
            first, second = (pytree.tree_leaves(model(*inputs)) for _ in range(2))
        except Exception as error:
            raise ValueError(f"the model refuses these inputs: {error}") from error
    return outputs_differ(first, second) is None and [each._version for each in versions] == before
