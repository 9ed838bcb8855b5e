"""A placed model as a module: called as the model was, it runs in the way that was measured to be the fastest."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gst.devices import AnyExecutor, GraphExecutor, executor
from gst.devices.execute.plain import PYTORCH
from gst.placement.choosing import GuardedRun
from gst.placement.guards import Guard
from gst.programs import Step

if TYPE_CHECKING:
    from gst.placement.placed import Placed

PLAN = "plan"


class PlacedModule(nn.Module):
    """Runs a placed model, for one caller at a time, in one of the ways that `Placed.runs` names or by its plan.

    Another kind of call (shape, dtype, gradients, training mode, or new weights where they are constants) runs the
    model as written, with one warning. Threads of a plan start with the first call, and end with `close` or with this
    object.
    """

    def __init__(self, placed: Placed, run: str) -> None:
        super().__init__()
        self.run = run
        self._executor: AnyExecutor | None = None
        self._turn = threading.Lock()
        self._guarded = placed.runs.get(run)
        if self._guarded is None:
            if run != PLAN:
                reason = f" ({left_out})" if (left_out := placed.result["left_out"].get(run)) else ""
                raise ValueError(f"there is no way {run!r} to run it{reason}; there are {', '.join(placed.runs)}")
            if placed.program is None or placed.plan is None:
                raise ValueError(f"there is no plan of it: {placed.result['no_plan']}; place it with seconds=None")
            self._placed, self._program = placed, placed.program
            written, guard = guard_of(placed.model, placed.inputs)
            if PYTORCH in placed.runs:  # on an accelerator, where plans leave their outputs too
                written = placed.runs[PYTORCH].model
            self._guarded = GuardedRun(written, guard, self._by_plan)

    def forward(self, *inputs: Any) -> Any:
        """What the model, or the step, returns for `inputs`."""
        assert self._guarded is not None
        with self._turn:
            return self._guarded(*inputs)

    def _by_plan(self, *inputs: Any) -> Any:
        """By the plan, of inputs that the guard let pass."""
        placed, program = self._placed, self._program
        assert self._guarded is not None and placed.plan is not None  # as `__init__` found
        given = (*placed.parameters.values(), *self._guarded.guard.leaves(inputs))
        tensors = [each.detach() if each.requires_grad else each for each in given]
        if self._executor is None:
            threads = torch.get_num_threads()
            try:
                self._executor = executor(program, placed.devices).__enter__()
            finally:
                torch.set_num_threads(threads)
        if isinstance(self._executor, GraphExecutor):
            return program.unflatten(self._executor.run(placed.plan, tensors, len(placed.parameters)))
        return program.unflatten(self._executor.run(placed.plan, tensors))

    def close(self) -> None:
        """End its threads; the next call starts others."""
        with self._turn:
            running, self._executor = self._executor, None
            if running is not None:
                threads = torch.get_num_threads()
                running.__exit__(None, None, None)
                torch.set_num_threads(threads)

    def __del__(self) -> None:
        if "_turn" in self.__dict__:
            self.close()


def guard_of(model: nn.Module | Step, inputs: Sequence[Any]) -> tuple[Callable[..., Any], Guard]:
    """What runs a model or a step as written, and what tells whether a call is like `inputs`."""
    if isinstance(model, Step):
        return model.function, Guard(None, inputs, weights=False)
    return model, Guard(model, inputs, weights=False)
