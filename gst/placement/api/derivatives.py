"""Compiled graphs whose backward passes do what those of eager PyTorch do: partial ones and second derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from gst.placement.api.trials import Trial, accelerators, copies_of

Function = Callable[..., Any]
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
