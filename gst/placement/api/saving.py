"""A placed model read from a file, to run again: `gst.load`.

The file is that of `torch.save`: JSON (the winner, the plan, the measurements, names and shapes of the weights) and the
example inputs as tensors. It is read with `weights_only=True`, so that nothing in it is executed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gst.lowering.plan import Plan, positions_of_nodes
from gst.machine.devices import Device, usable_cores, usable_devices
from gst.placement.api.arguments import Arguments, ByPosition, called
from gst.placement.api.placed import PLAN, SCHEMA, Placed, description, guard_of
from gst.programs import Program, Step, inference_step, kind_for
from gst.programs.program import structure
from gst.programs.tracing import capture
from gst.util.untrusted import DAMAGE, parse_json, plain, read_tensors, shown
from gst.whole_model.choosing import SEED, GuardedRun
from gst.whole_model.comparing import DRAWS, difference
from gst.whole_model.device_copy import DeviceCopy, to_device
from gst.whole_model.guards import Guard
from gst.whole_model.variants import PYTORCH, Variant, as_written, may_freeze, step_run, whole_run

Result = TypeVar("Result")


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
    runs, on_device = {PYTORCH: GuardedRun(*guard_of(model, inputs), lambda *given: as_written(model, given))}, None
    if accelerator is not None:
        on_device = _made(path, PYTORCH, lambda: DeviceCopy(model, inputs, accelerator, program))
        names = [name for name in dict.fromkeys((PYTORCH, record["run"])) if name != PLAN]
        runs = _runs_on(path, on_device, names, guard_of(model, inputs, any_device=True)[1])
    elif record["run"] not in (PLAN, PYTORCH):
        runs |= _winner(path, model, program, Variant.named(record["run"]), inputs)
    devices: tuple[Device, ...] = ()
    if record["run"] == PLAN:
        assert program is not None
        devices = tuple(usable_devices(record["devices"]))
        plan = Plan.from_dict(record["plan"])
        positions_of_nodes(plan, program, devices)
    parameters = {} if isinstance(model, Step) else {**dict(model.named_parameters()), **dict(model.named_buffers())}
    arguments = Arguments(user, len(inputs) - len(keywords), keywords)
    placed = Placed(model, inputs, devices, result, runs, parameters, program, plan, arguments=arguments)
    _check_outputs(path, placed, on_device)
    return placed


def _winner(
    path: Path, model: nn.Module | Step, program: Program | None, variant: Variant, inputs: Sequence[Any]
) -> dict[str, GuardedRun]:
    if variant.holds_weights and (isinstance(model, Step) or not may_freeze(model)):
        raise ValueError(f"{path} holds frozen weights; call model.eval().requires_grad_(False) before you load it")
    if isinstance(model, Step):
        assert program is not None
        run = _made(path, variant.name, partial(step_run, model, program, inputs, variant))
        return {variant.name: GuardedRun(*guard_of(model, inputs), run)}
    run = _made(path, variant.name, partial(whole_run, model, variant, inputs))
    return {variant.name: GuardedRun(model, Guard(model, inputs, variant.holds_weights), run)}


def _runs_on(path: Path, on_device: DeviceCopy, names: Sequence[str], guard: Guard) -> dict[str, GuardedRun]:
    written = on_device.refused(guard)
    runs = {}
    for name in names:
        runs[name] = GuardedRun(written, guard, _made(path, name, partial(on_device.run, Variant.named(name))))
    return runs


def _made(path: Path, name: str, make: Callable[[], Result]) -> Result:
    try:
        return make()
    except Exception as error:  # any exception of a compiler
        raise ValueError(f"{path}: {name} fails here ({plain(error)}); place the model anew") from error


def _check_outputs(path: Path, placed: Placed, on_device: DeviceCopy | None) -> None:
    """Compare the winner with the model, on an accelerator if it was placed there: its products round otherwise."""

    def again(*inputs: Any) -> Any:
        if on_device is None:
            return as_written(placed.model, inputs)
        return on_device.eager(*to_device(inputs, on_device.device))

    module, names = placed.module(), placed.arguments.names if placed.arguments else ()
    draws = 0 if isinstance(placed.model, Step) else DRAWS
    try:
        reason = difference(lambda *inputs: called(module, names, inputs), again, placed.inputs, SEED, draws)
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
