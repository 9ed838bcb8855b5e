"""`torch.compile(model, backend="gst")`: each graph that Dynamo captures runs by the fastest variant or plan.

The first call of a graph chooses, on copies of its inputs. Inference (no gradients, changed inputs, random numbers or
dynamic shapes) is placed by `gst.place`; everything else runs as written or by Inductor, whichever is faster. PyTorch
finds it by an entry point (`torch_dynamo_backends`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import is_
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from gst.execution.measure import measure, rested
from gst.placement.api import trials
from gst.placement.api.place import own_devices, place
from gst.placement.api.trials import Differentiable
from gst.placement.measured import SHARE
from gst.util.random_numbers import seeded
from gst.util.untrusted import first_line
from gst.whole_model.choosing import LOOKS, Candidates, GuardedRun, confirmed
from gst.whole_model.comparing import Guard
from gst.whole_model.variants import COMPILED, PYTORCH, Bound, compiled_by_threads

SECONDS = 60.0  # default time limit of placing a graph
SEED = 0  # of the random numbers of trials
WORDS = {PYTORCH: "as written", COMPILED: "compiled"}
INPUTS = (Tensor, int, float, torch.SymInt, torch.SymFloat, torch.SymBool)
Function = Callable[..., Any]
log = logging.getLogger("gst")


def backend(graph: fx.GraphModule, example_inputs: Sequence[Any], options: Mapping[str, Any] | None = None) -> Function:
    """Return the function that runs a graph of Dynamo; see the module.

        fast = torch.compile(model, backend="gst", options={"seconds": 30})

    Args:
        graph: of flat inputs (tensors; sizes, where shapes are dynamic), returns a tuple.
        example_inputs: of the graph.
        options: `seconds`, the time limit, about, of the choice in the first call (default: 60).

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
    if other := [type(each).__name__ for each in example_inputs if not isinstance(each, INPUTS)]:
        log.info("a graph runs as written: an input is a %s", other[0])
        return trials.with_checkpoints(graph)
    try:
        own, held = trials.lifted(graph)
    except ValueError as error:
        log.info("a graph runs as written: %s", error)
        return trials.with_checkpoints(graph)
    values = [*example_inputs, *held]
    learns = torch.is_grad_enabled() and any(isinstance(each, Tensor) and each.requires_grad for each in values)
    if learns or any(map(_is_dynamic, values)):
        chosen = _Chosen(own, [], seconds, _by_inductor(own, values))
    else:
        is_weight = [_is_of_module(node) for node in graph.graph.find_nodes(op="placeholder")]
        chosen = _Chosen(own, is_weight + [True] * len(held), seconds)
    return chosen if not held else lambda *inputs: chosen(*inputs, *held)


class _Chosen:
    """A graph whose first call chooses how it runs; without `is_weight` (True for each weight) never as inference.
    `compiled` is the graph by Inductor, or the reason if there is none; None = not made yet.

    Calls of other threads during the choice, and calls under the user's hooks for saved tensors (`torch.utils.
    checkpoint` has some) or dispatch modes, run as written: a pass and its repetition then save the same tensors.
    """

    def __init__(
        self, graph: fx.GraphModule, is_weight: Sequence[bool], seconds: float, compiled: Function | str | None = None
    ) -> None:
        self._own, self._graph = graph, trials.with_checkpoints(graph)
        self._is_weight, self._seconds, self._compiled = is_weight, seconds, compiled
        self._run: Function | None = None
        self._turn = threading.Lock()

    def __call__(self, *inputs: Any) -> Any:
        if trials.is_watched():
            return self._graph(*inputs)
        if self._run is None and self._turn.acquire(blocking=False):  # nothing waits: a pass may call the graph again
            try:
                self._run = self._run or self._chosen(inputs)
            except Exception as error:  # any exception of the graph, compiled code or a backward pass
                log.info("a graph runs as written: %s: %s", type(error).__name__, error)
                self._run = self._graph
            finally:
                self._turn.release()
        return (self._run or self._graph)(*inputs)

    def _chosen(self, inputs: Sequence[Any]) -> Function:
        want = trials.outcome(self._graph, inputs, SEED)
        if self._is_weight and not want.mutated and not want.draws:
            try:
                return _inference(self._graph, self._is_weight, inputs, want, self._seconds)
            except Exception as error:  # any exception of capture, a compiler or a plan
                log.info("a graph cannot be placed: %s: %s", type(error).__name__, error)
        if self._compiled is None:
            self._compiled = _by_inductor(self._own, inputs)
        if reason := "autograd follows its writes to inputs" if want.writes_learned else "":
            self._compiled = reason
        if isinstance(self._compiled, str):
            log.info("a graph runs as written: %s", self._compiled)
            return self._graph
        run = self._compiled  # with the derivatives of the graph as written
        if want.reached:
            run = Differentiable(self._graph, run, want, want.draws)
        if wrong := trials.outcome(run, inputs, SEED).difference(want):
            log.info("a graph runs as written: compiled it gives other results: %s", wrong)
            return self._graph
        best = _fastest({PYTORCH: self._graph, COMPILED: run}, inputs, self._seconds, bool(want.mutated))
        return best if best is self._graph or not want.mutated else _for_overlaps(self._graph, best, inputs)


def _is_dynamic(value: Any) -> bool:
    if isinstance(value, Tensor):
        return any(isinstance(size, torch.SymInt) for size in value.shape)
    return True  # a size, or another number that changes


def _is_of_module(node: fx.Node) -> bool:
    """True if an input is a parameter or a buffer of a module, by Dynamo's record."""
    source = getattr(node, "_dynamo_source", None)
    while source is not None:
        if type(source).__name__ == "UnspecializedParamBufferSource":
            return True
        source = getattr(source, "base", None)
    return False


def _by_inductor(graph: fx.GraphModule, inputs: Sequence[Any]) -> Function | str:
    """Compile as `backend="inductor"`, with the random numbers of eager PyTorch; the reason if it fails."""
    from torch._functorch._aot_autograd import graph_compile
    from torch._inductor.compile_fx import compile_fx

    own = fx.GraphModule(graph, trials.copied(graph.graph))
    # Code for one backward pass alone would write into tensors that the next one reads. The setting `donated_buffer`
    # would have to be off in each backward pass, too.
    none_donated: Any = patch.object(graph_compile, "collect_bw_donated_buffer_idxs", lambda *_: [], create=True)
    try:
        with none_donated, torch._functorch.config.patch(enable_autograd_cache=False), compiled_by_threads():
            run: Any = compile_fx(own, list(inputs), config_patches={"fallback_random": True})
    except Exception as error:  # any exception of a compiler
        return first_line(error)
    return cast(Function, run)


def _inference(
    graph: fx.GraphModule, is_weight: Sequence[bool], inputs: Sequence[Any], want: trials.Trial, seconds: float
) -> Function:
    """Place a graph by `gst.place` with its current weights; other weights run the graph as written."""
    bound = Bound(graph, is_weight, inputs).eval()
    weights = [value for value, is_bound in zip(inputs, is_weight, strict=True) if is_bound]
    copies = [
        old if is_bound else new for old, new, is_bound in zip(inputs, trials.copies_of(inputs), is_weight, strict=True)
    ]
    rest = [value for value, is_bound in zip(copies, is_weight, strict=True) if not is_bound]
    placed = place(bound, rest, devices=_devices(inputs), seconds=seconds)
    log.info("a graph of %d operations runs by %s", len(graph.graph.nodes), placed.explain())
    fast = placed.module()
    outputs = pytree.tree_leaves(fast(*rest))
    wanted, places = _places(want.values[: len(want.forms)]), _places(outputs)
    if places != wanted:
        raise ValueError(
            f"{placed.winner} leaves outputs on {_words(places)}, the graph as written on {_words(wanted)}"
        )
    if trials.forms(outputs, copies) != want.forms:
        raise ValueError(f"{placed.winner} gives its outputs other strides, or memory of others")

    def run(*inputs: Any) -> Any:
        if not all(map(is_, (value for value, each in zip(inputs, is_weight, strict=True) if each), weights)):
            return graph(*inputs)
        return fast(*(value for value, each in zip(inputs, is_weight, strict=True) if not each))

    return run


def _devices(inputs: Sequence[Any]) -> list[str]:
    """Return names of devices for a graph: cores and their sets, and the accelerator that holds its tensors."""
    places = {each.device for each in inputs if isinstance(each, Tensor)}
    if len(places) > 1:
        raise ValueError(f"its tensors are on {_words(sorted(map(str, places)))}")
    return [each.name for each in own_devices(inputs) if not each.is_accelerator or each.torch_device in places]


def _places(values: Sequence[Any]) -> list[str]:
    return [str(each.device) for each in values if isinstance(each, Tensor)]


def _words(places: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(places)) or "no device"


def _passes_of(run: Function, inputs: Sequence[Any], copies: Sequence[Any] | None) -> Any:
    """Run both passes on copies, which are made anew if None."""
    copies = trials.copies_of(inputs) if copies is None else copies
    return trials.both_passes(run, trials.results(inputs, copies), copies)


def _for_overlaps(graph: Function, compiled: Function, inputs: Sequence[Any]) -> Function:
    """Return the compiled graph for inputs that share memory as these do; the graph as written runs for others."""
    wanted = trials.overlaps(inputs)

    def run(*inputs: Any) -> Any:
        return compiled(*inputs) if trials.overlaps(inputs) == wanted else graph(*inputs)

    return run


def _fastest(runs: dict[str, Function], inputs: Sequence[Any], seconds: float, writes: bool = False) -> Function:
    """Choose among `runs` by two sets on copies of the inputs; each run gets new copies if it writes to them."""
    copies = None if writes else trials.copies_of(inputs)
    no_inputs = Guard(None, (), weights=False)
    calls = {name: partial(_passes_of, run, inputs, copies) for name, run in runs.items()}
    with torch.set_grad_enabled(torch.is_grad_enabled()), seeded(SEED, trials.accelerators(inputs)):
        first = measure(calls, LOOKS, 1, time_of=rested)
        guarded = {name: GuardedRun(call, no_inputs, call) for name, call in calls.items()}
        first_ms = {name: min(each.samples_ms, default=float("inf")) for name, each in first.items()}
        result = confirmed(Candidates(guarded, {}, first_ms), (), SHARE * seconds)
    times = {name: plan.get("again_median_ms") for name, plan in result["plans"].items() if plan["feasible"]}
    told = ", ".join(f"{ms} ms {WORDS[name]}" for name, ms in times.items())
    log.info("a graph runs %s: %s", WORDS[result["winner"]], told)
    return runs[result["winner"]]
