"""`gst.place`: the fastest way found to run a model or a step, in one call."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gst.execution.plain import failing
from gst.lowering.plan import Plan
from gst.machine.devices import Device, core_numbers, usable_devices
from gst.placement.api.drawing import explanation
from gst.placement.api.exports import Stages, device_map, stages
from gst.placement.api.headroom import SHARE, chain_share, no_room
from gst.placement.api.own_devices import own_devices, unused_accelerators, unused_words
from gst.placement.api.placed_module import PLAN, PlacedModule
from gst.placement.loop import place_measured
from gst.placement.planning import BUDGET, Settings
from gst.placement.task import Task
from gst.programs import Program, Step, capture, inference_step, kind_for
from gst.reporting.headline import busy
from gst.util.progress import Bars, Progress, notice
from gst.whole_model.choosing import Candidates, GuardedRun, candidates, confirmed
from gst.whole_model.device_copy import candidates_on_accelerator, first_accelerator, give_back
from gst.whole_model.steps import step_candidates
from gst.whole_model.whole import repeats


@dataclass(frozen=True, eq=False)
class Placed:
    """The fastest way found to run a model or a step: as it is, compiled, frozen, or by a plan for its operations.

    Args:
        model: the model or step as it was given.
        inputs: what it was placed with.
        devices: where it was placed.
        result: what was measured, see `gst.placement.planning.placed_result`; `unused_accelerators` names those that
            were left out, if any were, as it lies in the host's memory.
        runs: ways to run the whole model that compute what it does, by name; on the first accelerator of the devices,
            if there is one, where they leave their outputs (`result["accelerator"]` names it).
        parameters: for a model, its parameters and buffers by name; empty for a step.
        program: what was captured of it; None for a model of which no plan was made, as the next two then are.
        plan: device, priority and fusion group of every operation.
        task: costs of the program on the devices.
    """

    model: nn.Module | Step
    inputs: tuple[Any, ...]
    devices: tuple[Device, ...]
    result: dict[str, Any]
    runs: Mapping[str, GuardedRun]
    parameters: Mapping[str, Tensor]
    program: Program | None = None
    plan: Plan | None = None
    task: Task | None = None

    @property
    def winner(self) -> str:
        """What was measured to be the fastest: `pytorch` (the model as it is; its copy on an accelerator, if it
        does not lie there itself), `compiled`, another of `runs`, or `plan`. The simplest of them where the difference
        is noise."""
        winner = str(self.result["winner"])
        return winner if winner in self.runs else PLAN

    def module(self, run: str | None = None) -> PlacedModule:
        """A module that is called as the model was, or with what the step takes, and computes the same without
        gradients. Its inputs may lie anywhere if it was placed on an accelerator, and its outputs lie on that one,
        `result["accelerator"]`, or where the model lies if it does not run there as a whole.

        Args:
            run: what it runs, one of `runs` or `plan`; the `winner` if None.

        Raises:
            ValueError: there is no such way, or no plan was made.
        """
        return PlacedModule(self, run or self.winner)

    def explain(self) -> str:
        """What each way takes, where the time goes under the plan, and why it is no faster, in a few lines."""
        lines = [f"the fastest is {self.winner}, {self.result['winner_ms']:.2f} ms{busy(self.result)}"]
        if accelerator := self.result.get("accelerator"):
            lines.append(f"without a plan it runs on {accelerator}:")
        if unused := self.result.get("unused_accelerators"):
            lines.append(unused_words(unused))
        for name in (*self.runs, *self.result["left_out"]):
            entry = self.result["plans"].get(name, {})
            reason = self.result["left_out"].get(name) or entry.get("reason")
            lines.append(f"  {name}: " + (reason or f"{entry['again_median_ms']:.2f} ms"))
        if self.plan is not None and self.task is None:
            return "\n".join([*lines, f"its plan for {', '.join(self.plan.devices)} was read from a file"])
        if self.task is None or self.plan is None:
            return "\n".join([*lines, f"no plan was made: {self.result['no_plan']}"])
        return "\n".join([*lines, explanation(self.task, self.plan, self.result)])

    def save(self, path: Path | str) -> None:
        """Write to one file what won, its plan, what was measured and the example inputs; `gst.load(path, model)`
        makes it run again. No weights and no code are written: `model.state_dict()` stays yours.

        Raises:
            ValueError: an input is neither a tensor nor a number, a truth value, a text or None.
        """
        from gst.placement.api.saving import save_placed

        save_placed(self, path)

    def device_map(self) -> dict[str, str]:
        """Device of each module that holds parameters, where what reads them runs, as Accelerate's `dispatch_model`
        takes it.

        Raises:
            ValueError: it is no model with parameters, or parameters of one module are on several devices, so that a
                map of modules is not enough.
        """
        return device_map(self)

    def stages(self) -> Stages:
        """The plan as stages of a pipeline: `stages().split_spec` is what `torch.distributed.pipelining.pipeline`
        takes, and `stages().devices` the device of each stage, which runs the modules from its split to the next one.

        Raises:
            ValueError: no plan was made, it has no `device_map`, or it comes back to a device, so that it is no
                pipeline.
        """
        return stages(self)


def place(
    model: nn.Module | Step,
    example_inputs: Sequence[Any] | Any = (),
    devices: Sequence[str] | str | None = None,
    budget: int = BUDGET,
    out: Path | str | None = None,
    memory_limit: int | None = None,
    settings: Settings | None = None,
    progress: Progress | None = None,
    seconds: float | None = 60.0,
) -> Placed:
    """The fastest way found to run a model or a training step on devices of this machine.

        placed = gst.place(model, (x,), devices=["cpu:0", "cpu:1", "cpu:0-1"])
        print(placed.explain())
        y = placed.module()(x)

    A model is tried as it is, compiled, and frozen (weights as constants: only in evaluation mode, where no parameter
    requires a gradient), on all cores and on one; a step as it is and compiled. What computes something else is left
    out: on random inputs for a model, on its own for a step. Plans for operations are searched for where they could be
    faster.

    If the devices hold an accelerator, what stands beside plans is the model or the step on the first one: as written,
    recorded as one graph, and compiled in two modes, or three with 240 s or more (`max-autotune` takes minutes). What
    lies elsewhere is copied to it; the copy of a model follows its weights, but no attribute or hook that is changed
    later. All are timed, as plans are, in calls with inputs in its memory, and leave their outputs in it. Where it
    cannot run the whole, plans stand beside the ways to run it where it lies.

    Args:
        model: whose inference is placed (`model.eval().requires_grad_(False)` first, if it is not to be trained), or a
            `Step` (`gst.programs.training_step` makes one), which brings its own inputs.
        example_inputs: what the model is called with; one tensor, or several in a sequence.
        devices: names, or one text with commas between them, see `gst devices`. If None, the cores and their sets for
            what lies in the host's memory, weights and example inputs; all of this machine for what lies on an
            accelerator. Whole ways as written and compiled keep the number of threads that PyTorch has.
        budget: plans that may be measured; 0 = baselines alone.
        out: directory for what is measured, from which the same call goes on; a temporary one if None.
        memory_limit: bytes that the values of a run may take on each device under a plan; whole ways know no limit.
        settings: further settings; `budget` counts.
        progress: told what is going on; a bar on the terminal if None.
        seconds: about as long as ways are compiled and plans are searched for; what is being compiled then is waited
            for. None = as long as it takes, and plans are made even where none could win. Ctrl-C keeps the ways that
            are compiled.

    Raises:
        ValueError: it does not run, it cannot be captured and is no pure function, there is no such device, or no plan
            fits the memory.
    """
    if seconds is not None and not seconds > 0:
        raise ValueError(f"seconds is {seconds:g}; want more than 0, or None for as long as it takes")
    started = time.perf_counter()
    step, parameters = _step(model, example_inputs)
    inputs = tuple(step.inputs if isinstance(model, Step) else step.inputs[1:])
    names = devices.split(",") if isinstance(devices, str) else devices
    own = own_devices((parameters, inputs)) if names is None else []
    chosen = tuple(usable_devices([each.name for each in own] if names is None else names, memory_limit))
    where: dict[str, Any] = {}
    if own and (unused := unused_accelerators(own)):
        where["unused_accelerators"] = unused
        notice(unused_words(unused))
    settings = replace(settings or Settings(), budget=budget)
    limit = math.inf if seconds is None else seconds
    with Bars() as bars:
        shown = progress or bars.show
        kind = kind_for(each.kind for each in chosen)
        cores = len({number for each in core_numbers(chosen) for number in each}) or 1
        program: Program | None
        if isinstance(model, Step):
            program, no_plan = capture(step, kind), ""
        else:
            program, no_plan = _captured(model, step, inputs, kind)
        whole, accelerator = _candidates(model, program, inputs, chosen, cores, limit, settings, shown)
        where |= {} if accelerator is None else {"accelerator": str(accelerator)}
        runs, reasons = whole.serious()
        left = limit - (time.perf_counter() - started)
        if not math.isinf(limit) and memory_limit is None:
            chain = 0.0 if program is None else chain_share(program)
            no_plan = no_plan or no_room(whole, chosen, cores, settings, left / limit, chain)
        whole = Candidates(runs, reasons, {name: whole.first_ms[name] for name in runs})  # others give up their memory
        if accelerator is not None:
            give_back(accelerator)
        if program is not None and not no_plan:
            try:
                placed = _by_plans(
                    model, program, inputs, chosen, parameters, settings, out, shown, runs, reasons, left
                )
                return replace(placed, result=placed.result | where)
            except KeyboardInterrupt:
                notice("stopped planning; the fastest way to run the model whole is confirmed")
                no_plan = "stopped before one was measured to the end"
            except ValueError as error:  # as of operators that only this process knows
                if memory_limit is not None or out is not None:
                    raise
                no_plan = str(error)
        result = confirmed(whole, inputs, SHARE * limit, shown)
    result |= {"devices": [device.name for device in chosen], "no_plan": no_plan, **where}
    return Placed(model, inputs, chosen, result, runs, parameters, program if isinstance(model, Step) else None)


def _candidates(
    model: nn.Module | Step, program: Program | None, inputs: tuple[Any, ...], devices: Sequence[Device], cores: int,
    seconds: float, settings: Settings, progress: Progress,
) -> tuple[Candidates, torch.device | None]:  # fmt: skip
    """The ways to run it whole: on the first accelerator of the devices, and that; or where it lies, and None."""
    accelerator, compiled = first_accelerator(devices), settings.compile_step
    if accelerator is not None:
        try:
            return candidates_on_accelerator(
                model, inputs, accelerator, seconds, compiled, progress, program
            ), accelerator
        except Exception as error:  # whatever an operation raises; memory may be short for all of it
            first = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            notice(f"it does not run on {accelerator} as a whole ({first}); plans are compared with it where it lies")
        give_back(accelerator)
    if not isinstance(model, Step):
        return candidates(model, inputs, cores, seconds, compiled, progress), None
    assert program is not None, "a step is captured before it is run"
    return step_candidates(model, program, inputs, cores, seconds, compiled, progress), None


def _by_plans(
    model: nn.Module | Step, program: Program, inputs: tuple[Any, ...], devices: tuple[Device, ...],
    parameters: Mapping[str, Tensor], settings: Settings, out: Path | str | None, progress: Progress,
    runs: Mapping[str, GuardedRun], reasons: Mapping[str, str], seconds: float,
) -> Placed:  # fmt: skip
    """Search for plans, which are measured beside the ways to run it whole."""
    here: dict[str, Callable[[], object]] = {name: run.timed(inputs) for name, run in runs.items()}
    here |= {name: partial(failing, reason) for name, reason in reasons.items()}
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary) if out is None else Path(out)
        saved = _saved(program, directory)
        placement = place_measured(program, saved, devices, directory, settings, progress, here=here, seconds=seconds)
    result = placement.result | {"left_out": dict(reasons)}
    return Placed(model, inputs, devices, result, runs, parameters, program, placement.plan, placement.task)


def _captured(model: nn.Module, step: Step, inputs: Sequence[Any], kind: str) -> tuple[Program | None, str]:
    """The program of a model for a kind of device, or None and the reason: then it can only be run whole.

    Raises:
        ValueError: it cannot be captured, and what it returns or leaves behind changes from call to call.
    """
    try:
        return capture(step, kind), ""
    except ValueError as error:
        if repeats(model, inputs):
            return None, str(error)
        raise


def _saved(program: Program, directory: Path) -> Path:
    path = directory / "program"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        program.save(path)
    elif Program.load(path).key != program.key:
        raise ValueError(f"{path} holds another program; give another out")
    return path


def _step(model: nn.Module | Step, example_inputs: Sequence[Any] | Any) -> tuple[Step, dict[str, Tensor]]:
    if isinstance(model, Step):
        return model, {}
    if not isinstance(model, nn.Module):
        raise ValueError(f"got a {type(model).__name__} to place; want a torch.nn.Module or a gst.programs.Step")
    given = (example_inputs,) if isinstance(example_inputs, Tensor) else tuple(example_inputs)
    return inference_step(model, given), dict(model.named_parameters()) | dict(model.named_buffers())
