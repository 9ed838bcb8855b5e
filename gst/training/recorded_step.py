"""The training step of Graph Segment Training as one graph of an accelerator, launched again for every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from gst.execution.lanes import is_here
from gst.execution.recording import WARM_RUNS, Graph, new_graph, no_garbage, recorded
from gst.graphs.segments import SegmentedGraph
from gst.method.fixed_step import FixedStep, PaddedStep


class RecordedStep:
    """Trains step by step: the first `WARM_RUNS` steps run eagerly, the next one is recorded, and the recording is
    replayed for it and for all later ones.

    A recording holds numbers of the optimizer (a learning rate, unless it is a tensor as with `capturable=True`),
    addresses of parameters and buffers, and which of them and of the modules are trained. When one of these changes,
    the step is recorded anew; if it is one of the model, after further eager steps.

    Args:
        step: what is to be recorded; its model, loss and optimizer.
        graph: makes an empty graph, see `gst.execution.recording.new_graph`.
        is_recorded: whether to record at all; where the model is on an accelerator of this process if None.

    Attributes:
        reason: why all steps from now on run eagerly; empty if they are, or will be, replays.

    Examples:
        >>> import gst, numpy as np
        >>> from gst.cost.losses import pairwise_hinge
        >>> from gst.method.fixed_step import Sizes
        >>> from torch_geometric.nn import GraphSAGE
        >>> path = gst.Graph(np.ones((6, 1), np.float32), np.stack([np.arange(5), np.arange(1, 6)]))
        >>> graphs = [gst.segment(path, 3, "contiguous")]
        >>> model = gst.GraphSegmentTraining(GraphSAGE(1, 4, 2), torch.nn.Linear(4, 1), estimate="fresh")
        >>> optimizer = torch.optim.SGD(model.parameters(), 0.1)
        >>> step = RecordedStep(FixedStep(model, pairwise_hinge, optimizer, Sizes.of(graphs, 1, 1, 1)))
        >>> step(graphs, torch.tensor([[0]]), torch.ones(1, 1)).item(), step.reason
        (0.0, 'graphs are recorded on an accelerator; the model is on cpu')
    """

    def __init__(
        self, step: FixedStep, graph: Callable[[torch.device], Graph] = new_graph, is_recorded: bool | None = None
    ) -> None:
        self.step, self._new_graph = step, graph
        device = step.model.like().device
        self._device = device
        self._stream = torch.Stream(device) if is_here(device) else None
        self._graph: Graph | None = None
        self._gradients: list[tuple[Tensor, Tensor | None]] = []
        self._warm_runs = 0
        self._numbers: list[dict[str, Any]] = []
        self._places: list[Any] = []
        wanted = is_here(device) if is_recorded is None else is_recorded
        self.reason = "" if wanted else f"graphs are recorded on an accelerator; the model is on {device}"

    def __call__(
        self, graphs: Sequence[SegmentedGraph], configs: Int64[Tensor, "graphs configs"],
        targets: Float[Tensor, "graphs configs"],
    ) -> Float[Tensor, ""]:  # fmt: skip
        """Take one training step, padded to the sizes, and return its loss. The host does not wait for the loss.

        Raises:
            ValueError: the step is larger than the sizes.
            NoFixedShapes: see `FixedStep.fill` and `FixedStep.compute`.
        """
        return self.run(self.step.load(self.step.draw(graphs, configs)), targets)

    @torch.compiler.disable
    def run(self, padded: PaddedStep, targets: Float[Tensor, "graphs configs"]) -> Float[Tensor, ""]:
        """Take a training step that `FixedStep.load` has read."""
        caller: Any = None if self._stream is None else torch.accelerator.current_stream(self._device)
        if self._stream is not None:
            self._stream.wait_stream(caller)
        try:
            with self._stream or nullcontext():
                value = self._run(padded, targets)
        finally:
            if self._stream is not None:
                caller.wait_stream(self._stream)
        if self._stream is not None:
            value.record_stream(caller)
        self._warm_runs += 1
        return value

    def _run(self, padded: PaddedStep, targets: Float[Tensor, "graphs configs"]) -> Float[Tensor, ""]:
        self.step.fill(padded, targets)
        if not self.reason:
            self._look_at_constants()
        if not self.reason and self._graph is None and self._warm_runs >= WARM_RUNS:
            self._record()
        if self._graph is None:
            self.step.compute()
        else:
            self._graph.replay()
            for parameter, gradient in self._gradients:
                parameter.grad = gradient
        self.step.finish()
        return self.step.value.clone()

    def _look_at_constants(self) -> None:
        """Drop the graph if something has changed that it holds as a constant; new tensors need warm runs, too."""
        if (numbers := optimizer_numbers(self.step.optimizer)) != self._numbers:
            self._graph, self._numbers = None, numbers
        if (places := model_places(self.step.model)) != self._places:
            self._graph, self._places, self._warm_runs = None, places, 0

    def _record(self) -> None:
        """Record the arithmetic of a step; recording launches nothing."""
        if self._stream is not None:
            self._stream.synchronize()
        try:
            graph = self._new_graph(self._device)
            with no_garbage(), recorded(graph):
                self.step.compute()
        except Exception as error:  # whatever an encoder does that a graph cannot
            self.reason = f"{type(error).__name__}: {error}".splitlines()[0]
        else:
            self._graph = graph
            self._gradients = [(parameter, parameter.grad) for parameter in self.step.model.parameters()]


def optimizer_numbers(optimizer: torch.optim.Optimizer | None) -> list[dict[str, Any]]:
    """The options of each group of parameters that are no tensors: learning rates, momenta.

    Examples:
        >>> optimizer_numbers(torch.optim.SGD([torch.ones(1)], 0.1))[0]["lr"]
        0.1
    """
    groups = [] if optimizer is None else optimizer.param_groups
    return [{key: each for key, each in group.items() if not isinstance(each, Tensor | list)} for group in groups]


def model_places(model: nn.Module) -> list[Any]:
    """Of every parameter and buffer its identity, its address and whether it is trained; of every module its mode.

    Examples:
        >>> layer = nn.Linear(1, 1)
        >>> before = model_places(layer)
        >>> model_places(layer.eval()) == before
        False
    """
    tensors = [(id(each), each.data_ptr(), each.requires_grad) for each in (*model.parameters(), *model.buffers())]
    return [*tensors, *(each.training for each in model.modules())]
