"""`gst.place` and `@gst.placed`: find the fastest variant or plan of a model or a step, in one call."""

from __future__ import annotations

import copy
import functools
import math
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gst.execution.measure import failing
from gst.lowering.calls import HOST
from gst.machine.devices import Device, core_numbers, discover, shared_domains, usable_devices, with_core_sets
from gst.machine.load import LoadMeter
from gst.placement.api.arguments import Arguments
from gst.placement.api.placed import Placed, PlacedModule, unused_words
from gst.placement.measured import SHARE, no_headroom, place_measured
from gst.placement.planning import Settings
from gst.programs import Program, Step, inference_step, kind_for
from gst.programs.operation import special_kind
from gst.programs.tracing import capture
from gst.programs.untouched import ATTRIBUTE, OUTSIDE, TRAINING, Snapshot, untouched, words
from gst.util.progress import Bars, Progress, notice
from gst.util.untrusted import plain
from gst.whole_model.choosing import Candidates, confirmed, subject_as_written, subject_on_cores, tried
from gst.whole_model.comparing import repeats
from gst.whole_model.device_copy import first_accelerator, give_back, subject_on_accelerator
from gst.whole_model.variants import ordinary_loop

BATCH_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # written in training mode


def place(
    model: nn.Module | Step,
    example_inputs: Sequence[Any] | Any = (),
    devices: Sequence[str] | str | None = None,
    budget: int | None = None,
    out: Path | str | None = None,
    memory_limit: int | None = None,
    settings: Settings | None = None,
    progress: Progress | None = None,
    seconds: float | None = 60.0,
) -> Placed:
    """Find the fastest variant or plan of a model or a training step on devices of this machine.

        placed = gst.place(model, (x,), devices=["cpu:0", "cpu:1", "cpu:0-1"])
        print(placed.explain())
        y = placed.module()(x)

    A model is tried as written, compiled and frozen (weights are constants, for a model in evaluation mode whose
    parameters require no gradient), or run by an installed engine, on all cores and on one; a step as written and
    compiled. A variant with other outputs is left out. Plans are searched for where they could be faster.

    If the devices hold an accelerator, plans are compared with variants on the first one: as written, recorded as one
    graph, and compiled. A model that is elsewhere is copied to it; the copy follows its weights, and the model itself
    runs where an attribute or hook changes later. Outputs stay there. Where a model cannot run there as a whole, plans
    are compared with variants where it is.

    Args:
        model: for inference (call `model.eval().requires_grad_(False)` first, if it is not to be trained), or a `Step`
            (`gst.programs.training_step` makes one), which has its own inputs.
        example_inputs: of the model's calls; one tensor, several in a sequence, or a mapping by names of arguments.
        devices: names, or one text with commas between them, see `gst devices`. If None, cores and their sets if
            weights and example inputs are in the host's memory, all devices if they are on an accelerator.
        budget: number of plans that may be measured, instead of `settings.budget`; 0 = baselines alone.
        out: directory for measurements, from which the same call goes on; a temporary one if None.
        memory_limit: bytes of the values of a run on each device under a plan; variants have no limit.
        settings: further settings.
        progress: called with the current work; a bar on the terminal if None.
        seconds: time limit, about, for compiling variants and searching for plans; a compilation is not interrupted.
            None = no limit, and plans are made even where none could win. Ctrl-C keeps the variants made so far.

    Raises:
        ValueError: it does not run, it cannot be captured and is no pure function, there is no such device, or no plan
            fits the memory.
    """
    if seconds is not None and not seconds > 0:
        raise ValueError(f"seconds is {seconds:g}; want more than 0, or None for as long as it takes")
    meter = LoadMeter()
    model, arguments, inputs = _by_position(model, example_inputs)
    parameters = {} if isinstance(model, Step) else dict(model.named_parameters()) | dict(model.named_buffers())
    where: dict[str, Any] = {}
    names = devices.split(",") if isinstance(devices, str) else devices
    if names is None:
        own = own_devices((parameters, inputs))
        names = [each.name for each in own]
        if unused := unused_accelerators(own):
            where["unused_accelerators"] = unused
            notice(unused_words(unused))
    chosen = tuple(usable_devices(names, memory_limit))
    settings = settings or Settings()
    settings = settings if budget is None else replace(settings, budget=budget)
    limit_s = math.inf if seconds is None else seconds
    with Bars() as bars, untouched(model if isinstance(model, nn.Module) else model.function, inputs=inputs):
        call = _Call(model, inputs, parameters, chosen, settings, limit_s, progress or bars.show)
        captured = _captured(call)
        program, no_plan = captured.program, captured.no_plan
        if out is not None and program is not None:
            _saved(program, Path(out))  # refuses another program's directory before anything is compiled
        whole, entries = _whole(call, captured)
        where |= entries
        runs, reasons = whole.serious()
        left_s = limit_s - meter.spent()
        if not math.isinf(limit_s) and memory_limit is None and not no_plan:
            no_plan = no_headroom(whole, chosen, call.cores, settings, left_s / limit_s, program)
        first_ms = {name: whole.first_ms[name] for name in runs}
        del whole  # frees memory of the others
        if accelerator := where.get("accelerator"):
            give_back(torch.device(accelerator))
        loops, no_loop = ordinary_loop(model, torch.device(accelerator or HOST))
        variants = Candidates(runs, reasons | no_loop, first_ms, loops)
        if program is not None and not no_plan:
            try:
                placed = _by_plans(call, program, variants, None if out is None else Path(out), left_s)
                return replace(placed, result=placed.result | where, arguments=arguments, seconds=limit_s)
            except KeyboardInterrupt:
                notice("stopped planning; the fastest variant of the whole model is confirmed")
                no_plan = "stopped before one was measured to the end"
            except ValueError as error:  # for example, operators that only this process has
                if memory_limit is not None or out is not None:
                    raise
                no_plan = str(error)
        result = confirmed(variants, inputs, SHARE * limit_s, call.progress)
    result |= {"devices": [device.name for device in chosen], "no_plan": no_plan, **where}
    captured_step = program if isinstance(model, Step) else None
    return Placed(
        model, inputs, chosen, result, variants.runs, parameters, captured_step, arguments=arguments, seconds=limit_s
    )


@dataclass(frozen=True, eq=False)
class _Call:
    """A call of `place`: a model whose inputs are all given by position, or a step, and its devices and settings."""

    model: nn.Module | Step
    inputs: tuple[Any, ...]
    parameters: Mapping[str, Tensor]
    devices: tuple[Device, ...]
    settings: Settings
    seconds: float
    progress: Progress

    @property
    def step(self) -> Step:
        return self.model if isinstance(self.model, Step) else inference_step(self.model, self.inputs)

    @property
    def cores(self) -> int:
        """Number of cores of the devices, at least 1."""
        return len({number for each in core_numbers(self.devices) for number in each}) or 1


class _Capture(NamedTuple):
    """The program of a model or step, or the reason why it can only be run whole, and perhaps only as written."""

    program: Program | None
    no_plan: str = ""
    is_as_written: bool = False


def _whole(call: _Call, captured: _Capture) -> tuple[Candidates, dict[str, Any]]:
    """Make the variants on the first accelerator of the devices, otherwise on the CPU, and entries of the result."""
    model, inputs, compiled, progress = call.model, call.inputs, call.settings.compile_step, call.progress
    if captured.is_as_written:
        notice(captured.no_plan)
        return tried(subject_as_written(model, inputs), progress=progress), {}
    accelerator = first_accelerator(call.devices)
    if accelerator is not None:
        try:
            subject = subject_on_accelerator(model, inputs, accelerator, captured.program)
            return tried(subject, call.seconds, compiled, progress), {"accelerator": str(accelerator)}
        except Exception as error:  # any exception of an operation; memory may be short
            reason = f"it does not run on {accelerator} as a whole ({plain(error)})"
            notice(f"{reason}; plans are compared with it where it is")
        give_back(accelerator)
    subject = subject_on_cores(model, inputs, call.cores, captured.program)
    return tried(subject, call.seconds, compiled, progress), {}


def _by_plans(call: _Call, program: Program, variants: Candidates, out: Path | None, seconds: float) -> Placed:
    here: dict[str, Callable[[], object]] = {name: run.timed(call.inputs) for name, run in variants.runs.items()}
    here |= {**variants.loops} | {name: partial(failing, reason) for name, reason in variants.reasons.items()}
    with tempfile.TemporaryDirectory() as temporary:
        folder = out or Path(temporary)
        saved = _saved(program, folder)
        placement = place_measured(
            program, saved, call.devices, folder, call.settings, call.progress, here=here, seconds=seconds
        )
    result = placement.result | {"left_out": dict(variants.reasons)}
    return Placed(
        call.model, call.inputs, call.devices, result, variants.runs, call.parameters, program, placement.plan,
        placement.task,
    )  # fmt: skip


def _captured(call: _Call) -> _Capture:
    """Capture the program of a call; ValueError if that fails and its outputs or weights change from call to call."""
    kind = kind_for(each.kind for each in call.devices)
    try:
        return _Capture(capture(call.step, kind, may_renew=False))
    except ValueError as error:
        with suppress(ValueError):
            capture(call.step, kind)
            no_plan = "it writes to an input in place and returns it, so it runs as written, whole"
            return _Capture(None, no_plan, is_as_written=True)
        state, is_pure = _state_changed_by(call.model, call.inputs)
        kinds = {change.kind for change in state.changes}
        if TRAINING in kinds or (isinstance(call.model, Step) and not (kinds and kinds <= {ATTRIBUTE, OUTSIDE})):
            raise
        if kinds and not all(change.name.endswith(BATCH_STATISTICS) for change in state.changes):
            no_plan = f"it {words(state.changes)} when it runs, so it runs as written, whole"
            return _Capture(None, no_plan, is_as_written=True)
        if kinds or not is_pure:
            raise
        leaves = {f"input {number}": each for number, each in enumerate(pytree.tree_leaves(call.inputs))}
        named = {**call.parameters, **leaves}
        special = [f"{name} is a {what}" for name, each in named.items() if (what := special_kind(each))]
        no_plan = f"{special[0]}, so it runs as written, whole" if special else str(error)
        return _Capture(None, no_plan, is_as_written=bool(special))


def _state_changed_by(model: nn.Module | Step, inputs: Sequence[Any]) -> tuple[Snapshot, bool]:
    """Run a model twice, or a step once, and undo it; return what it changed, and True if it repeats its outputs."""
    function = model if isinstance(model, nn.Module) else model.function
    with untouched(function, inputs=inputs, notes_calls=True) as state:
        if isinstance(model, nn.Module):
            return state, repeats(model, inputs)
        model.function(*inputs)
        return state, True


def _saved(program: Program, directory: Path) -> Path:
    path = directory / "program"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        program.save(path)
    elif Program.load(path).key != program.key:
        raise ValueError(f"{path} holds another program; give another out")
    return path


def _by_position(model: nn.Module | Step, examples: Any) -> tuple[nn.Module | Step, Arguments, tuple[Any, ...]]:
    """Return a model, or a step, whose inputs are all given by position, the arguments of its calls, and its inputs."""
    if isinstance(model, Step):
        return model, Arguments(model.function, len(model.inputs)), tuple(model.inputs)
    if not isinstance(model, nn.Module):
        raise ValueError(f"got a {type(model).__name__} to place; want a torch.nn.Module or a gst.programs.Step")
    arguments, inputs = Arguments.of_examples(model, examples)
    return arguments.by_position(), arguments, inputs  # type: ignore[return-value]


def own_devices(values: Any) -> list[Device]:
    """Return the default devices for a computation: those that hold its tensors, so that its outputs stay there.

    Tensors in the host's memory get the cores and their sets. Tensors on an accelerator get all devices of the machine,
    that accelerator first.

    Args:
        values: weights and example inputs, in tuples, lists and dictionaries.
    """
    places = [each.device for each in pytree.tree_leaves(values) if isinstance(each, Tensor)]
    place = next((each for each in places if each.type != "cpu"), None)
    devices = [each for each in discover() if place is not None or not each.is_accelerator]
    in_sets = with_core_sets(devices, shared_domains())
    return sorted(in_sets, key=lambda each: each.is_accelerator and each.torch_device != place)


def unused_accelerators(devices: Iterable[Device]) -> list[str]:
    """Return names of the accelerators of this machine that are not among some devices."""
    names = {device.name for device in devices}
    return [each.name for each in discover() if each.is_accelerator and each.name not in names]


class PlacedFunction:
    """A function that its first call places, see `placed`; later calls run its fastest variant or plan.

    Attributes:
        placed: the result of the first call, with `explain()` and `save(path)`; None before it.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self.placed: Placed | None = None
        self._function, self._options = function, options
        self._module: PlacedModule | None = None
        self._turn = threading.Lock()

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        if self._module is None and self._turn.acquire(blocking=False):  # nothing waits: it may call itself
            try:
                if self._module is None:
                    arguments, values = Arguments.of_call(self._function, inputs, keywords)
                    step = Step(getattr(self._function, "__name__", "step"), arguments.by_position(), values)
                    self.placed = replace(place(step, **self._options), arguments=arguments)
                    self._module = self.placed.module()
            finally:
                self._turn.release()
        return (self._module or self._function)(*inputs, **keywords)

    def __deepcopy__(self, memo: dict[int, Any]) -> PlacedFunction:
        """Return itself, as for any function; for a copy of an object that is called, another one, not placed yet."""
        function = copy.deepcopy(self._function, memo)
        return self if function is self._function else PlacedFunction(function, self._options)

    def __reduce__(self) -> Any:
        name = getattr(self._function, "__qualname__", "")
        is_global = getattr(sys.modules.get(str(self.__module__)), name, None) is self
        return name if is_global else (PlacedFunction, (self._function, self._options))

    def close(self) -> None:
        """End the threads of its plan, if there are any; the next call starts others."""
        if self._module is not None:
            self._module.close()


@overload
def placed(function: Callable[..., Any]) -> PlacedFunction: ...


@overload
def placed(
    *,
    devices: Sequence[str] | str | None = None,
    budget: int | None = None,
    settings: Settings | None = None,
    seconds: float | None = 60.0,
) -> Callable[[Callable[..., Any]], PlacedFunction]: ...


def placed(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Decorate a step of training or of inference: its first call places it with the inputs of that call.

        @gst.placed
        def step(state, x, y):            # parameters and the state of the optimizer, and a batch
            ...
            return loss, new_state

    Inputs of other shapes or dtypes run the function as written, with one warning.

    Args:
        function: a pure function of tensors: it returns new values and changes nothing, see `gst.programs.Step`.
            Random numbers need a seed among the inputs, see `gst.programs.drawn_from`.
        options: `devices`, `budget`, `settings` and `seconds` of `gst.place`.

    Raises:
        ValueError: with the first call, as `gst.place`.

    Examples:
        >>> @placed(devices="cpu:0-1", seconds=30)
        ... def step(state, x):
        ...     loss = (state["weight"] * x).square().mean()
        ...     return loss, {"weight": state["weight"] - 0.1 * (2 * state["weight"] * x.square()).mean()}
        >>> step.placed is None  # nothing is placed before the first call
        True
    """
    if function is None:
        return functools.partial(PlacedFunction, options=options)
    return PlacedFunction(function, options)
