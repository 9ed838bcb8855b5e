"""A placed model: its fastest variant or plan, as a module that is called as the model was, and as a file.

The file is that of `torch.save`: JSON (the winner, the plan, the measurements, names and shapes of the weights) and the
example inputs as tensors. It is read with `weights_only=True`, so that nothing in it is executed.
"""

from __future__ import annotations

import json
import math
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gst.execution.executor import AnyExecutor, GraphExecutor, executor
from gst.kernels.run import on_streams
from gst.kernels.state import StepInPlace
from gst.lowering.plan import Plan, positions_of_nodes
from gst.machine.devices import Device, usable_cores, usable_devices
from gst.placement.api.arguments import Arguments, ByPosition, called
from gst.placement.api.drawing import explanation
from gst.placement.task import Task
from gst.programs import Program, Step, inference_step, kind_for
from gst.programs.program import structure
from gst.programs.tracing import capture
from gst.reporting.headline import busy
from gst.util.untrusted import DAMAGE, parse_json, plain, read_tensors, shown
from gst.util.writing import atomic_path
from gst.whole_model.choosing import GuardedRun, Subject, subject_on_cores
from gst.whole_model.comparing import Guard
from gst.whole_model.device_copy import subject_on_accelerator
from gst.whole_model.variants import ORDINARY, PYTORCH, Variant, may_freeze

PLAN = "plan"
SCHEMA = 1  # of files of placed models
SCALARS = (bool, int, float, str, type(None))
Result = TypeVar("Result")
_requires_grad = attrgetter("requires_grad")


@dataclass(frozen=True, eq=False)
class Placed:
    """A model or step with its fastest whole-model variant or plan.

    Args:
        inputs: example inputs of its calls.
        devices: used by plans.
        result: measurements, see `gst.placement.planning.placed_result`; `unused_accelerators` names accelerators that
            were left out because the model is in the host's memory.
        runs: by name, whole-model variants that compute the same as the model. If the devices hold an accelerator,
            they run on the first one and leave their outputs there (`result["accelerator"]` names it).
        parameters: of a model, its parameters and buffers by name; empty for a step.
        program: captured from it; None for a model without a plan, as are `plan` and `task`.
        plan: device, priority and fusion group of every operation.
        task: costs of the program on the devices.
        arguments: order of the inputs of its calls; by position if None.
        seconds: of compiling `step` for one size of batch, at most.
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
    arguments: Arguments | None = None
    seconds: float = math.inf

    def __post_init__(self) -> None:
        if self.plan is not None:
            _ = self.written  # a later change of the model counts as one

    @cached_property
    def written(self) -> tuple[Callable[..., Any], Guard]:
        """The model as written, and the guard of its plan."""
        function = self.model.function if isinstance(self.model, Step) else self.model
        any_device = any(device.is_accelerator for device in self.devices)
        return function, Guard(function, self.inputs, weights=False, any_device=any_device)

    @property
    def winner(self) -> str:
        """Name of the fastest: a variant of `runs` (`pytorch` is the model as written) or `plan`; the simplest where
        differences are noise.
        """
        winner = str(self.result["winner"])
        return winner if winner in self.runs else PLAN

    def module(self, run: str | None = None) -> PlacedModule:
        """Return a module that is called as the model or step was, and computes the same without gradients.

        If it was placed on an accelerator, its inputs may be on any device. Its outputs are on
        `result["accelerator"]`, or where the model is if it does not run on the accelerator as a whole.

        Args:
            run: one of `runs`, or `plan`; the `winner` if None.

        Raises:
            ValueError: there is no such variant, or no plan was made.
        """
        return PlacedModule(self, run or self.winner)

    @cached_property
    def step(self) -> StepInPlace:
        """The training step, called with a batch alone: `loss = placed.step(*batch)` renews the state where it lies.

        Its first use compiles it, on the accelerator of the variants if there is one, there with its kernels on the
        number of streams that is fastest. It begins with the state of the example inputs.

        Raises:
            ValueError: it was a model that was placed, or the step renews no state.
        """
        if not isinstance(self.model, Step):
            raise ValueError("a model was placed; want a step that renews its state (gst.programs.training_step)")
        accelerator = self.result.get("accelerator")
        device = torch.device(accelerator) if accelerator else None
        return StepInPlace(self.model, device, lambda *given: on_streams(*given).call, self.seconds)

    def explain(self) -> str:
        """Describe in a few lines the time of each variant, and where the time of the plan goes."""
        lines = [f"the fastest is {self.winner}, {self.result['winner_ms']:.2f} ms{busy(self.result)}"]
        loop_ms = self.result["plans"].get(ORDINARY, {}).get("again_median_ms") or math.inf
        if loop_ms < self.result["winner_ms"]:
            lines.append(f"your ordinary loop is faster, {loop_ms:.2f} ms: keep it, or try placed.step")
        if accelerator := self.result.get("accelerator"):
            lines.append(f"without a plan it runs on {accelerator}:")
        if unused := self.result.get("unused_accelerators"):
            lines.append(unused_words(unused))
        loops = [] if math.isinf(loop_ms) else [ORDINARY]
        for name in (*self.runs, *loops, *self.result["left_out"]):
            entry = self.result["plans"].get(name, {})
            reason = self.result["left_out"].get(name) or entry.get("reason")
            lines.append(f"  {name}: " + (reason or f"{entry['again_median_ms']:.2f} ms"))
        if self.plan is not None and self.task is None:
            return "\n".join([*lines, f"its plan for {', '.join(self.plan.devices)} was read from a file"])
        if self.task is None or self.plan is None:
            return "\n".join([*lines, f"no plan was made: {self.result['no_plan']}"])
        return "\n".join([*lines, explanation(self.task, self.plan, self.result)])

    def save(self, path: Path | str) -> None:
        """Write the winner, its plan, the measurements and the example inputs to one file, for `gst.load(path, model)`.

        The file has no weights and no code: save `model.state_dict()` yourself. It is that of `torch.save`.

        Raises:
            ValueError: an input is neither a tensor nor a number, a truth value, a text or None.
        """
        leaves, spec = pytree.tree_flatten(() if isinstance(self.model, Step) else self.inputs)
        if other := [each for each in leaves if not isinstance(each, (Tensor, *SCALARS))]:
            name = type(other[0]).__name__
            raise ValueError(f"an input is a {name}, which has no form in a file; want tensors, numbers")
        try:
            form = pytree.treespec_dumps(spec)
        except (NotImplementedError, TypeError) as error:
            raise ValueError(f"the inputs have no form in a file; want tuples, lists, dictionaries: {error}") from error
        record = {
            "schema": SCHEMA,
            "torch": torch.__version__,
            "run": self.winner,
            "result": self.result,
            "devices": [device.name for device in self.devices],
            "model": description(self.model),
            "structure": form,
            "keywords": list(self.arguments.names) if self.arguments else [],
            "inputs": [str(each.device) if isinstance(each, Tensor) else [each] for each in leaves],
            "program": None if self.program is None else self.program.key,
            "plan": None if self.plan is None else self.plan.to_dict(),
        }
        # Copies, which hold no more memory than they show.
        tensors = [each.detach().clone().requires_grad_(each.requires_grad) for each in leaves if torch.is_tensor(each)]
        with atomic_path(Path(path)) as unfinished:
            torch.save({"placed": json.dumps(record), "tensors": tensors}, unfinished)


class PlacedModule(nn.Module):
    """Runs a placed model by one of `Placed.runs`, or by its plan for one caller at a time.

    Its weights and modes are those of the model, which is its submodule `model`. Another kind of call (shape, dtype,
    gradients, autocast, training mode, or a model that changed) runs the model as written, with one warning. So does a
    copy, by `copy.deepcopy` or `pickle`, and a plan in a process that was forked. Threads of a plan start with the
    first call, and end with `close` or with this object.
    """

    def __init__(self, placed: Placed, run: str) -> None:
        super().__init__()
        self.run = run
        function = placed.model if isinstance(placed.model, nn.Module) else placed.model.function
        self._begin(placed.arguments or Arguments(function, len(placed.inputs)))
        if isinstance(model := self._arguments.function, nn.Module):
            self.model, self.training = model, model.training
        guarded = placed.runs.get(run)
        if guarded is None:
            if run != PLAN:
                reason = f" ({left_out})" if (left_out := placed.result["left_out"].get(run)) else ""
                raise ValueError(f"there is no variant {run!r} of it{reason}; there are {', '.join(placed.runs)}")
            if placed.program is None or placed.plan is None:
                raise ValueError(f"there is no plan of it: {placed.result['no_plan']}; place it with seconds=None")
            written, guard = placed.written
            if PYTORCH in placed.runs:  # on an accelerator, where plans also leave their outputs
                written = placed.runs[PYTORCH].model
            self._plan = _PlanRun(placed, placed.program, placed.plan, guard)
            guarded = GuardedRun(written, guard, self._plan)
            weakref.finalize(self, self._plan.close)  # also before Python ends, when modules can still be imported
        self._guarded = guarded

    _plan: _PlanRun | None

    def _begin(self, arguments: Arguments) -> None:
        self._arguments, self._plan = arguments, None
        self._guarded = GuardedRun(arguments.function, None, arguments.function)  # of a copy

    def __getstate__(self) -> dict[str, Any]:
        """Return all but compiled code and plans, which belong to the weights of the original."""
        return {key: value for key, value in vars(self).items() if key not in ("_plan", "_guarded")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._begin(state["_arguments"])

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Return the outputs of the model or step for these arguments, by position or keyword as it takes them."""
        values = self._arguments.inputs(inputs, keywords)
        if self._guarded.guard is None:
            reason = "it is a copy of a placed module"
        elif self._plan is not None and not self._plan.is_here:
            reason = "its threads stayed in the parent of this forked process"
        elif values is None:
            reason = "other arguments are given than in the example"
        elif self.training and torch.is_grad_enabled() and any(map(_requires_grad, self.parameters())):
            reason = "it is in training mode, and its weights require gradients"
        else:
            return self._guarded(*values)
        self._guarded.warn(reason)
        return self._arguments.function(*inputs, **keywords)

    def close(self) -> None:
        """End its threads; the next call starts others."""
        if self._plan is not None:
            self._plan.close()


class _PlanRun:
    """Runs a plan of a program for inputs that the guard accepts; holds devices and parameters, no other variants."""

    def __init__(self, placed: Placed, program: Program, plan: Plan, guard: Guard) -> None:
        self._program, self._plan, self._guard, self._devices = program, plan, guard, placed.devices
        self._parameters, self._home = tuple(placed.parameters.values()), _home(placed)
        self._executor: AnyExecutor | None = None
        self._turn, self._process = threading.Lock(), os.getpid()

    @property
    def is_here(self) -> bool:
        """True unless this process was forked from the one in which it was made."""
        return self._process == os.getpid()

    def __call__(self, *inputs: Any) -> Any:
        with self._turn:
            return self._outputs(inputs)

    def _outputs(self, inputs: tuple[Any, ...]) -> Any:
        values = (*self._parameters, *self._guard.leaves(inputs))
        tensors = [each.detach() if each.requires_grad else each for each in values]
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
        if not self.is_here:
            return
        with self._turn:
            running, self._executor = self._executor, None
            if running is not None:
                threads = torch.get_num_threads()
                running.__exit__(None, None, None)
                torch.set_num_threads(threads)


def _home(placed: Placed) -> torch.device | None:
    """Return the device of a plan's outputs: the accelerator of the variants, or that of the model; None on cores."""
    if not any(device.is_accelerator for device in placed.devices):
        return None
    if accelerator := placed.result.get("accelerator"):
        return torch.device(accelerator)
    values = pytree.tree_leaves((list(placed.parameters.values()), placed.inputs))
    return next((each.device for each in values if isinstance(each, Tensor)), None)


def description(model: nn.Module | Step) -> dict[str, Any]:
    """Describe the model of a file: names, shapes and dtypes of its weights, and its mode, without their values."""
    if isinstance(model, Step):
        leaves, spec = pytree.tree_flatten(model.inputs)
        return {"step": str(spec), "inputs": [_form(each) for each in leaves]}
    weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        "class": type(model).__qualname__,
        "training": sorted(name for name, each in model.named_modules() if each.training),
        "weights": {name: _form(each) for name, each in weights.items()},
    }


def _form(value: Tensor) -> list[Any]:
    return [str(value.dtype), *value.shape]


def unused_words(accelerators: Sequence[str]) -> str:
    """Say why accelerators were left out.

    Examples:
        >>> unused_words(["cuda:0"])
        "cuda:0 is here and was left out, as the model is in the host's memory: move it there, or name devices"
    """
    names, verbs = ", ".join(accelerators), "are here and were" if len(accelerators) > 1 else "is here and was"
    return f"{names} {verbs} left out, as the model is in the host's memory: move it there, or name devices"


def load(path: Path | str, model: nn.Module | Step) -> Placed:
    """Make a model that `Placed.save` wrote run again, without measurements.

        gst.place(model, x).save("model.placed")
        fast = gst.load("model.placed", model).module()

    The winner is compiled again, and its outputs are compared with the model's on random inputs, on the accelerator
    if it was placed on one.

    Args:
        model: as it was given to `gst.place`, in the same mode, with any weights.

    Raises:
        ValueError: the file is damaged, of another version of this format or of torch, or of a model with other
            weights (by name, shape and dtype), other operations or another mode; a device of the plan is not here; or
            the winner gives other outputs here.

    Examples:
        >>> import gst
        >>> model = nn.Linear(2, 2).requires_grad_(False).eval()
        >>> settings = gst.placement.Settings(compile_step=False)
        >>> gst.place(model, torch.ones(1, 2), devices="cpu:0", settings=settings).save("linear.placed")
        >>> again = gst.load("linear.placed", model)
        >>> bool((again.module()(torch.ones(1, 2)) == model(torch.ones(1, 2))).all())
        True
    """
    path = Path(path)
    record, tensors = _read(path)
    keywords = list(map(str, record.get("keywords", [])))
    user = model if isinstance(model, nn.Module) else model.function
    if keywords and isinstance(model, nn.Module):
        model = ByPosition(model, keywords)
    if (now := description(model)) != record["model"]:
        raise ValueError(f"{path} is of another model: {_first_difference(record['model'], now)}; place this one")
    try:
        values = iter(tensors)
        flat = [next(values).to(each) if isinstance(each, str) else each[0] for each in record["inputs"]]
        inputs = tuple(pytree.tree_unflatten(flat, structure(record["structure"])))
        if record["run"] == PLAN:
            Plan.from_dict(record["plan"])
        elif (threads := Variant.named(record["run"]).threads or 1) > len(usable_cores()):
            raise ValueError(f"it won on {threads} threads, here are {len(usable_cores())} cores")
        result = dict(record["result"])
        result = result | {"plans": dict(result["plans"]), "left_out": {}, "winner_ms": float(result["winner_ms"])}
        result.setdefault("no_plan", "the file holds the winner alone")
        accelerator = usable_devices([name])[0].torch_device if (name := result.get("accelerator")) else None
    except (*DAMAGE, StopIteration) as error:
        raise ValueError(f"{path} cannot be read: {plain(error)}; place the model anew") from error
    if isinstance(model, Step):
        inputs = tuple(model.inputs)
    program = plan = None
    if record["run"] == PLAN or (isinstance(model, Step) and record["run"] != PYTORCH):
        step = model if isinstance(model, Step) else inference_step(model, inputs)
        program = capture(step, kind_for(name.partition(":")[0] for name in record["devices"]))
        if program.key != record["program"]:
            raise ValueError(f"{path} is of a model with other operations; place this one")
    names = [name for name in dict.fromkeys((PYTORCH, record["run"])) if name != PLAN]
    is_frozen = any(Variant.named(name).holds_weights for name in names)
    if is_frozen and (isinstance(model, Step) or not may_freeze(model)):
        raise ValueError(f"{path} holds frozen weights; call model.eval().requires_grad_(False) before you load it")
    subject = _made(path, PYTORCH, lambda: (
        subject_on_cores(model, inputs, 1, program) if accelerator is None
        else subject_on_accelerator(model, inputs, accelerator, program)
    ))  # fmt: skip
    runs = {name: _made(path, name, partial(subject.guarded, Variant.named(name))) for name in names}
    devices: tuple[Device, ...] = ()
    if record["run"] == PLAN:
        assert program is not None
        devices = tuple(usable_devices(record["devices"]))
        plan = Plan.from_dict(record["plan"])
        positions_of_nodes(plan, program, devices)
    parameters = {} if isinstance(model, Step) else {**dict(model.named_parameters()), **dict(model.named_buffers())}
    arguments = Arguments(user, len(inputs) - len(keywords), keywords)
    placed = Placed(model, inputs, devices, result, runs, parameters, program, plan, arguments=arguments)
    _check_outputs(path, placed, subject)
    return placed


def _made(path: Path, name: str, make: Callable[[], Result]) -> Result:
    try:
        return make()
    except Exception as error:  # any exception of a compiler
        raise ValueError(f"{path}: {name} fails here ({plain(error)}); place the model anew") from error


def _check_outputs(path: Path, placed: Placed, subject: Subject) -> None:
    """Compare the winner with the model, on an accelerator if it was placed there: its products round otherwise."""
    module, names = placed.module(), placed.arguments.names if placed.arguments else ()
    module.training = False  # otherwise weights that require gradients are read by the model as written
    try:
        reason = subject.wrong(lambda *inputs: called(module, names, inputs))
    finally:
        module.close()
    if reason:
        raise ValueError(f"{path}: {placed.winner} gives other outputs here: {reason}; place the model anew")


def _read(path: Path) -> tuple[dict[str, Any], list[Tensor]]:
    """Read the record and the tensors of a file; `ValueError` if it is no such file, or of another version."""
    content = read_tensors(path)
    try:
        record, tensors = parse_json(content["placed"]), content["tensors"]
        if not isinstance(record["schema"], int) or not all(isinstance(each, Tensor) for each in tensors):
            raise ValueError("it holds something else")
    except DAMAGE as error:
        raise ValueError(f"{path} is no placed model ({plain(error)}); want what placed.save() wrote") from error
    for what, here in (("schema", SCHEMA), ("torch", torch.__version__)):
        if record.get(what) != here:
            raise ValueError(f"{path} has {what} {shown(record.get(what))}, this is {here}; place the model anew")
    keys = ("run", "result", "devices", "model", "structure", "inputs", "program", "plan")
    if missing := [key for key in keys if key not in record]:
        raise ValueError(f"{path} is no placed model ({missing[0]} is missing); place the model anew")
    return record, list(tensors)


def _first_difference(then: Any, now: Mapping[str, Any]) -> str:
    if not isinstance(then, Mapping):
        return "it does not say of which"
    for what, value in now.items():
        if then.get(what) == value:
            continue
        if what == "weights" and isinstance(then.get(what), Mapping):
            held = then[what]
            name = next((each for each in (*value, *held) if value.get(each) != held.get(each)), "")
            return f"{name} was {shown(held.get(name))}, now it is {shown(value.get(name))}"
        return f"{what} was {shown(then.get(what))}, now it is {shown(value)}"
    return f"it has {', '.join(map(shown, then.keys() - now.keys()))} too"
