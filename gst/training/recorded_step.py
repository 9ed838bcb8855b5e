"""The training step of Graph Segment Training as one graph of an accelerator, launched again for every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from gst.devices.execute.lanes import is_here
from gst.devices.execute.recording import WARM_RUNS, Graph, new_graph, no_garbage, recorded
from gst.graphs.segments import SegmentedGraph
from gst.method.fixed_step import FixedStep, PaddedStep


class RecordedStep:
    """Trains step by step: the first steps run eagerly, the next is recorded, and all behind it are replays. A learning
    rate that changes is recorded anew, unless it is a tensor (`capturable=True`).

    Args:
        step: what is to be recorded; its model, loss and optimizer.
        graph: makes an empty graph, see `gst.devices.execute.recording.new_graph`.
        is_recorded: whether to record at all; where the model is on an accelerator of this process if None.

    Attributes:
        reason: why steps run eagerly; empty if they are, or will be, replays.

    Examples:
        >>> import gst, numpy as np
        >>> from gst.cost.losses import pairwise_hinge
        >>> from gst.method.fixed_step import Sizes
        >>> from torch_geometric.nn import GraphSAGE
        >>> path = gst.Graph(np.ones((6, 1), np.float32), np.stack([np.arange(5), np.arange(1, 6)]))
        >>> graphs = [gst.segment(path, 3, "contiguous")]
        >>> model = gst.GraphSegmentTraining(GraphSAGE(1, 4, 2), torch.nn.Linear(4, 1), omit_rest=True)
        >>> optimizer = torch.optim.SGD(model.parameters(), 0.1)
        >>> step = RecordedStep(FixedStep(model, pairwise_hinge, optimizer, Sizes.of(graphs, 1, 1, 1)))
        >>> step(graphs, torch.tensor([[0]]), torch.ones(1, 1)).item(), step.reason
        (0.0, 'graphs are recorded on an accelerator; the model is on cpu')
    """

    def __init__(
        self, step: FixedStep, graph: Callable[[torch.device], Graph] = new_graph, is_recorded: bool | None = None
    ) -> None:
        self.step, self._new_graph = step, graph
        device = step.model._like().device
        self._device = device
        self._stream = torch.Stream(device) if is_here(device) else None
        self._graph: Graph | None = None
        self._gradients: list[tuple[Tensor, Tensor | None]] = []
        self._steps = 0
        self._recorded_with: list[dict[str, Any]] = []
        wanted = is_here(device) if is_recorded is None else is_recorded
        self.reason = "" if wanted else f"graphs are recorded on an accelerator; the model is on {device}"

    def __call__(
        self, graphs: Sequence[SegmentedGraph], configs: Int64[Tensor, "graphs configs"],
        targets: Float[Tensor, "graphs configs"],
    ) -> Float[Tensor, ""]:  # fmt: skip
        """One training step; its loss, for which the host does not wait. What is smaller than the sizes is padded, and
        NaN are its further targets.

        Raises:
            ValueError: the step is larger than the sizes.
        """
        return self.run(self.step.load(self.step.draw(graphs, configs)), targets)

    @torch.compiler.disable
    def run(self, padded: PaddedStep, targets: Float[Tensor, "graphs configs"]) -> Float[Tensor, ""]:
        """The same of a step that is read: `FixedStep.load`."""
        caller: Any = None if self._stream is None else torch.accelerator.current_stream(self._device)
        if self._stream is not None:
            self._stream.wait_stream(caller)
        with self._stream or nullcontext():
            self.step.fill(padded, targets)
            if (now := self._numbers()) != self._recorded_with:  # a schedule changed what the graph holds as constants
                self._graph, self._recorded_with = None, now
            if not self.reason and self._graph is None and self._steps >= WARM_RUNS:
                self._record()
            if self._graph is None:
                self.step.compute()
            else:
                self._graph.replay()
                for parameter, gradient in self._gradients:
                    parameter.grad = gradient
            self.step.finish()
            value = self.step.value.clone()
        if self._stream is not None:
            caller.wait_stream(self._stream)
            value.record_stream(caller)
        self._steps += 1
        return value

    def _numbers(self) -> list[dict[str, Any]]:
        """What the optimizer computes with that is no tensor: learning rates, momenta."""
        groups = [] if self.step.optimizer is None else self.step.optimizer.param_groups
        return [{key: each for key, each in group.items() if not isinstance(each, Tensor | list)} for group in groups]

    def _record(self) -> None:
        """Record the arithmetic of a step, which computes nothing yet."""
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
