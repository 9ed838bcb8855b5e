"""`torch.compile(model, backend="gst")`: each graph that Dynamo captures runs in the fastest way that was measured.

PyTorch finds the backend by name once gst is installed (entry point group `torch_dynamo_backends`); gst need not be
imported. Dynamo guards shapes, dtypes and modes, and asks for another graph where they change. The first call of a
graph decides, on copies of its inputs, so that nothing is trained or renewed meanwhile:

- Inference (no gradient is wanted, shapes are fixed, nothing is renewed, nothing is drawn) is placed by `gst.place`, on
  the cores alone if the graph computes in the host's memory, on its accelerator and the cores if it computes there, and
  only if its outputs lie where the graph as written leaves them.
- Everything else runs as written or by Inductor, forward and backward pass, whichever is faster beyond noise.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import is_
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from gst.execution.compiling import compiled_by_threads
from gst.execution.measure import measure
from gst.execution.plain import COMPILED, PYTORCH, rested
from gst.placement.api.headroom import SHARE
from gst.placement.api.own_devices import own_devices
from gst.placement.api.placed import place
from gst.programs import outputs_differ
from gst.util.random_numbers import seeded
from gst.whole_model.choosing import LOOKS, Candidates, GuardedRun, confirmed
from gst.whole_model.guards import Guard
from gst.whole_model.whole import Bound

SECONDS = 60.0  # that a graph is placed for, unless the options say otherwise
SEEDS = (0, 1)  # of the random numbers of two trials: a graph that draws none returns the same
Function = Callable[..., Any]
log = logging.getLogger("gst")


def backend(graph: fx.GraphModule, example_inputs: Sequence[Any], options: Mapping[str, Any] | None = None) -> Function:
    """What Dynamo calls for each graph; see the module.

        fast = torch.compile(model, backend="gst", options={"seconds": 30})

    Args:
        graph: of flat inputs (tensors; sizes, where shapes are dynamic), returns a tuple.
        example_inputs: which the graph is compiled for.
        options: `seconds`, about as long as the first call may look for the fastest way (default: 60).

    Returns:
        A function of the flat inputs. The same seed gives the same random numbers as the graph as written draws.

    Raises:
        ValueError: there is no such option, or seconds is not above 0.

    Examples:
        >>> graph = fx.symbolic_trace(torch.nn.ReLU())
        >>> backend(graph, [torch.ones(2)], options={"minutes": 1})
        Traceback (most recent call last):
        ValueError: backend 'gst' has no option 'minutes'; there is 'seconds'
    """
    options = dict(options or {})
    seconds = float(options.pop("seconds", SECONDS))
    if options:
        raise ValueError(f"backend 'gst' has no option {min(options)!r}; there is 'seconds'")
    if not seconds > 0:
        raise ValueError(f"seconds is {seconds:g}; want more than 0")
    learns = torch.is_grad_enabled() and any(isinstance(each, Tensor) and each.requires_grad for each in example_inputs)
    if learns or any(map(_is_dynamic, example_inputs)):
        return _Chosen(graph, [], seconds, _by_inductor(graph, example_inputs))
    is_weight = [_is_of_module(node) for node in graph.graph.find_nodes(op="placeholder")]
    return _Chosen(graph, is_weight, seconds)


class _Chosen:
    """A graph that decides with its first call in which way it runs.

    Args:
        graph: as written.
        is_weight: of each input, whether it is a parameter or a buffer of a module; empty if the graph may not be
            placed as inference.
        seconds: see `backend`.
        compiled: the graph by Inductor, or why there is none; made with the first call if None.
    """

    def __init__(
        self, graph: fx.GraphModule, is_weight: Sequence[bool], seconds: float, compiled: Function | str | None = None
    ) -> None:
        self._graph, self._is_weight, self._seconds, self._compiled = graph, is_weight, seconds, compiled
        self._run: Function | None = None
        self._turn = threading.Lock()

    def __call__(self, *inputs: Any) -> Any:
        if self._run is None:
            with self._turn:
                if self._run is None:
                    try:
                        self._run = self._chosen(inputs)
                    except Exception as error:  # whatever the graph, what is compiled or a backward pass raises
                        log.info("a graph runs as written: %s: %s", type(error).__name__, error)
                        self._run = self._graph
        return self._run(*inputs)

    def _chosen(self, inputs: Sequence[Any]) -> Function:
        want = outcome(self._graph, inputs, SEEDS[0])
        if self._is_weight and _is_pure(self._graph, inputs, want):
            try:
                return _inference(self._graph, self._is_weight, inputs, want[: -len(inputs)], self._seconds)
            except Exception as error:  # whatever capture, a compiler or a plan raises
                log.info("a graph cannot be placed: %s: %s", type(error).__name__, error)
        if self._compiled is None:
            self._compiled = _by_inductor(self._graph, inputs)
        if isinstance(self._compiled, str):
            log.info("a graph runs as written: %s", self._compiled)
            return self._graph
        if reason := outputs_differ(outcome(self._compiled, inputs, SEEDS[0]), want):
            log.info("a graph runs as written: compiled it gives other results: %s", reason)
            return self._graph
        return _faster(self._graph, self._compiled, inputs, self._seconds)


def outcome(run: Function, inputs: Sequence[Any], seed: int) -> list[Any]:
    """All that a call leaves behind: outputs, gradients of what requires one, and new values of the inputs; on copies
    of the inputs, with random numbers from a seed. The generator of the process stays as it was.

    Examples:
        >>> outcome(lambda x: (x * x,), [torch.tensor([3.0])], seed=0)
        [tensor([9.]), tensor([3.])]
    """
    copies = [_copy(each) for each in inputs]
    with seeded(seed, _accelerators(inputs)):
        given = _results(inputs, copies)
        return [*_both_passes(run, given, copies), *given]


def _results(inputs: Sequence[Any], copies: Sequence[Any]) -> list[Any]:
    """The copies, but for inputs that operations made: of those a result again, which may be written in place."""
    return [
        torch.empty_strided(copy.shape, copy.stride(), dtype=copy.dtype, device=copy.device).copy_(copy)
        if isinstance(each, Tensor) and not each.is_leaf and 0 not in each.stride() else copy
        for each, copy in zip(inputs, copies, strict=True)
    ]  # fmt: skip


def _both_passes(run: Function, inputs: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
    """Flat outputs and, where they have some, gradients of the leaves from which the inputs come."""
    outputs = pytree.tree_leaves(run(*inputs))
    tops = [each for each in outputs if isinstance(each, Tensor) and each.requires_grad]
    leaves = [each for each in leaves if isinstance(each, Tensor) and each.requires_grad]
    if not tops or not leaves:
        return outputs
    slopes = [torch.linspace(-1, 1, each.numel()).reshape(each.shape).to(each) for each in tops]
    return [*outputs, *torch.autograd.grad(tops, leaves, slopes, allow_unused=True)]


def _copy(value: Any) -> Any:
    """A leaf of the same layout, for tensors."""
    if not isinstance(value, Tensor) or 0 in value.stride():
        return value
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return copy.copy_(value.detach()).requires_grad_(value.requires_grad)


def _is_pure(graph: Function, inputs: Sequence[Any], want: Sequence[Any]) -> bool:
    """Whether it draws no random numbers and leaves its inputs as they are."""
    return outputs_differ(outcome(graph, inputs, SEEDS[1]), want) is None and all(
        not isinstance(old, Tensor) or torch.equal(new, old)
        for new, old in zip(want[len(want) - len(inputs) :], inputs, strict=True)
    )


def _is_dynamic(value: Any) -> bool:
    if isinstance(value, Tensor):
        return any(isinstance(size, torch.SymInt) for size in value.shape)
    return True  # a size, or another number that changes


def _is_of_module(node: fx.Node) -> bool:
    """Whether Dynamo found an input in the parameters or buffers of a module."""
    source = getattr(node, "_dynamo_source", None)
    while source is not None:
        if type(source).__name__ == "UnspecializedParamBufferSource":
            return True
        source = getattr(source, "base", None)
    return False


# The ways ------------------------------------------------------------------------------------------------------------


def _by_inductor(graph: fx.GraphModule, inputs: Sequence[Any]) -> Function | str:
    """As `backend="inductor"` makes it, but with the random numbers of eager PyTorch; or why it could not."""
    from torch._inductor.compile_fx import compile_fx

    own = fx.GraphModule(graph, _copied(graph.graph))
    try:
        with compiled_by_threads():
            run: Any = compile_fx(own, list(inputs), config_patches={"fallback_random": True})
    except Exception as error:  # whatever a compiler raises
        return f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no message'])[0][:200]}"
    return cast(Function, run)


def _copied(graph: fx.Graph) -> fx.Graph:
    """A graph that a compiler may change."""
    copy = fx.Graph()
    copy.output(copy.graph_copy(graph, {}))
    return copy


def _inference(
    graph: fx.GraphModule, is_weight: Sequence[bool], inputs: Sequence[Any], outputs: Sequence[Any], seconds: float
) -> Function:
    """A graph placed by `gst.place`, with the weights that it is given now; the graph as written for others.

    Args:
        outputs: of the graph as written.

    Raises:
        ValueError: its tensors lie on several devices, or the outputs of the fastest way lie elsewhere than those.
    """
    bound = Bound(graph, is_weight, inputs).eval()
    weights = [value for value, is_bound in zip(inputs, is_weight, strict=True) if is_bound]
    rest = [_copy(value) for value, is_bound in zip(inputs, is_weight, strict=True) if not is_bound]
    placed = place(bound, rest, devices=_devices(inputs), seconds=seconds)
    log.info("a graph of %d operations runs by %s", len(graph.graph.nodes), placed.explain())
    fast = placed.module()
    places, there = (_places(pytree.tree_leaves(each)) for each in (outputs, fast(*rest)))
    if places != there:
        raise ValueError(f"{placed.winner} leaves outputs on {_words(there)}, the graph as written on {_words(places)}")

    def run(*given: Any) -> Any:
        if not all(map(is_, (value for value, each in zip(given, is_weight, strict=True) if each), weights)):
            return graph(*given)
        return fast(*(value for value, each in zip(given, is_weight, strict=True) if not each))

    return run


def _devices(inputs: Sequence[Any]) -> list[str]:
    """Names of the devices for a graph whose tensors lie on one device: cores and their sets, and that accelerator.

    Raises:
        ValueError: they lie on several.
    """
    places = {each.device for each in inputs if isinstance(each, Tensor)}
    if len(places) > 1:
        raise ValueError(f"its tensors lie on {_words(sorted(map(str, places)))}")
    return [each.name for each in own_devices(inputs) if not each.is_accelerator or each.torch_device in places]


def _places(values: Sequence[Any]) -> list[str]:
    return [str(each.device) for each in values if isinstance(each, Tensor)]


def _words(places: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(places)) or "no device"


def _accelerators(inputs: Sequence[Any]) -> set[torch.device]:
    return {each.device for each in inputs if isinstance(each, Tensor) and each.device.type != "cpu"}


def _passes_of(run: Function, inputs: Sequence[Any], copies: Sequence[Any]) -> list[Any]:
    return _both_passes(run, _results(inputs, copies), copies)


def _faster(graph: Function, compiled: Function, inputs: Sequence[Any], seconds: float) -> Function:
    """As written or compiled, by two sets of runs in turns on copies of the inputs."""
    copies = [_copy(each) for each in inputs]
    no_inputs = Guard(None, (), weights=False)
    with seeded(SEEDS[0], _accelerators(inputs)):
        both = {PYTORCH: graph, COMPILED: compiled}
        calls = {name: partial(_passes_of, run, inputs, copies) for name, run in both.items()}
        first = measure(calls, LOOKS, 1, time_of=rested)
        runs = {name: GuardedRun(call, no_inputs, call) for name, call in calls.items()}
        looks = {name: min(each.samples_ms, default=float("inf")) for name, each in first.items()}
        result = confirmed(Candidates(runs, {}, looks), (), SHARE * seconds)
    log.info("a graph runs %s: %s ms as written, %s compiled", result["winner"], *(
        result[f"{name}_ms"] for name in (PYTORCH, COMPILED)
    ))  # fmt: skip
    return compiled if result["winner"] == COMPILED else graph
