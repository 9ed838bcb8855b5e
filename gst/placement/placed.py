"""`gst.place`: the fastest way found to run a model or a step, in one call."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gst.devices import AnyExecutor, Device, Plan, executor
from gst.devices.describe.machine import usable_devices
from gst.devices.execute.calls import laid_out
from gst.devices.execute.plain import COMPILED, PYTORCH, compiled_step
from gst.placement.drawing import explanation
from gst.placement.pipeline import place_measured
from gst.placement.planning import Settings
from gst.placement.task import Task
from gst.process.progress import Bars, Progress
from gst.programs import Program, Step, capture, inference_step


@dataclass(frozen=True, eq=False)
class Placed:
    """The fastest plan found for a model or a step, and whether the model itself, or compiled, is faster still.

    Args:
        model: the model or step as it was given.
        program: what was captured of it.
        devices: where it was placed.
        plan: device, priority and fusion group of every operation.
        task: costs of the program on the devices.
        result: what was measured, see `gst.placement.planning.placed_result`.
        parameters: for a model, its parameters and buffers by name, as they are whenever it runs; empty for a step.
        input_spec: structure of what `module()` is called with.
        modes: for a model, whether each of its modules was in training mode when it was captured.
    """

    model: nn.Module | Step
    program: Program
    devices: tuple[Device, ...]
    plan: Plan
    task: Task
    result: dict[str, Any]
    parameters: Mapping[str, Tensor]
    input_spec: pytree.TreeSpec
    modes: Mapping[nn.Module, bool]

    @property
    def winner(self) -> Literal["pytorch", "compiled", "plan"]:
        """What was measured to be the fastest: the model as it is, as `torch.compile` makes it, or the plan. The
        simplest of them where the difference is noise."""
        winner = self.result["winner"]
        return winner if winner in (PYTORCH, COMPILED) else "plan"

    def module(self, run: Literal["pytorch", "compiled", "plan"] | None = None) -> PlacedModule:
        """A module that is called as the model was, or with what the step takes, and computes the same without
        gradients.

        Args:
            run: what it runs; the `winner` if None.
        """
        return PlacedModule(self, run or self.winner)

    def explain(self) -> str:
        """Where the time goes under the plan, and why it is no faster, in a few lines."""
        return explanation(self.task, self.plan, self.result)

    def device_map(self) -> dict[str, str]:
        """Device of each module that holds parameters, as Accelerate's `dispatch_model` takes it.

        Raises:
            ValueError: it is no model with parameters, or parameters of one module are on several devices, so that a
                map of modules is not enough.
        """
        homes: dict[str, set[str]] = {}
        by_name = {device.name: device for device in self.devices}
        for number, name in enumerate(self.parameters):
            users = np.flatnonzero(self.program.parameter_home == number)
            places = {by_name[self.plan.devices[place]] for place in self.plan.placement[users].tolist()}
            homes.setdefault(name.rpartition(".")[0], set()).update(str(place.torch_device) for place in places)
        if not homes:
            raise ValueError("a device map is of modules; this plan is of a step, or the model has no parameters")
        for module, found in homes.items():
            if len(found) > 1:
                raise ValueError(
                    f"parameters of {module or 'the model'} are on {', '.join(sorted(found))}; run the plan by module()"
                )
        return {module: found.pop() for module, found in homes.items()}


class PlacedModule(nn.Module):
    """Runs a placed model, for one caller at a time: as it is (`pytorch`), `compiled` by the first call, or by its
    `plan`. Threads of a plan start with the first call, and end with `close` or with this object."""

    def __init__(self, placed: Placed, run: Literal["pytorch", "compiled", "plan"]) -> None:
        super().__init__()
        self.run = run
        self._placed = placed
        self._executor: AnyExecutor | None = None
        self._compiled = compiled_step(placed.program) if run == COMPILED else None
        self._turn = threading.Lock()

    def forward(self, *inputs: Any) -> Any:
        """What the model, or the step, returns for `inputs`.

        Raises:
            ValueError: structure, shapes or dtypes are not those of the example inputs.
        """
        placed = self._placed
        state = {name: value.detach() for name, value in placed.parameters.items()}
        tensors = placed.program.check_inputs([*state.values(), *placed.input_spec.flatten_up_to(inputs)])
        with self._turn:
            if self.run == PYTORCH:
                with _modes(placed.modes):
                    return as_written(placed.model, inputs)
            if self._compiled is not None:
                tensors = [
                    laid_out(got.detach(), like) for got, like in zip(tensors, placed.program.inputs, strict=True)
                ]
                return placed.program.unflatten(self._compiled(tensors))
            if self._executor is None:
                with _threads_kept():
                    self._executor = executor(placed.program, placed.devices).__enter__()
            return placed.program.unflatten(self._executor.run(placed.plan, tensors))

    def close(self) -> None:
        """End its threads; the next call starts others."""
        with self._turn, _threads_kept():
            running, self._executor = self._executor, None
            if running is not None:
                running.__exit__(None, None, None)

    def __del__(self) -> None:
        if "_turn" in self.__dict__:
            self.close()


@contextmanager
def _modes(modes: Mapping[nn.Module, bool]) -> Iterator[None]:
    """Modules in training or evaluation mode as they were captured; as before afterwards."""
    before = {module: module.training for module in modes}
    try:
        for module, training in modes.items():
            module.training = training
        yield
    finally:
        for module, training in before.items():
            module.training = training


def as_written(model: nn.Module | Step, inputs: Sequence[Any]) -> Any:
    """What a model or a step returns for inputs, without gradients."""
    if isinstance(model, Step):  # a training step takes gradients itself
        return pytree.tree_map_only(Tensor, Tensor.detach, model.function(*inputs))
    with torch.no_grad():
        return model(*inputs)


@contextmanager
def _threads_kept() -> Iterator[None]:
    """What else the caller computes has as many threads as before."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def place(
    model: nn.Module | Step,
    example_inputs: Sequence[Any] | Any = (),
    devices: Sequence[str] | str | None = None,
    budget: int = 50,
    out: Path | str | None = None,
    memory_limit: int | None = None,
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> Placed:
    """The fastest plan found for a model or a training step on devices of this machine.

        placed = gst.place(model, (x,), devices=["cpu:0", "cpu:1", "cpu:0-1"])
        print(placed.explain())
        y = placed.module()(x)

    Args:
        model: whose inference is placed (`model.eval()` first, if dropout is to be off), or a `Step`
            (`gst.programs.training_step` makes one), which brings its own inputs.
        example_inputs: what the model is called with; one tensor, or several in a sequence.
        devices: names, or one text with commas between them, see `gst devices`; all of this machine and the sets of
            cores if None.
        budget: plans that may be measured; 0 = baselines alone.
        out: directory for what is measured, from which the same call goes on; a temporary one if None.
        memory_limit: bytes that the values of a run may take on each device.
        settings: further settings; `budget` counts.
        progress: told what is going on; a bar on the terminal if None.

    Raises:
        ValueError: it cannot be captured or does not run, there is no such device, or no plan fits the memory.
    """
    step, parameters = _step(model, example_inputs)
    modes = {} if isinstance(model, Step) else {module: module.training for module in model.modules()}
    program = capture(step)
    chosen = usable_devices(devices.split(",") if isinstance(devices, str) else devices, memory_limit)
    settings = replace(settings or Settings(), budget=budget)
    with tempfile.TemporaryDirectory() as temporary, Bars() as bars:
        directory = Path(temporary) if out is None else Path(out)
        saved = directory / "program"
        if not saved.exists():
            directory.mkdir(parents=True, exist_ok=True)
            program.save(saved)
        elif Program.load(saved).key != program.key:
            raise ValueError(f"{saved} holds another program; give another out")
        inputs = tuple(step.inputs if isinstance(model, Step) else step.inputs[1:])
        eager_step = partial(as_written, model, inputs)
        result = place_measured(
            program, saved, chosen, directory, settings, progress or bars.show, eager_step=eager_step
        )
    spec = pytree.tree_structure(inputs)
    return Placed(model, program, tuple(chosen), result.plan, result.task, result.result, parameters, spec, modes)


def _step(model: nn.Module | Step, example_inputs: Sequence[Any] | Any) -> tuple[Step, dict[str, Tensor]]:
    if isinstance(model, Step):
        return model, {}
    if not isinstance(model, nn.Module):
        raise ValueError(f"got a {type(model).__name__} to place; want a torch.nn.Module or a gst.programs.Step")
    given = (example_inputs,) if isinstance(example_inputs, Tensor) else tuple(example_inputs)
    return inference_step(model, given), dict(model.named_parameters()) | dict(model.named_buffers())
