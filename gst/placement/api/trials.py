"""Trials of a graph on copies of its inputs, and compiled graphs with the derivatives of eager PyTorch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._higher_order_ops.wrap import tag_activation_checkpoint
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils.checkpoint import checkpoint

from gst.programs import outputs_differ
from gst.util.random_numbers import seeded

CALLS = 3  # of a graph that writes to its inputs: an old value that was lost may show in a later call
Function = Callable[..., Any]


class Trial(NamedTuple):
    """Results of a call on copies.

    Args:
        values: the outputs, the gradients of the inputs that require one, and all inputs as they are after the call.
        later: the values of further calls, with the inputs that the first one wrote to; empty if it wrote to none.
        forms: of each output its class, strides and need of a gradient, and the first input or output with its memory.
        reached: for each output that requires a gradient, numbers of the inputs on which it depends.
        mutated: numbers of the inputs that the call wrote to.
        writes_learned: True if autograd follows one of these writes.
        draws: True if it draws random numbers, also those that reach no output.
        random: states of the generators after the call.
    """

    values: list[Any]
    later: list[Any]
    forms: list[Any]
    reached: list[frozenset[int]]
    mutated: frozenset[int]
    writes_learned: bool
    draws: bool
    random: list[Tensor]

    def difference(self, other: Trial) -> str | None:
        """Describe the first difference from another trial; None if they agree."""
        if self.forms != other.forms:
            return "its outputs have other classes, strides, gradients or memory"
        if not all(map(torch.equal, self.random, other.random)):
            return "it draws other random numbers"
        return outputs_differ([*self.values, *self.later], [*other.values, *other.later])


def lifted(graph: fx.GraphModule) -> tuple[fx.GraphModule, list[Tensor]]:
    """Return a graph that takes the tensors which this one holds as further inputs, and these tensors.

    Raises:
        ValueError: a tensor is held by a module that the graph calls.

    Examples:
        >>> class Shift(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.shift = torch.nn.Parameter(torch.ones(1))
        ...     def forward(self, x):
        ...         return x + self.shift
        >>> graph, held = lifted(fx.symbolic_trace(Shift()))
        >>> len(held), graph(torch.zeros(1), torch.full((1,), 3.0))
        (1, tensor([3.]))
    """
    if not any(True for _ in (*graph.parameters(), *graph.buffers())):
        return graph, []
    own = fx.GraphModule(graph, copied(graph.graph))
    first = next(node for node in own.graph.nodes if node.op != "placeholder")
    held: dict[int, tuple[Tensor, fx.Node]] = {}
    for node in own.graph.find_nodes(op="get_attr"):
        value = attrgetter(node.target)(own)
        if isinstance(value, Tensor):
            if id(value) not in held:
                with own.graph.inserting_before(first):
                    held[id(value)] = value, own.graph.placeholder(f"held_{len(held)}")
            node.replace_all_uses_with(held[id(value)][1])
            first = node.next if node is first else first
            own.graph.erase_node(node)
    if any(id(each) not in held for each in (*graph.parameters(), *graph.buffers())):
        raise ValueError("a module that it calls holds tensors")
    own.recompile()
    return fx.GraphModule(own, copied(own.graph)), [value for value, _ in held.values()]


def with_checkpoints(graph: fx.GraphModule) -> fx.GraphModule:
    """Return a graph whose activation checkpoints are those of the user. Dynamo's operator for them, run as it is,
    forgets the state of the generator, so that the backward pass draws other numbers."""
    bodies = {node.target: getattr(graph, node.target, None) for node in graph.graph.find_nodes(op="get_attr")}
    changed = {name: with_checkpoints(each) for name, each in bodies.items() if isinstance(each, fx.GraphModule)}
    nodes = graph.graph.find_nodes(op="call_function", target=tag_activation_checkpoint)
    if not nodes and all(new is bodies[name] for name, new in changed.items()):
        return graph
    own = fx.GraphModule(graph, copied(graph.graph))
    own.meta |= graph.meta
    for name, each in changed.items():
        setattr(own, name, each)
    for node in own.graph.find_nodes(op="call_function", target=tag_activation_checkpoint):
        node.target = _checkpoint
    own.recompile()
    return own


def _checkpoint(body: fx.GraphModule, *inputs: Any, **options: Any) -> Any:
    settings, keywords = tag_activation_checkpoint.divide_kwargs(options)
    if "_checkpoint_context_fn" in body.meta:  # for selective checkpoints
        settings["context_fn"] = body.meta["_checkpoint_context_fn"]
    return checkpoint(body, *inputs, **settings | {"use_reentrant": False}, **keywords)


def copied(graph: fx.Graph) -> fx.Graph:
    copy = fx.Graph()
    copy.output(copy.graph_copy(graph, {}))
    return copy


def is_watched() -> bool:
    """True under hooks of the user for saved tensors, or under a dispatch mode: these see each operation as written."""
    hooks = torch.is_grad_enabled() and torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    return hooks or torch._C._len_torch_dispatch_stack() > 0


def outcome(run: Function, inputs: Sequence[Any], seed: int) -> Trial:
    """Call a function and its backward pass on copies of the inputs, with random numbers from a seed. The generator of
    the process and its grad mode are left as they were, also after an exception."""
    copies = copies_of(inputs)
    with torch.set_grad_enabled(torch.is_grad_enabled()), seeded(seed, accelerators(inputs)):
        arguments = results(inputs, copies)
        before, states, generators = copies_of(arguments), list(map(_state, arguments)), _generators(inputs)
        outputs, gradients = both_passes(run, arguments, copies)
        random = _generators(inputs)
    tops = [each for each in outputs if _learns(each)]
    leaves = {id(copy): number for number, copy in enumerate(copies)}
    now = list(map(_state, arguments))
    mutated = [
        number for number, pair in enumerate(zip(arguments, before, strict=True))
        if now[number][0] != states[number][0] or not _is_same(*pair)
    ]  # fmt: skip
    writes_learned = any(new is not old for (_, new), (_, old) in zip(now, states, strict=True))
    values, form, later = [*outputs, *gradients, *arguments], forms(outputs, arguments), []
    if mutated and not writes_learned:
        values = copies_of(values)
        with torch.set_grad_enabled(torch.is_grad_enabled()), seeded(seed, accelerators(inputs)):
            for _ in range(CALLS - 1):
                for part in (*both_passes(run, arguments, copies), arguments):
                    later += copies_of(part)
    return Trial(
        values, later, form, [_reached(each, leaves) for each in tops], frozenset(mutated), writes_learned,
        not all(map(torch.equal, random, generators)), random,
    )  # fmt: skip


def both_passes(run: Function, inputs: Sequence[Any], leaves: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return flat outputs, and the gradients of the leaves from which the inputs come, if there are any."""
    outputs = pytree.tree_leaves(run(*inputs))
    tops, leaves = ([each for each in values if _learns(each)] for values in (outputs, leaves))
    if not tops or not leaves:
        return outputs, []
    slopes = [torch.linspace(-1, 1, each.numel()).reshape(each.shape).to(each) for each in tops]
    # A graph that is retained makes Inductor compile a backward pass that may run again.
    return outputs, list(torch.autograd.grad(tops, leaves, slopes, retain_graph=True, allow_unused=True))


def copies_of(values: Sequence[Any]) -> list[Any]:
    """Copy tensors to leaves of the same layout; the copies of tensors that share memory share it, too."""
    sharing = Counter(map(_memory, values))
    storages: dict[int, torch.UntypedStorage] = {}

    def copy(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if not _is_plain(value):
            new = value.detach().clone()
        elif sharing[_memory(value)] == 1 and 0 not in value.stride():
            new = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
            new.copy_(value.detach())
        else:
            storage = storages.setdefault(_memory(value), value.untyped_storage().clone())
            new = torch.empty(0, dtype=value.dtype, device=value.device)
            new.set_(storage, value.storage_offset(), value.shape, value.stride())
        return new.requires_grad_(value.requires_grad)

    with torch.no_grad():
        return list(map(copy, values))


def results(inputs: Sequence[Any], copies: Sequence[Any]) -> list[Any]:
    """Return the copies; where an input is the result of an operation, a new result, which may be written in place."""
    sharing = Counter(map(_memory, copies))
    return [
        torch.empty_strided(copy.shape, copy.stride(), dtype=copy.dtype, device=copy.device).copy_(copy)
        if isinstance(each, Tensor) and not each.is_leaf and _is_plain(each)
        and 0 not in each.stride() and sharing[_memory(copy)] == 1 else copy
        for each, copy in zip(inputs, copies, strict=True)
    ]  # fmt: skip


def overlaps(values: Sequence[Any]) -> list[Any]:
    """Return for each value the number of the first one in the same memory, and its distance from that one in bytes."""
    first: dict[int, int] = {}
    numbers = [first.setdefault(_memory(each), number) for number, each in enumerate(values)]
    if len(first) == len(values):
        return numbers
    return [
        number if number == own else (number, each.data_ptr() - values[number].data_ptr())
        for own, (number, each) in enumerate(zip(numbers, values, strict=True))
    ]


def forms(outputs: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """Return of each output its class, strides, need of a gradient, and the first value in its memory; see `Trial`."""
    first: dict[int, int] = {}
    numbers = [first.setdefault(_memory(each), number) for number, each in enumerate((*inputs, *outputs))]
    return [_form(each, number) for each, number in zip(outputs, numbers[len(inputs) :], strict=True)]


def _form(value: Any, first: int) -> Any:
    if not isinstance(value, Tensor):
        return type(value)
    strides = [step for size, step in zip(value.shape, value.stride(), strict=True) if size > 1 and value.numel()] if (
        value.layout == torch.strided
    ) else value.layout  # fmt: skip
    return type(value), strides, value.requires_grad, first


def accelerators(inputs: Sequence[Any]) -> set[torch.device]:
    return {each.device for each in inputs if isinstance(each, Tensor) and each.device.type != "cpu"}


def _generators(inputs: Sequence[Any]) -> list[Tensor]:
    others = [torch.get_device_module(device).get_rng_state(device) for device in accelerators(inputs)]
    return [torch.get_rng_state(), *others]


def _memory(value: Any) -> int:
    """Return the address of a tensor's storage, where it has one of its own."""
    return (value.untyped_storage().data_ptr() if _is_plain(value) else 0) or -id(value)


def _is_plain(value: Any) -> bool:
    """True if a tensor lies in a storage with strides, and is no subclass that holds other tensors."""
    return isinstance(value, Tensor) and value.layout == torch.strided and not (
        value.is_quantized or is_traceable_wrapper_subclass(value)
    )  # fmt: skip


def _state(value: Any) -> tuple[int, Any]:
    """Return the version of a tensor, and the node of autograd that computed it; both change with a write."""
    if not isinstance(value, Tensor):
        return 0, None
    return 0 if value.is_inference() else value._version, value.grad_fn


def _is_same(new: Any, old: Any) -> bool:
    if not _is_plain(new):
        return True
    new, old = new.detach(), old.detach()
    return bool(((new == old) | (new != new) & (old != old)).all())  # NaN equals NaN


def _learns(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _reached(top: Tensor, numbers: dict[int, int]) -> frozenset[int]:
    """Return the numbers of the leaves from which an output is computed, by autograd's record."""
    found, pending, seen = set(), [top.grad_fn], set()
    if top.grad_fn is None and id(top) in numbers:
        found.add(numbers[id(top)])
    while pending:
        node = pending.pop()
        if node is not None and node not in seen:
            seen.add(node)
            leaf = getattr(node, "variable", None)
            if id(leaf) in numbers:
                found.add(numbers[id(leaf)])
            pending += [each for each, _ in node.next_functions]
    return frozenset(found)


States = list[tuple[torch.Generator, Tensor]]


class Differentiable:
    """A graph compiled by Inductor. Second derivatives come from the graph as written, as AOTAutograd has none; inputs
    on which no output of a partial backward pass depends get no gradient, where AOTAutograd returns zeros.

    Args:
        graph: as written.
        compiled: the same graph, whose gradients are all computed by one node of autograd.
        trial: of the graph as written.
        draws: True if it draws random numbers.
    """

    def __init__(self, graph: fx.GraphModule, compiled: Function, trial: Trial, draws: bool) -> None:
        self._graph, self.compiled, self._draws = graph, compiled, draws
        self._mutated, self._reached = trial.mutated, trial.reached

    def __call__(self, *inputs: Any) -> Any:
        """Return the outputs.

        Raises:
            ValueError: its gradients come from several nodes of autograd, as where outputs share memory.
        """
        states = _states(inputs) if self._draws else []
        written = dict(zip(self._mutated, copies_of([inputs[number] for number in self._mutated]), strict=True))
        outputs = self.compiled(*inputs)
        tops = [each for each in outputs if isinstance(each, Tensor) and each.requires_grad]
        if not tops or not torch.is_grad_enabled():
            return outputs
        values = [written.get(number, each) for number, each in enumerate(inputs)]
        node, tensors = tops[0].grad_fn, [each for each in values if isinstance(each, Tensor)]
        if node is None or len(node.next_functions) != len(tensors) or any(each.grad_fn is not node for each in tops):
            raise ValueError("its gradients come from several nodes of autograd")
        versions = [each._version for each in tensors]
        numbers = [each.output_nr for each in tops]
        node.register_hook(partial(self._gradients, [(values, versions, states)], numbers))
        return outputs

    @torch.compiler.disable
    def _gradients(
        self, calls: list[Any], numbers: Sequence[int], gradients: Sequence[Any], to_node: Sequence[Any]
    ) -> tuple[Any, ...] | None:
        """Return the gradients of the tensors among the inputs, given the compiled ones and those of the outputs."""
        slopes = [to_node[number] for number in numbers]
        again = torch.is_grad_enabled()  # as with `create_graph=True`
        values, versions, states = calls[0]
        tensors = [(number, each) for number, each in enumerate(values) if isinstance(each, Tensor)]
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            calls.clear()  # frees memory
        if again:
            if [each._version for _, each in tensors] != versions:
                raise RuntimeError("an input of a compiled graph was changed in place before its second derivative")
            gradients = self._by_graph(values, states, slopes, [each is not None for each in gradients])
        elif all(each is not None for each in slopes):
            return None
        reached = {n for each, slope in zip(self._reached, slopes, strict=True) if slope is not None for n in each}
        return tuple(each if n in reached else None for (n, _), each in zip(tensors, gradients, strict=True))

    def _by_graph(
        self, values: Sequence[Any], states: States, slopes: Sequence[Any], wanted: Sequence[bool]
    ) -> list[Any]:
        """Return gradients that can be differentiated again; None for tensors that are not wanted."""
        # Views, so that the gradient of one input does not pass through another one.
        inputs = [each.view_as(each) if isinstance(each, Tensor) and each.requires_grad else each for each in values]
        for number in self._mutated:
            inputs[number] = values[number].clone()
        now = [(generator, generator.get_state()) for generator, _ in states]
        try:
            _set(states)
            outputs = self._graph(*inputs)
        finally:
            _set(now)
        tops = [each for each in outputs if isinstance(each, Tensor) and each.requires_grad]
        used = [(top, slope) for top, slope in zip(tops, slopes, strict=True) if slope is not None]
        tensors = [each for each in inputs if isinstance(each, Tensor)]
        is_leaf = [each.requires_grad and is_wanted for each, is_wanted in zip(tensors, wanted, strict=True)]
        leaves = [each for each, is_one in zip(tensors, is_leaf, strict=True) if is_one]
        found = torch.autograd.grad(
            [top for top, _ in used], leaves, [slope for _, slope in used], create_graph=True, allow_unused=True
        )
        gradients = iter(found)
        return [next(gradients) if is_one else None for is_one in is_leaf]


def _set(states: States) -> None:
    for generator, state in states:
        generator.set_state(state)


def _states(inputs: Sequence[Any]) -> States:
    """Return the generators of the host and of the accelerators that hold inputs, with their states."""
    generators = [torch.get_device_module(each).default_generators[each.index] for each in accelerators(inputs)]
    return [(each, each.get_state()) for each in (torch.default_generator, *generators)]
