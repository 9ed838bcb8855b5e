"""A placed model as a module: called as the model was, it runs in the way that was measured to be the fastest."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gst.execution.executor import AnyExecutor, executor
from gst.execution.graph_executor import GraphExecutor
from gst.execution.plain import PYTORCH
from gst.lowering.plan import Plan
from gst.programs import Program, Step
from gst.whole_model.choosing import GuardedRun
from gst.whole_model.guards import Guard

if TYPE_CHECKING:
    from gst.placement.api.placed import Placed

PLAN = "plan"


class PlacedModule(nn.Module):
    """Runs a placed model, for one caller at a time, in one of the ways that `Placed.runs` names or by its plan.

    Another kind of call (shape, dtype, gradients, autocast, training mode, or new weights where they are constants)
    runs the model as written, with one warning. Threads of a plan start with the first call, and end with `close` or
    with this object, which holds nothing of the other ways.
    """

    def __init__(self, placed: Placed, run: str) -> None:
        super().__init__()
        self.run = run
        self._turn = threading.Lock()
        self._plan: _PlanRun | None = None
        guarded = placed.runs.get(run)
        if guarded is None:
            if run != PLAN:
                reason = f" ({left_out})" if (left_out := placed.result["left_out"].get(run)) else ""
                raise ValueError(f"there is no way {run!r} to run it{reason}; there are {', '.join(placed.runs)}")
            if placed.program is None or placed.plan is None:
                raise ValueError(f"there is no plan of it: {placed.result['no_plan']}; place it with seconds=None")
            any_device = any(device.is_accelerator for device in placed.devices)
            written, guard = guard_of(placed.model, placed.inputs, any_device)
            if PYTORCH in placed.runs:  # on an accelerator, where plans leave their outputs too
                written = placed.runs[PYTORCH].model
            self._plan = _PlanRun(placed, placed.program, placed.plan, guard)
            guarded = GuardedRun(written, guard, self._plan)
        self._guarded = guarded

    def forward(self, *inputs: Any) -> Any:
        """What the model, or the step, returns for `inputs`."""
        with self._turn:
            return self._guarded(*inputs)

    def close(self) -> None:
        """End its threads; the next call starts others."""
        with self._turn:
            if self._plan is not None:
                self._plan.close()

    def __del__(self) -> None:
        if "_turn" in self.__dict__:
            self.close()


class _PlanRun:
    """Runs a plan of a program for inputs that the guard let pass.

    Args:
        placed: whose devices and parameters it uses; nothing else of it is held.
    """

    def __init__(self, placed: Placed, program: Program, plan: Plan, guard: Guard) -> None:
        self._program, self._plan, self._guard, self._devices = program, plan, guard, placed.devices
        self._parameters, self._home = tuple(placed.parameters.values()), _home(placed)
        self._executor: AnyExecutor | None = None

    def __call__(self, *inputs: Any) -> Any:
        given = (*self._parameters, *self._guard.leaves(inputs))
        tensors = [each.detach() if each.requires_grad else each for each in given]
        if self._executor is None:
            threads = torch.get_num_threads()
            try:
                self._executor = executor(self._program, self._devices).__enter__()
            finally:
                torch.set_num_threads(threads)
        if isinstance(self._executor, GraphExecutor):
            outputs = self._executor.run(self._plan, tensors, len(self._parameters))
        else:
            outputs = self._executor.run(self._plan, tensors)
        if self._home is not None:
            outputs = [each.to(self._home) if isinstance(each, Tensor) else each for each in outputs]
        return self._program.unflatten(outputs)

    def close(self) -> None:
        running, self._executor = self._executor, None
        if running is not None:
            threads = torch.get_num_threads()
            running.__exit__(None, None, None)
            torch.set_num_threads(threads)


def _home(placed: Placed) -> torch.device | None:
    """Where the outputs of a plan are brought: to the accelerator on which it runs without one, or to where the model
    lies; None on the cores alone."""
    if not any(device.is_accelerator for device in placed.devices):
        return None
    if accelerator := placed.result.get("accelerator"):
        return torch.device(accelerator)
    values = pytree.tree_leaves((list(placed.parameters.values()), placed.inputs))
    return next((each.device for each in values if isinstance(each, Tensor)), None)


def guard_of(
    model: nn.Module | Step, inputs: Sequence[Any], any_device: bool = False
) -> tuple[Callable[..., Any], Guard]:
    """What runs a model or a step as written, and what tells whether a call is like `inputs`; see `Guard`."""
    if isinstance(model, Step):
        return model.function, Guard(None, inputs, weights=False, any_device=any_device)
    return model, Guard(model, inputs, weights=False, any_device=any_device)
